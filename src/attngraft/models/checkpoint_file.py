"""Reader of checkpoint files that never runs code in them."""

import argparse
import io
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

import safetensors
import torch
from torch import Tensor

from attngraft.errors import AttngraftError, HostError, UsageError
from attngraft.opening import check_regular, check_unpacked, check_zip, open_zip, parse_json
from attngraft.suggest import cut, first_line

_TORCH = (".pth", ".pt", ".bin", ".tar")
_MOST_AXES = 64  #: torch copies no tensors with more
SUFFIXES = (".safetensors", *_TORCH, ".zip")
AVERAGES = ("state_dict_ema", "model_ema")  #: keys of the moving average of the weights
PLAIN = ("state_dict", "model", "net")  #: keys of the plain weights
WRAPPERS = ("module.", "_orig_mod.")  #: prefixes that DistributedDataParallel and torch.compile add to every name
BEST = "model_best.pth.tar"  #: name of the best checkpoint in timm's training scripts
ITSELF = "the file itself"  #: the layout of a bare state dict
KEY = "attngraft"  #: key of attngraft's JSON in the metadata of a safetensors file


@dataclass(frozen=True, kw_only=True)
class CheckpointFile:
    """Contents of a checkpoint file."""

    path: Path
    tensors: Mapping[str, Tensor]  #: name without wrappers' prefixes -> tensor
    layout: str  #: location of the tensors: "the file itself", "state_dict", "model_ema of ... in the zip"
    stripped: tuple[str, ...] = ()  #: wrappers' prefixes that were removed from names
    left: tuple[str, ...] = ()  #: names of the file's other entries
    architecture: str | None = None  #: name of the model, if the file contains it
    arguments: Mapping[str, Any] = field(default_factory=dict)  #: arguments of the model, if the file contains them
    epoch: int | None = None


def read_checkpoint(path: Path, *, average: bool | None = None) -> CheckpointFile:
    """Read the tensors of a safetensors file, a torch file, or a torch file in a zip.

    A torch file is a state dict, or contains one under a key in `AVERAGES` or `PLAIN`. It is read with `weights_only=True`:
    besides tensors and plain values it may contain `argparse.Namespace`, the arguments that timm's scripts save.

    Args:
        average: True: the moving average; False: the plain weights; None: the average if the file has one.

    Raises:
        UsageError: the file does not exist, is of another kind, or has no weights of the requested kind.
        HostError: the file is damaged or contains other objects; no code in it was run.
    """
    if not path.exists() or path.is_dir():
        raise UsageError(f"{path}: no such file; pass a weights file ({', '.join(SUFFIXES)})")
    if path.suffix not in SUFFIXES:
        raise UsageError(
            f"{path}: cannot read weights from {path.suffix or 'suffixless'} files, only from {', '.join(SUFFIXES)}"
        )
    try:
        check_regular(path)
        if path.suffix == ".safetensors":
            found = _from_safetensors(path, average=average)
        else:
            member, stream = _opened(path)
            with stream:
                values = _load(path, stream)
            found = _from_torch(path, member, values, average=average)
        for tensor in found.tensors.values():
            tensor.reshape(-1)[:1].clone().float()  # raises for dtypes that torch can store but not use
            if tensor.ndim > _MOST_AXES:
                raise ValueError(f"a tensor of {tensor.ndim} dimensions")
        return found
    except AttngraftError:
        raise
    except Exception as error:  # damaged bytes make the readers raise errors of any class
        kind = "safetensors" if path.suffix == ".safetensors" else "torch"
        raise HostError(
            f"{path} is damaged, or not a {kind} file ({first_line(error)}); download or save it again"
        ) from error


def _opened(path: Path) -> tuple[str, IO[bytes]]:
    """Open the file, or the weights file in a zip; return its name in the zip, or "", and the stream.

    Torch's own files are also zips, but contain a data.pkl.
    """
    if not zipfile.is_zipfile(path):
        return "", open_zip(path)
    with open_zip(path) as file, zipfile.ZipFile(file) as archive:
        names = [PurePosixPath(name) for name in archive.namelist() if not name.startswith("__MACOSX/")]
        if any(name.name == "data.pkl" for name in names):
            return "", open_zip(path)
        found = [name for name in names if name.suffix in _TORCH]
        chosen = [name for name in found if name.name == BEST] or found
        if len(chosen) != 1:
            listed = ", ".join(str(name) for name in chosen[:5]) or "none"
            raise UsageError(
                f"{path}: a zip must contain one weights file, this one has {listed}; unpack it and pass a weights file"
            )
        member = io.BytesIO(archive.read(str(chosen[0])))
        check_zip(member, path)
        return str(chosen[0]), member


