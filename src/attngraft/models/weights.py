"""A file of weights put into a host: read without running code, made to fit as timm does, and checked name by name."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from timm.models import adapt_input_conv
from torch import Tensor, nn

from attngraft.attention import is_graft
from attngraft.errors import HostError, UsageError
from attngraft.models.checkpoint_file import SUFFIXES, CheckpointFile, read_checkpoint
from attngraft.models.transformers_folder import HOST as TRANSFORMERS
from attngraft.models.transformers_folder import folder_tensors, refuse_without_config, transformers_folder

#: where weights lie in a run's folder, an exported model's, or one of the Hugging Face Hub; the first that is there
IN_FOLDERS = ("checkpoints/best.safetensors", "checkpoints/last.pt", "model.safetensors", "pytorch_model.bin")
#: modules of models that say nothing of weights, and who does in their place
STAND_INS = {"timm.models.volo": "attngraft.models.volo_weights"}
_SHOWN = 8  #: names in a message


@dataclass(frozen=True, kw_only=True)
class WeightsFile:
    """What a file holds: a host's tensors, and those of grafts where a grafted model was saved."""

    path: Path
    host: Mapping[str, Tensor]
    grafts: Mapping[str, Tensor]
    architecture: str | None = None  #: name of the model that the file says they are of
    arguments: Mapping[str, Any] = field(default_factory=dict)  #: of its factory, where the file says them

    def fill_host(self, model: nn.Module, *, new_head: bool = True) -> Fitted:
        """Put the host's tensors into `model`, which has no grafts yet.

        Position embeddings, patch embeddings and names are made to fit by timm's own filter of the model's family, the
        first convolution takes another number of channels, and a head of another number of classes stays new.

        Args:
            new_head: whether it may; otherwise such a head is one of the misfits.

        Raises:
            HostError: tensors are missing, left over or of another shape; lists them. The model was left as it was.
        """
        values, fitted = self.fit(model, new_head=new_head)
        model.load_state_dict(values, strict=False)
        return fitted

    def fit(self, model: nn.Module, *, new_head: bool = True) -> tuple[dict[str, Tensor], Fitted]:
        """What `fill_host` would put into `model`, and what it would say of that. The model may be on the meta device.

        Raises:
            HostError: as `fill_host`.
        """
        self._refuse_architecture(model)
        own = model.state_dict()
        values = self._filtered(model, own)
        resized = [name for name, value in values.items() if name in self.host and self.host[name].shape != value.shape]
        resized += _adapt_first_convolution(model, values, own)
        new = _drop_other_head(model, values, own) if new_head else []
        self._refuse_misfits(model, values, own, new, new_head=new_head)
        classes = getattr(model, "num_classes", None) if _names(model, "classifier") and not new else None
        return values, Fitted(path=self.path, new=tuple(new), resized=tuple(resized), classes=classes)

    def fill_grafts(self, model: nn.Module) -> None:
        """Put the grafts' tensors, if the file has any, into the grafted `model`.

        Raises:
            HostError: the model's grafts are others than the file's; says what to do.
        """
        if not self.grafts:
            return
        own = {name: value for name, value in model.state_dict().items() if is_graft(name)}
        problems = _misfits(self.grafts, own, missing=set(own) - set(self.grafts))
        if problems:
            raise HostError(
                f"{self.path} holds weights that were trained with grafts, and the grafts here are others: "
                f"{'; '.join(problems)}. Give the graft that the file was trained with, or weights of a host without grafts"
            )
        model.load_state_dict(dict(self.grafts), strict=False)

    def _filtered(self, model: nn.Module, own: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """As timm's filter of the model's family makes it: other layouts renamed, embeddings resampled."""
        values = _without_wrapper(self.host, own)
        adapt = _beside(model, "checkpoint_filter_fn")
        if adapt is None:
            return values
        # filters tell layouts apart by names of the head, too; weights without one borrow it
        borrowed = {name for name in _head(model, own) if name not in values} if values.keys() <= own.keys() else set()
        try:
            adapted = adapt(values | {name: own[name] for name in borrowed}, model)
            return {name: value for name, value in adapted.items() if name not in borrowed}
        except (KeyError, AttributeError, IndexError, TypeError, ValueError, RuntimeError) as error:
            raise HostError(
                f"{self.path}: timm cannot read this as weights of {type(model).__name__} "
                f"({type(error).__name__}: {error}); give the host that the weights are of"
            ) from error

    def _refuse_architecture(self, model: nn.Module) -> None:
        """Refuse what shapes do not show, where the file says its model and the family knows of such things."""
        refusal = _beside(model, "checkpoint_refusal_fn")
        if refusal is None or self.architecture is None:
            return
        if reason := refusal(self.architecture, self.arguments, model):
            raise HostError(f"{self.path} is of {self.architecture}, {reason}")

    def _refuse_misfits(
        self,
        model: nn.Module,
        values: Mapping[str, Tensor],
        own: Mapping[str, Tensor],
        new: Iterable[str],
        *,
        new_head: bool,
    ) -> None:
        missing = {name for name in own if name not in values and not name.endswith("num_batches_tracked")} - set(new)
        problems = _misfits(values, own, missing=missing)
        if problems:
            otherwise = "" if new_head else "; new_head=True lets a head for other classes stay new"
            raise HostError(
                f"{self.path} does not fit this {type(model).__name__}: {'; '.join(problems)}. "
                f"Give the host and the arguments (--host, --host-arg) that the weights are of{otherwise}"
            )


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """What became of a file's tensors."""

    path: Path
    new: tuple[str, ...] = ()  #: the head's tensors that keep their fresh values
    resized: tuple[str, ...] = ()
    classes: int | None = None  #: how many classes the file's head is for, where it took its place

    def __str__(self) -> str:
        parts = [f"a new head: {_some(self.new)}"] if self.new else []
        parts += [f"with its head for {self.classes} classes"] if self.classes else []
        parts += [f"resized: {_some(self.resized)}"] if self.resized else []
        return f"weights of {self.path}" + (f" ({'; '.join(parts)})" if parts else "")


def read_weights(path: str | os.PathLike[str], *, host: str = "") -> WeightsFile:
    """The tensors in a safetensors file, or in a torch file that is read with `weights_only=True`.

    A folder stands for the best weights of the run in it, or for the host's of a model that was exported to it.
    Checkpoints that keep their weights under `model`, `state_dict`, `model_ema` or `state_dict_ema` are understood (the
    average is preferred), and prefixes of wrappers are taken off.

    Args:
        host: name of the model that they are for. For `transformers_classifier` a folder may be one of transformers.

    Raises:
        UsageError: there is no such file, it is of another kind, or of a model that was folded for inference.
        HostError: the file is damaged, holds more than plain tensors, or no weights of a host.
    """
    file = Path(path).expanduser()
    if host == TRANSFORMERS:
        folder = transformers_folder(file)
        if folder is not None:
            return _split(*folder_tensors(folder))
        refuse_without_config(file)
    if file.is_dir():
        file = _in_folder(file)
    _refuse_folded(file)
    return weights_of(read_checkpoint(file))


def weights_of(checkpoint: CheckpointFile) -> WeightsFile:
    """What a checkpoint holds, taken apart.

    Raises:
        HostError: it holds no weights of a host.
    """
    facts = {"architecture": checkpoint.architecture, "arguments": checkpoint.arguments}
    return _split(checkpoint.path, checkpoint.tensors, **facts)


def _split(file: Path, tensors: Mapping[str, Tensor], **facts: Any) -> WeightsFile:
    host = {name: value for name, value in tensors.items() if not is_graft(name)}
    grafts = {name: value for name, value in tensors.items() if is_graft(name)}
    if not host:
        what = "only grafts (attngraft.load_grafts reads such a file)" if grafts else "no tensors under names"
        raise HostError(f"{file} holds {what}, not the weights of a host")
    return WeightsFile(path=file, host=host, grafts=grafts, **facts)


def _beside(model: nn.Module, function: str) -> Callable[..., Any] | None:
    """What a model's family says of weights, in the module of the model's class or of one that it derives from.

    `checkpoint_filter_fn(state_dict, model)` is timm's: weights made to fit. `checkpoint_refusal_fn(architecture, arguments,
    model)` is ours: why weights of that model do not serve this one though all shapes fit, or None.
    """
    for base in type(model).__mro__:
        beside = [sys.modules.get(base.__module__)]
        if base.__module__ in STAND_INS:
            beside.append(importlib.import_module(STAND_INS[base.__module__]))
        for module in beside:
            found = getattr(module, function, None)
            if callable(found):
                return cast(Callable[..., Any], found)
    return None


def _adapt_first_convolution(model: nn.Module, values: dict[str, Tensor], own: Mapping[str, Tensor]) -> list[str]:
    """Weights for RGB images made to take as many channels as the model does; the names of what was changed."""
    changed = []
    for layer in _names(model, "first_conv"):
        name = f"{layer}.weight"
        if name not in values or name not in own or values[name].shape == own[name].shape or values[name].ndim != 4:
            continue
        try:
            adapted = adapt_input_conv(own[name].shape[1], values[name])
        except NotImplementedError:
            continue  # named among the misfits
        if adapted.shape == own[name].shape:
            values[name] = adapted
            changed.append(name)
    return changed


def _drop_other_head(model: nn.Module, values: dict[str, Tensor], own: Mapping[str, Tensor]) -> list[str]:
    """Leave out a head of another number of classes, or note that there is none; the names that stay new."""
    new = []
    for layer in _names(model, "classifier"):
        around = layer.rpartition(".")[0]
        if around and not any(name.startswith(f"{around}.") for name in values):
            layer = around  # without classes the whole head goes, with the norm in front of its layer
        here, there = (
            {name for name in names if name.startswith(f"{layer}.") and not name.endswith("num_batches_tracked")}
            for names in (own, values)
        )
        if here != there or any(values[name].shape != own[name].shape for name in here):
            for name in there:
                del values[name]
            new += sorted(here)
    return new


def _head(model: nn.Module, own: Iterable[str]) -> list[str]:
    """Names of the classifier's tensors."""
    layers = tuple(f"{layer}." for layer in _names(model, "classifier"))
    return [name for name in own if name.startswith(layers)] if layers else []


def _names(model: nn.Module, entry: str) -> tuple[str, ...]:
    """Layers that timm's configuration of the model names under `entry`."""
    value = (getattr(model, "pretrained_cfg", None) or {}).get(entry) or ()
    return (value,) if isinstance(value, str) else tuple(value)


def _misfits(values: Mapping[str, Tensor], own: Mapping[str, Tensor], *, missing: Collection[str]) -> list[str]:
    shapes = [
        f"{name} {tuple(values[name].shape)} where {tuple(value.shape)} fits"
        for name, value in own.items()
        if name in values and value.shape != values[name].shape
    ]
    found = {
        "it lacks": [name for name in own if name in missing],
        "nothing takes its": sorted(name for name in values if name not in own),
        "other shapes:": shapes,
    }
    return [f"{what} {_some(names)}" for what, names in found.items() if names]


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more


def _in_folder(folder: Path) -> Path:
    """The file of weights in a run's folder, or an exported model's."""
    for name in IN_FOLDERS:
        if (folder / name).is_file():
            return folder / name
    files = sorted(path.name for path in folder.iterdir() if path.suffix in SUFFIXES)
    hint = f"; there are {', '.join(files[:3])}: give one of them" if files else ""
    raise UsageError(f"{folder} is a folder without {' or '.join(IN_FOLDERS)}, neither a run's nor a model's{hint}")


def _refuse_folded(file: Path) -> None:
    """Refuse weights that hold what stood in grafts, batch norms or scales before: no host has trained those."""
    try:
        folds = json.loads((file.parent / "attngraft.json").read_text(encoding="utf-8")).get("folds", ())
        moved = [entry["folded"] for entry in folds if entry.get("folded") and not entry.get("removed")]
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return  # no exported model's, or one that `attngraft.load` would refuse with more to say
    if moved:
        raise UsageError(
            f"{file} is of a model that was folded for inference ({moved[0]}), so it is no start for training; give the "
            "run, or a folder exported without --fold"
        )


def _without_wrapper(values: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names without what a wrapper put before all of them (`model.`, `backbone.`), where that makes them the model's."""
    bare = dict(values)
    while len(bare) > 1 and not own.keys() & bare.keys():
        prefix = next(iter(bare)).partition(".")[0] + "."
        if not all(name.startswith(prefix) and name != prefix for name in bare):
            break
        bare = {name.removeprefix(prefix): value for name, value in bare.items()}
    return bare if 2 * len(own.keys() & bare.keys()) >= len(own) else dict(values)
