"""Load weights into a host: safe reading, adaptation as in timm, and a check of all names.

`load_official` loads the authors' checkpoints, as published or converted by `attngraft convert`; nothing is downloaded:

    model = timm.create_model("bixt_ti_l64_p16_ft384")
    load_official(model, "bixt_ti_l64_p16.pth.tar")     # trained at 224 pixels

`create_model(..., weights=FILE)` and `--weights FILE` read the same files.
"""

import os
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from timm.layers import resample_abs_pos_embed_nhwc
from timm.models import adapt_input_conv
from torch import Tensor, nn

from attngraft.attention import is_graft, plain_class
from attngraft.errors import HostError, UsageError
from attngraft.files import user_path
from attngraft.models.checkpoint_file import SUFFIXES, CheckpointFile, read_checkpoint
from attngraft.models.transformers_folder import HOST as TRANSFORMERS
from attngraft.models.transformers_folder import folder_tensors, refuse_without_config, transformers_folder
from attngraft.opening import read_json
from attngraft.suggest import shortened
from attngraft.tensors import other_kinds

#: paths of weights in folders of runs, exported models, and the Hugging Face Hub; the first that exists is used
IN_FOLDERS = ("checkpoints/best.safetensors", "checkpoints/last.pt", "model.safetensors", "pytorch_model.bin")
#: class whose parameters have the names of the authors' checkpoints -> name of an example model
OFFICIAL = {
    "attngraft.models.bixt.model.BiXT": "bixt_ti_l64_p16",
    "attngraft.models.captioning.model.M2Transformer": "m2_transformer",
    "attngraft.models.elsa.swin.ElsaSwin": "elsa_swin_tiny",
    "attngraft.models.elsa.volo.ElsaVolo": "elsa_volo_d1",
    "attngraft.models.t2t_vit.T2TViT": "t2t_vit_14",
    "timm.models.volo.VOLO": "volo_d1_224",
}
_MAX_NAMES = 8  #: in a message


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """Result of fitting a file's tensors to a model."""

    path: Path
    new: tuple[str, ...] = ()  #: tensors of the head that keep their initial values
    resized: tuple[str, ...] = ()
    classes: int | None = None  #: number of classes of the file's head; None if the head was not loaded

    def __str__(self) -> str:
        parts = [f"a new head: {shortened(self.new, _MAX_NAMES)}"] if self.new else []
        parts += [f"with its head for {self.classes} classes"] if self.classes else []
        parts += [f"resized: {shortened(self.resized, _MAX_NAMES)}"] if self.resized else []
        return f"weights of {self.path}" + (f" ({'; '.join(parts)})" if parts else "")