def _load(path: Path, stream: IO[bytes]) -> Any:
    """Load a torch file without running code.

    Raises:
        HostError: the file contains objects other than tensors and plain values.
    """
    try:
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd contents, which are refused later
            return torch.load(stream, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError) as error:
        if "weights_only" not in str(error):
            raise
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        raise HostError(
            f"{path} contains Python objects besides tensors{f' ({named[1]})' if named else ''}; reading them could run "
            "arbitrary code, so it is refused. If you trust the file, load it with torch and save only its state dict "
            "(torch.save(model.state_dict(), FILE), or safetensors)"
        ) from error


def _from_safetensors(path: Path, *, average: bool | None) -> CheckpointFile:
    if average:
        raise UsageError(
            f"{path}: a safetensors file contains one set of weights and no average; remove --ema (average=True)"
        )
    with safetensors.safe_open(path, framework="pt") as file:
        try:  # the entry written by `convert`, if any
            facts = parse_json((file.metadata() or {}).get(KEY, "{}"))
        except ValueError:
            facts = {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return _contents(path, tensors, facts if isinstance(facts, dict) else {}, layout=ITSELF)


def _from_torch(path: Path, member: str, values: Any, *, average: bool | None) -> CheckpointFile:
    if not isinstance(values, Mapping):
        raise HostError(f"{path} contains a {type(values).__name__}, not named tensors; save model.state_dict()")
    present = [name for name in (*AVERAGES, *PLAIN) if isinstance(values.get(name), Mapping)]
    entry = _chosen(path, present, average)
    held = values if entry is None else values[entry]
    named = {name: value for name, value in held.items() if isinstance(name, str) and isinstance(value, Tensor)}
    check_unpacked(path, sum(value.numel() * value.element_size() for value in named.values()), path.stat().st_size)
    others = values if entry is not None else {}
    facts = {"architecture": others.get("arch"), "epoch": others.get("epoch")}
    left = tuple(str(name) for name, value in others.items() if name != entry and value is not None)
    left += tuple(repr(name) for name, value in held.items() if isinstance(value, Tensor) and not isinstance(name, str))
    layout = (entry or ITSELF) + (f" of {member} in the zip" if member else "")
    return _contents(path, named, facts, layout=layout, left=left)


def _contents(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any], **others: Any) -> CheckpointFile:
    """Build the result from the file's tensors and facts; facts of an unexpected type are ignored."""
    bare, stripped = _without_wrappers(path, tensors)
    architecture, arguments, epoch = (facts.get(name) for name in ("architecture", "arguments", "epoch"))
    return CheckpointFile(
        path=path,
        tensors=bare,
        stripped=stripped,
        architecture=architecture if isinstance(architecture, str) else None,
        arguments=arguments if isinstance(arguments, dict) else {},
        epoch=epoch if isinstance(epoch, int) else None,
        **others,
    )


def _chosen(path: Path, present: list[str], average: bool | None) -> str | None:
    """Return the key of the weights in the file; None if the whole file is a state dict."""
    wanted = [name for name in present if average is None or (name in AVERAGES) == average]
    if wanted or (not present and not average):
        return wanted[0] if wanted else None
    kind, found = ("moving average", AVERAGES) if average else ("weights other than their moving average", PLAIN)
    raise UsageError(
        f"{path} has no {kind} ({' or '.join(found)}), only {', '.join(present) or 'a state dict'}; change --ema/--no-ema"
    )


def _without_wrappers(path: Path, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Remove wrappers' prefixes from names, and return the renamed tensors and the removed prefixes.

    Raises:
        HostError: two tensors would have the same name, a tensor is no dense tensor, or a name is invalid.
    """
    found: dict[str, Tensor] = {}
    stripped: dict[str, None] = {}
    for name, tensor in tensors.items():
        bare = name
        while wrapper := next((each for each in WRAPPERS if bare.startswith(each)), None):
            bare = bare.removeprefix(wrapper)
            stripped[wrapper] = None
        if bare in found:
            raise HostError(
                f"{path} has two tensors for {bare}, with and without the prefix {' or '.join(WRAPPERS)}; remove one of them"
            )
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
            raise HostError(
                f"{path}: {bare} is sparse, quantized or without values, but weights are dense; save it as a dense tensor"
            )
        if not bare.isprintable():
            raise HostError(f"{path}: the name {cut(ascii(bare))} of a tensor has invalid characters; rename it")
        found[bare] = tensor
    return found, tuple(stripped)
