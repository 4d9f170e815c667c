"""Files of weights as training leaves them: read without running code, unwrapped, and said how they were found."""

from __future__ import annotations

import argparse
import io
import json
import pickle
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

import safetensors
import torch
from torch import Tensor

from attngraft.errors import AttngraftError, HostError, UsageError

_TORCH = (".pth", ".pt", ".bin", ".tar")
SUFFIXES = (".safetensors", *_TORCH, ".zip")
AVERAGES = ("state_dict_ema", "model_ema")  #: where a checkpoint keeps the moving average of its weights
PLAIN = ("state_dict", "model")  #: where it keeps the weights themselves
WRAPPERS = ("module.", "_orig_mod.")  #: what DistributedDataParallel and torch.compile put before every name
BEST = "model_best.pth.tar"  #: what timm's training scripts call the best one
ITSELF = "the file itself"  #: the layout of a bare state dict
KEY = "attngraft"  #: of a safetensors file's metadata: ours, as JSON


@dataclass(frozen=True, kw_only=True)
class CheckpointFile:
    """What lies in a file of weights."""

    path: Path
    tensors: Mapping[str, Tensor]  #: under names without wrappers
    layout: str  #: where they lay: "the file itself", "state_dict", "model_ema of model_best.pth.tar in the zip", ...
    stripped: tuple[str, ...] = ()  #: wrappers that were taken off names
    left: tuple[str, ...] = ()  #: what else the file holds
    architecture: str | None = None  #: name of the model, where the file says it
    arguments: Mapping[str, Any] = field(default_factory=dict)  #: of its factory, where the file says them
    epoch: int | None = None


def read_checkpoint(path: Path, *, average: bool | None = None) -> CheckpointFile:
    """The tensors in a safetensors file, in a torch file, or in one of these in a zip.

    A torch file holds a state dict, or keeps it under one of `AVERAGES` and `PLAIN`. It is read with `weights_only=True`:
    besides tensors and plain values it may hold `argparse.Namespace`, the arguments that timm's scripts save.

    Args:
        average: True: the moving average; False: the weights themselves; None: the average where there is one.

    Raises:
        UsageError: there is no such file, it is of another kind, or has no weights of the kind that was asked for.
        HostError: it is damaged, or holds other objects; nothing of it was run.
    """
    if not path.is_file():
        raise UsageError(f"{path}: there is no such file of weights; give the path of a {', '.join(SUFFIXES)}")
    if path.suffix not in SUFFIXES:
        raise UsageError(
            f"{path}: weights are read from {', '.join(SUFFIXES)} files, not from {path.suffix or 'others'}"
        )
    try:
        if path.suffix == ".safetensors":
            return _from_safetensors(path, average=average)
        member, stream = _opened(path)
        with stream:
            values = _load(path, stream)
    except AttngraftError:
        raise
    except Exception as error:  # bytes that changed make the readers raise whatever they like
        kind = "safetensors" if path.suffix == ".safetensors" else "torch"
        raise HostError(
            f"{path} is damaged, or no {kind} file ({_first_line(error)}); fetch or save it again"
        ) from error
    return _from_torch(path, member, values, average=average)


def _opened(path: Path) -> tuple[str, IO[bytes]]:
    """The file, or that of weights in a zip and its name there. torch's own files are zips, too: they hold a data.pkl."""
    if not zipfile.is_zipfile(path):
        return "", path.open("rb")
    with zipfile.ZipFile(path) as archive:
        names = [PurePosixPath(name) for name in archive.namelist() if not name.startswith("__MACOSX/")]
        if any(name.name == "data.pkl" for name in names):
            return "", path.open("rb")
        found = [name for name in names if name.suffix in _TORCH]
        chosen = [name for name in found if name.name == BEST] or found
        if len(chosen) != 1:
            listed = ", ".join(str(name) for name in chosen[:5]) or "none"
            raise UsageError(
                f"{path}: a zip holds one file of weights, and here is {listed}; unpack it, and give one of them"
            )
        return str(chosen[0]), io.BytesIO(archive.read(str(chosen[0])))