@dataclass(frozen=True, kw_only=True)
class WeightsFile:
    """Contents of a file: tensors of a host, and of its grafts if a grafted model was saved."""

    path: Path
    host: Mapping[str, Tensor]
    grafts: Mapping[str, Tensor]
    architecture: str | None = None  #: name of the model, if the file contains it
    #: arguments of the model's factory, if the file contains them
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def fill_host(self, model: nn.Module, *, new_head: bool = True) -> Fitted:
        """Load the host's tensors into `model`, which has no grafts yet.

        The checkpoint filter of the model's family (usually timm's) adapts names, position and patch embeddings. The first
        convolution is adapted to the model's number of channels. A head for another number of classes is not loaded.

        Args:
            new_head: if False, raise an error for a head with another number of classes.

        Raises:
            HostError: tensors are missing, unexpected or of another shape; all are listed. The model is not changed.
        """
        values, fitted = self.fit(model, new_head=new_head)
        model.load_state_dict(values, strict=False)
        return fitted

    def fit(self, model: nn.Module, *, new_head: bool = True) -> tuple[dict[str, Tensor], Fitted]:
        """Return the tensors that `fill_host` loads, and its result. The model may be on the meta device.

        Raises:
            HostError: see `fill_host`.
        """
        refusal = _of_family(model, "checkpoint_refusal_fn")
        reason = refusal(self.architecture, self.arguments, model) if refusal and self.architecture else None
        if reason:
            raise HostError(f"{self.path} is of {self.architecture}, {reason}")
        state = model.state_dict()
        values = self._filtered(model, state)
        resized = [name for name, value in values.items() if name in self.host and self.host[name].shape != value.shape]
        resized += _adapt_first_convolution(model, values, state)
        new = _drop_other_head(model, values, state) if new_head else []
        absent = {name for name in state if name not in values and not name.endswith("num_batches_tracked")} - set(new)
        if problems := _misfits(values, state, missing=absent):
            otherwise = "" if new_head else "; new_head=True keeps a new head for other classes"
            raise HostError(
                f"{self.path} does not fit this {type(model).__name__}: {'; '.join(problems)}. "
                f"Pass the host and the arguments (--host, --host-arg) of these weights{otherwise}"
            )
        classes = getattr(model, "num_classes", None) if _layers(model, "classifier") and not new else None
        return values, Fitted(path=self.path, new=tuple(new), resized=tuple(resized), classes=classes)

    def outputs(self, model: nn.Module) -> int | None:
        """Return the number of outputs of the file's head; None without a head.

        `model` is the host with any number of outputs, on any device.

        Raises:
            HostError: the weights are not of this model.
        """
        values = self._filtered(model, model.state_dict())
        weights = [values[name] for layer in _layers(model, "classifier") if (name := f"{layer}.weight") in values]
        return int(weights[0].shape[0]) if weights else None

    def fill_grafts(self, model: nn.Module) -> None:
        """Load the grafts' tensors, if the file has any, into the grafted `model`.

        Raises:
            HostError: the grafts of the model and of the file differ.
        """
        if not self.grafts:
            return
        state = {name: value for name, value in model.state_dict().items() if is_graft(name)}
        problems = _misfits(self.grafts, state, missing=set(state) - set(self.grafts))
        if problems:
            raise HostError(
                f"{self.path} has weights that were trained with different grafts from this model's: {'; '.join(problems)}. "
                "Pass the graft that the file was trained with, or weights of a host without grafts"
            )
        model.load_state_dict(dict(self.grafts), strict=False)

    def _filtered(self, model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Apply the checkpoint filter of the model's family, which renames tensors and resamples embeddings."""
        values = _without_wrapper(self.host, state)
        adapt = _of_family(model, "checkpoint_filter_fn")
        if adapt is None:
            return values
        # filters recognize layouts by names of the head, so weights without a head borrow the head of the model
        layers = tuple(f"{layer}." for layer in _layers(model, "classifier"))
        head = {name for name in state if layers and name.startswith(layers)}
        borrowed = head - values.keys() if values.keys() <= state.keys() else set()
        try:
            adapted = adapt(values | {name: state[name] for name in state if name in borrowed}, model)
            return {name: value for name, value in adapted.items() if name not in borrowed}
        except (KeyError, AttributeError, IndexError, TypeError, ValueError, RuntimeError) as error:
            raise HostError(
                f"{self.path}: timm cannot read this as weights of {type(model).__name__} "
                f"({type(error).__name__}: {error}); pass the host of these weights"
            ) from error


def load_official(model: nn.Module, path: str | os.PathLike[str], *, new_head: bool = False) -> Fitted:
    """Load published weights into `model`, and return how they fit.

    The checkpoint may be a zip with `model_best.pth.tar`, a bare state dict, or a state dict under `state_dict`, `model`,
    `state_dict_ema` or `model_ema` (the average is preferred), with names that start with `module.` and `_orig_mod.`, in
    torch's or safetensors' format. Computed buffers (position codes, tables of windows) are recomputed or resampled, so
    weights trained at one image size fit any other; all other tensors must exist and have the same shape, and no
    tensor may be left over.

    Args:
        model: a BiXT, ELSA-Swin, ELSA-VOLO, T2T-ViT, M2 captioner, or timm's VOLO, without grafts.
        new_head: keep a new head for another number of classes.

    Raises:
        UsageError: the model is none of these or has grafts, or the file does not exist.
        HostError: the file is damaged or contains more than tensors and arguments; tensors are missing, left over or of
            other shapes (all are listed); or they belong to a model with another number of heads. The model is not changed.
    """
    kind = plain_class(model)
    if f"{kind.__module__}.{kind.__qualname__}" not in OFFICIAL:
        raise UsageError(
            f"load_official supports models whose authors published weights ({', '.join(OFFICIAL.values())}, ...), not a "
            f"{kind.__name__}; for others, call attngraft.create_model(NAME, weights=FILE)"
        )
    if any(map(is_graft, model.state_dict())):
        raise UsageError("load_official requires a model without grafts; load first, then call attngraft.graft")
    file = read_weights(path)
    fitted = file.fill_host(model, new_head=new_head)
    file.fill_grafts(model)  # refuses a file with grafts
    return fitted


def read_weights(path: str | os.PathLike[str], *, host: str = "") -> WeightsFile:
    """Read the tensors of a safetensors file, or of a torch file with `weights_only=True`.

    For the folder of a run, reads its best weights; for the folder of an exported model, the weights of its host.
    Checkpoints may store their weights under `model`, `state_dict`, `model_ema` or `state_dict_ema` (the average is
    preferred); prefixes of wrappers are removed.

    Args:
        host: name of the model. For `transformers_classifier`, `path` may be a folder written by transformers.

    Raises:
        UsageError: the file does not exist, is of another kind, or has weights that were folded for inference.
        HostError: the file is damaged, contains more than plain tensors, or has no weights of a host.
    """
    file = user_path(path)
    if host.startswith("hf:") and (folder := transformers_folder(file)) is not None:
        raise UsageError(
            f"{path}: transformers saved these weights; to start from them, use the host hf:{folder} with --pretrained"
        )
    if host == TRANSFORMERS:
        folder = transformers_folder(file)
        if folder is not None:
            return split_weights(*folder_tensors(folder))
        refuse_without_config(file)
    if file.is_dir():
        file = _in_folder(file)
    _refuse_folded(file)
    return weights_of(read_checkpoint(file))


def weights_of(checkpoint: CheckpointFile) -> WeightsFile:
    """Split the tensors of a checkpoint into tensors of the host and of grafts.

    Raises:
        HostError: the checkpoint contains no weights of a host.
    """
    facts = {"architecture": checkpoint.architecture, "arguments": checkpoint.arguments}
    return split_weights(checkpoint.path, checkpoint.tensors, **facts)


def split_weights(file: Path, tensors: Mapping[str, Tensor], **facts: Any) -> WeightsFile:
    """Split tensors into tensors of the host and of grafts.

    Raises:
        HostError: there are no tensors of a host.
    """
    host = {name: value for name, value in tensors.items() if not is_graft(name)}
    grafts = {name: value for name, value in tensors.items() if is_graft(name)}
    if not host:
        what = "only grafts; use attngraft.load_grafts" if grafts else "no named tensors"
        raise HostError(f"{file} has no weights of a host: {what}")
    return WeightsFile(path=file, host=host, grafts=grafts, **facts)


def _volo_filter(state_dict: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Resample `pos_embed` (1, rows, columns, C) to the model's grid, which timm omits for VOLO."""
    positions, own = state_dict.get("pos_embed"), getattr(model, "pos_embed", None)
    if positions is None or own is None or positions.ndim != 4 or positions.shape == own.shape:
        return state_dict
    return state_dict | {"pos_embed": resample_abs_pos_embed_nhwc(positions, list(own.shape[1:3]))}


def _of_family(model: nn.Module, function: str) -> Callable[..., Any] | None:
    """Return `function` from the Python module of the model's class or of a base class; None if missing.

    `checkpoint_filter_fn(state_dict, model)`, as in timm, adapts weights. `checkpoint_refusal_fn(architecture, arguments,
    model)`, only in attngraft, returns why weights of `architecture` do not fit although all shapes match, or None.
    """
    for base in type(model).__mro__:
        found = getattr(sys.modules.get(base.__module__), function, None)
        if callable(found):
            return cast(Callable[..., Any], found)
        if base.__module__ == "timm.models.volo" and function == "checkpoint_filter_fn":
            return _volo_filter
    return None


def _adapt_first_convolution(model: nn.Module, values: dict[str, Tensor], state: Mapping[str, Tensor]) -> list[str]:
    """Adapt RGB weights to the model's number of channels, and return the names of changed tensors."""
    changed = []
    for layer in _layers(model, "first_conv"):
        name = f"{layer}.weight"
        if name not in values or name not in state or values[name].shape == state[name].shape or values[name].ndim != 4:
            continue
        try:
            adapted = adapt_input_conv(state[name].shape[1], values[name])
        except NotImplementedError:
            continue  # reported as a misfit
        if adapted.shape == state[name].shape:
            values[name] = adapted
            changed.append(name)
    return changed


def _drop_other_head(model: nn.Module, values: dict[str, Tensor], state: Mapping[str, Tensor]) -> list[str]:
    """Remove a head with another number of classes from `values`.

    Returns the names of the tensors that keep their initial values.
    """
    new = []
    for layer in _layers(model, "classifier"):
        parent = layer.rpartition(".")[0]
        if parent and not any(name.startswith(f"{parent}.") for name in values):
            layer = parent  # a file without a head also lacks the norm before the layer
        own, stored = (
            {name for name in names if name.startswith(f"{layer}.") and not name.endswith("num_batches_tracked")}
            for names in (state, values)
        )
        if own != stored or any(values[name].shape != state[name].shape for name in own):
            for name in stored:
                del values[name]
            new += sorted(own)
    return new


def _layers(model: nn.Module, entry: str) -> tuple[str, ...]:
    """Return the paths of the layers that timm's configuration of the model lists under `entry`."""
    value = (getattr(model, "pretrained_cfg", None) or {}).get(entry) or ()
    return (value,) if isinstance(value, str) else tuple(value)


def _misfits(values: Mapping[str, Tensor], state: Mapping[str, Tensor], *, missing: Collection[str]) -> list[str]:
    shapes = [
        f"{name} {tuple(values[name].shape)} where {tuple(value.shape)} fits"
        for name, value in state.items()
        if name in values and value.shape != values[name].shape
    ]
    found = {
        "it lacks": [name for name in state if name in missing],
        "unexpected:": sorted(name for name in values if name not in state),
        "other shapes:": shapes,
        "other numbers:": other_kinds(values, state),
    }
    return [f"{what} {shortened(names, _MAX_NAMES)}" for what, names in found.items() if names]


def _in_folder(folder: Path) -> Path:
    """Return the weights file in the folder of a run or an exported model."""
    for name in IN_FOLDERS:
        if (folder / name).is_file():
            return folder / name
    files = sorted(path.name for path in folder.iterdir() if path.suffix in SUFFIXES)
    hint = f"; it contains {', '.join(files[:3])}: pass one of them" if files else ""
    raise UsageError(f"{folder} has no {' or '.join(IN_FOLDERS)}, so it is not a run or an exported model{hint}")


def _refuse_folded(file: Path) -> None:
    """Refuse weights with folded grafts, batch norms or scales, which cannot initialize training."""
    try:
        folds = read_json(file.parent / "attngraft.json").get("folds", ())
        moved = [entry["folded"] for entry in folds if entry.get("folded") and not entry.get("removed")]
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return  # not an exported model, or a damaged one, for which `attngraft.load` has a better message
    if moved:
        raise UsageError(
            f"{file} contains weights folded for inference ({moved[0]}), which cannot initialize training; pass the "
            "run, or a folder exported without --fold"
        )


def _without_wrapper(values: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Remove a common prefix (`model.`, `backbone.`) from all names if they then match the model's names."""
    bare = dict(values)
    while len(bare) > 1 and not state.keys() & bare.keys():
        prefix = next(iter(bare)).partition(".")[0] + "."
        if not all(name.startswith(prefix) and name != prefix for name in bare):
            break
        bare = {name.removeprefix(prefix): value for name, value in bare.items()}
    return bare if 2 * len(state.keys() & bare.keys()) >= len(state) else dict(values)