def _load(path: Path, stream: IO[bytes]) -> Any:
    """What torch makes of the file, without running anything that it names.

    Raises:
        HostError: it names something else than tensors need.
    """
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(stream, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError) as error:
        if "weights_only" not in str(error):
            raise
        named = re.search(r"GLOBAL ([\w.]+)", str(error))
        raise HostError(
            f"{path} holds Python objects besides tensors{f' ({named[1]})' if named else ''}, and reading those could run "
            "anything, so it is not read. Where you trust it: load it with torch and save its state dict alone "
            "(torch.save(model.state_dict(), FILE), or safetensors)"
        ) from error


def _from_safetensors(path: Path, *, average: bool | None) -> CheckpointFile:
    if average:
        raise UsageError(
            f"{path}: a safetensors file holds one set of weights and does not say whether it is an average"
        )
    with safetensors.safe_open(path, framework="pt") as file:
        facts = _facts(file.metadata() or {})
        tensors, stripped = _without_wrappers(path, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    architecture, arguments, epoch = (facts.get(name) for name in ("architecture", "arguments", "epoch"))
    return CheckpointFile(
        path=path,
        tensors=tensors,
        layout=ITSELF,
        stripped=stripped,
        architecture=architecture if isinstance(architecture, str) else None,
        arguments=arguments if isinstance(arguments, dict) else {},
        epoch=epoch if isinstance(epoch, int) else None,
    )


def _facts(metadata: Mapping[str, str]) -> dict[str, Any]:
    """What `convert` wrote there, or nothing."""
    try:
        found = json.loads(metadata.get(KEY, "{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _from_torch(path: Path, member: str, values: Any, *, average: bool | None) -> CheckpointFile:
    if not isinstance(values, Mapping):
        raise HostError(f"{path} holds no tensors under names (a {type(values).__name__}), not the weights of a host")
    there = [name for name in (*AVERAGES, *PLAIN) if isinstance(values.get(name), Mapping)]
    entry = _chosen(path, there, average)
    held = values if entry is None else values[entry]
    named = {name: value for name, value in held.items() if isinstance(name, str) and isinstance(value, Tensor)}
    tensors, stripped = _without_wrappers(path, named)
    others = values if entry is not None else {}
    architecture, epoch = others.get("arch"), others.get("epoch")
    return CheckpointFile(
        path=path,
        tensors=tensors,
        layout=(entry or ITSELF) + (f" of {member} in the zip" if member else ""),
        stripped=stripped,
        left=tuple(str(name) for name, value in others.items() if name != entry and value is not None),
        architecture=architecture if isinstance(architecture, str) else None,
        epoch=epoch if isinstance(epoch, int) else None,
    )


def _chosen(path: Path, there: list[str], average: bool | None) -> str | None:
    """The entry that holds the weights; None: the file is a state dict itself."""
    wanted = [name for name in there if average is None or (name in AVERAGES) == average]
    if wanted or (not there and not average):
        return wanted[0] if wanted else None
    kind, found = ("moving average", AVERAGES) if average else ("weights but their moving average", PLAIN)
    raise UsageError(
        f"{path} holds no {kind} ({' or '.join(found)}); there is {', '.join(there) or 'a state dict alone'}: ask for that"
    )


def _without_wrappers(path: Path, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Tensors under their model's own names, and what was taken off.

    Raises:
        HostError: two of them would have one name, or one is no plain tensor.
    """
    found: dict[str, Tensor] = {}
    stripped: dict[str, None] = {}
    for name, tensor in tensors.items():
        wrappers = list(_wrappers(name))
        bare = name[sum(map(len, wrappers)) :]
        if bare in found:
            raise HostError(
                f"{path} holds two tensors for {bare}, with and without {' or '.join(WRAPPERS)}; save it again"
            )
        if tensor.layout != torch.strided or tensor.is_quantized:
            raise HostError(f"{path}: {bare} is sparse or quantized, and weights are plain tensors; save it as one")
        found[bare] = tensor
        stripped.update(dict.fromkeys(wrappers))
    return found, tuple(stripped)


def _wrappers(name: str) -> Iterator[str]:
    """The wrappers at the beginning of a name, in whatever order and however often."""
    while wrapper := next((each for each in WRAPPERS if name.startswith(each)), None):
        yield wrapper
        name = name.removeprefix(wrapper)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
