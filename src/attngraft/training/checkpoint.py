"""Checkpoints of a run: a file with everything needed to resume, written atomically, and best weights.

Models and optimizers are read and set through torch.distributed.checkpoint's state-dict functions, so that DDP and
FSDP runs save whole tensors under the model's own names, and a checkpoint fits any number of processes.
"""

import json
import logging
import math
import os
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import safetensors.torch
import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, extract_model_from_parallel, gather_object
from safetensors import SafetensorError, safe_open
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from attngraft.attention import detached_state, load_detached_state, sites_with_detached
from attngraft.errors import TrainingError
from attngraft.files import atomic_file, write_atomically
from attngraft.opening import check_regular, open_zip, parse_json
from attngraft.strict import are_numbers, is_number
from attngraft.suggest import cut, first_line, shortened
from attngraft.tensors import kind_of, not_finite, other_kinds, unshared
from attngraft.training.freezing import FreezingSchedule
from attngraft.training.run_folder import Metrics, RunFolder

FORMAT = 1
#: entries of a checkpoint; an evaluation needs only the first two
_ENTRIES: dict[str, Any] = {
    "format": int,
    "model": dict,
    "optimizer": dict,
    "ema": dict | None,
    "scaler": dict | None,
    "sums": list,
    "counters": dict,
}
_COUNTERS = {"epoch", "step", "seconds", "rows", "best"}  #: saved fields of `Counters`; `sums` are of each process
_NOT_NEGATIVE = {"lr", "step", "exp_avg_sq"}  #: values in an optimizer's state
_MISFIT = (RuntimeError, LookupError, ValueError, TypeError, AttributeError)
_DAMAGE = (*_MISFIT, OSError, EOFError, pickle.UnpicklingError, zipfile.BadZipFile)

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Counters:
    """Progress of a run: `step` updates of epoch `epoch` (from 0) are done."""

    epoch: int = 0
    step: int = 0
    seconds: float = 0.0  #: spent on training since the last evaluation
    sums: dict[str, float] = field(default_factory=dict)  #: sums of this process's losses since the last evaluation
    rows: list[Metrics] = field(default_factory=list)  #: metrics, one row per evaluation
    best: dict[str, float] = field(default_factory=dict)  #: best primary metric so far: "val", "ema", "stage<n>"

    @property
    def moved(self) -> bool:
        """Return whether any update was made; before the first one, the optimizer has no state."""
        return bool(self.epoch or self.step)


@dataclass(frozen=True, kw_only=True)
class TrainState:
    """Everything that training changes."""

    accelerator: Accelerator
    model: nn.Module  #: as prepared by accelerate
    optimizer: torch.optim.Optimizer  #: as prepared by accelerate
    ema: ModelEmaV3 | None
    counters: Counters
    freezing: FreezingSchedule


def model_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the unsharded weights under plain names, on the CPU; empty except in the main process."""
    return cast(dict[str, Tensor], get_model_state_dict(model, options=_whole()))


def save(run: RunFolder, state: TrainState) -> None:
    """Write `last.pt`, keeping its predecessor as `previous.pt`.

    All processes must call this; only the main process writes.

    Raises:
        TrainingError: a weight is not finite; nothing is written.
    """
    counters, scaler = state.counters, state.accelerator.scaler
    content = {
        "format": FORMAT,
        "model": model_state(state.model),
        "parked": detached_state(_unwrapped(state)),
        "optimizer": _optimizer_state(state),
        "ema": state.ema.module.state_dict() if state.ema else None,
        "scaler": scaler.state_dict() if scaler else None,
        "sums": gather_object([counters.sums]),
        "counters": {name: value for name, value in vars(counters).items() if name in _COUNTERS},
    }
    if not state.accelerator.is_main_process:
        return
    _refuse_not_finite(content["model"], counters)
    if run.last.exists():
        try:
            run.previous.unlink(missing_ok=True)
            os.link(run.last, run.previous)
        except OSError:
            log.debug("no previous checkpoint is kept: %s has no hard links", run.checkpoints)
    with atomic_file(run.last) as file:
        torch.save(content, file)


def _unwrapped(state: TrainState) -> nn.Module:
    """Return the model without the wrappers of accelerate and the compiler."""
    return cast(nn.Module, extract_model_from_parallel(state.model, keep_torch_compile=False))


def load_detached(model: nn.Module, content: Mapping[str, Any]) -> None:
    """Fill the detached originals (host modules that a graft replaces) from `content`, a checkpoint.

    If the checkpoint does not contain them, `ungraft` must not restore them, because their values are not the run's.
    """
    if "parked" in content:
        load_detached_state(model, content["parked"])
    else:
        for _, site in sites_with_detached(model):
            site.whole = False


def _optimizer_state(state: TrainState) -> dict[str, Any]:
    """Return the optimizer's state, which is empty before the first update.

    Reading the state before the first update would make torch perform an empty step.
    """
    if not state.counters.moved:
        return {}
    try:
        return get_optimizer_state_dict(state.model, state.optimizer, options=_whole())
    except ValueError as error:  # for values that torch does not save
        raise TrainingError(
            f"the state of the optimizer cannot be saved ({cut(first_line(error), 200)}); choose another (optimizer.name)"
        ) from error


def restore(run: RunFolder, state: TrainState) -> bool:
    """Load `last.pt` into `state` and return True; return False if there is no checkpoint yet.

    A damaged `last.pt` is replaced by `previous.pt`, with a warning, and the run repeats some updates. The damaged
    file is renamed to `damaged.pt`, so that the next checkpoint does not turn it into `previous.pt`.

    Raises:
        TrainingError: no checkpoint can be read; the message names the file and the remedy.
    """
    accelerator, counters = state.accelerator, state.counters
    content = _read_and_repair(run) if accelerator.is_main_process else None
    if content is not None and (missing := _ENTRIES.keys() - content.keys()):
        raise unusable(run, f"lacks {', '.join(sorted(missing))}")
    plain = content and {name: content[name] for name in ("sums", "counters", "scaler")}
    if content is not None and plain is not None:
        plain["trained"] = set(content["optimizer"].get("state", ()))
    plain = broadcast_object_list([plain])[0]
    if plain is None:
        return False
    content = content or {"model": {}, "optimizer": {}, "ema": {}}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=accelerator.num_processes > 1)
    for name, value in plain["counters"].items():
        setattr(counters, name, value)
    sums = plain["sums"]
    if len(sums) == accelerator.num_processes:
        counters.sums = sums[accelerator.process_index]
    else:  # another number of processes than before: use the mean over the old ones
        counters.sums = {name: sum(each[name] for each in sums) / len(sums) for name in sums[0]}
    try:
        if counters.moved:  # the optimizer first, because torch performs an empty step to create the state to fill
            if plain["trained"]:
                state.freezing.enter_trained(plain["trained"])
            found = _with_settings(content["optimizer"], state, content["model"])
            if plain["trained"]:  # plain SGD has no state, and torch refuses to load an empty one
                set_optimizer_state_dict(state.model, state.optimizer, found, options=options)
        set_model_state_dict(state.model, content["model"], options=options)
        if "parked" in content:  # only in the main process; the other processes have the same initial values
            load_detached(_unwrapped(state), content)
        if state.ema:
            set_model_state_dict(state.ema.module, content["ema"], options=options)
        if accelerator.scaler:
            accelerator.scaler.load_state_dict(plain["scaler"])
    except _MISFIT as error:
        raise unusable(run, f"does not fit the run ({cut(first_line(error), 300)})") from error
    return True


def unusable(run: RunFolder, reason: str) -> TrainingError:
    """Return the error for a checkpoint with which a run cannot resume."""
    return TrainingError(
        f"{run.last}: this checkpoint {reason}; restore a good copy, or delete {run.checkpoints} to start this run again"
    )


def _with_settings(found: Mapping[str, Any], state: TrainState, weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the optimizer's state `found` in a checkpoint with the settings of the recipe; {} in other processes.

    Raises:
        ValueError: it is not the state of the run's optimizer.
    """
    optimizer = state.optimizer
    before = [dict(group) for group in optimizer.param_groups]
    fresh: Any = get_optimizer_state_dict(state.model, optimizer, options=_whole())  # torch performs an empty step
    if not state.accelerator.is_main_process:
        return {}
    states, expected = found.get("state", {}), fresh["state"]
    if states.keys() != expected.keys():
        others = shortened(sorted(states.keys() ^ expected.keys()), 3)
        raise ValueError(f"the optimizer's state has missing or additional parameters: {others}")
    for name, entries in states.items():
        for key in expected[name].keys() | entries.keys():
            wanted = expected[name].get(key, weights[name])  # some optimizers add averages of the weights later
            _check_value(entries.get(key), wanted, key=key, where=name)
    stored = {name: group for group in found.get("param_groups", ()) for name in group["params"]}
    for old, new, group in zip(before, optimizer.param_groups, fresh["param_groups"], strict=True):
        for key in group.keys() - {"params"}:
            if key == "lr" or old.get(key) != new[key]:  # all other values are the recipe's
                group[key] = stored[group["params"][0]].get(key)
                _check_value(group[key], new[key], key=key, where="a group of parameters")
    return {**found, "param_groups": fresh["param_groups"]}


def _check_value(value: Any, like: Any, *, key: str, where: str) -> None:
    """Raise a ValueError if a value in an optimizer's state is not of the kind of `like`, or wrongly negative."""
    if not _is_like(value, like):
        raise ValueError(f"{key} of {where} is not that of the recipe's optimizer")
    if key in _NOT_NEGATIVE and not bool((torch.as_tensor(value) >= 0).all()):
        raise ValueError(f"{key} of {where} is negative or not a number")


def _is_like(value: Any, like: Any) -> bool:
    if isinstance(like, Tensor):
        is_like = isinstance(value, Tensor) and kind_of(value) == kind_of(like)
        return is_like and (value.shape, value.dtype) == (like.shape, like.dtype)
    if isinstance(like, list | tuple):
        return isinstance(value, list | tuple) and len(value) == len(like) and all(map(_is_like, value, like))
    return is_number(value) and math.isfinite(value) if is_number(like) else type(value) is type(like)


def _read_and_repair(run: RunFolder) -> dict[str, Any] | None:
    """Read the newest intact checkpoint, and make it `last.pt`."""
    path, content = _newest(run)
    if path == run.previous:
        if run.last.exists():
            os.replace(run.last, run.checkpoints / "damaged.pt")
        os.replace(run.previous, run.last)
    return content


def read_checkpoint(run: RunFolder) -> dict[str, Any] | None:
    """Return the content of the newest intact checkpoint; None if there is no checkpoint.

    Warns if `last.pt` of an unfinished run is damaged and `previous.pt` is used instead.

    Raises:
        TrainingError: neither can be read; the message names the files and the remedy.
    """
    return _newest(run)[1]


def row_of(content: Mapping[str, Any]) -> Metrics:
    """Return the metrics of the weights in a checkpoint, or only their epoch if they were not evaluated."""
    counters = content.get("counters")
    if counters is None:
        return {}
    epoch, rows = counters["epoch"] + (counters["step"] > 0), counters["rows"]
    evaluated = rows and rows[-1].get("epoch") == epoch and not any(content.get("sums", ()))
    return dict(rows[-1]) if evaluated else {"epoch": epoch}


def _newest(run: RunFolder) -> tuple[Path | None, dict[str, Any] | None]:
    problems = []
    for path in run.newest:
        if not path.exists():
            continue
        try:
            content = _read_one(path)
        except _DAMAGE as error:
            problems.append(f"{path}: this checkpoint is damaged ({str(error).splitlines()[0]})")
            continue
        if problems:
            log.warning("%s; resuming from %s", problems[0], path.name)
        return path, content
    if problems:
        raise TrainingError(
            f"{'; '.join(problems)}. Restore a good copy, or delete {run.checkpoints} to start this run again"
        )
    return None, None


def _read_one(path: Path) -> dict[str, Any]:
    with open_zip(path) as file:
        with zipfile.ZipFile(file) as archive:
            if broken := archive.testzip():  # torch writes checksums but does not verify them
                raise ValueError(f"checksum of {broken} is wrong")
        file.seek(0)
        content: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    if isinstance(content, dict) and type(content.get("format")) is int and content["format"] > FORMAT:
        raise TrainingError(
            f"{path}: written by a newer release (format {content['format']}, this one reads up to {FORMAT}); "
            "update attngraft"
        )
    if wrong := _wrong_entry(content):
        raise ValueError(f"its entry {wrong} is missing or wrong")
    return content


def _wrong_entry(content: Any) -> str:
    """Return the name of an entry of a checkpoint that is of another kind or missing, see `_ENTRIES`, or ""."""
    if not isinstance(content, dict):
        return "format"
    for name, kind in _ENTRIES.items():
        if (name in content or name in ("format", "model")) and not isinstance(content.get(name), kind):
            return name
    if not all(isinstance(each, Tensor) for each in content["model"].values()):
        return "model"
    if "sums" in content and not _are_sums(content["sums"]):
        return "sums"
    return "counters" if "counters" in content and not _are_counters(content["counters"]) else ""


def _are_sums(sums: list[Any]) -> bool:
    return bool(sums) and all(are_numbers(each) and each.keys() == sums[0].keys() for each in sums)


def _are_counters(counters: Mapping[str, Any]) -> bool:
    if counters.keys() != _COUNTERS or not isinstance(counters["rows"], list):
        return False
    whole = all(type(counters[name]) is int for name in ("epoch", "step"))
    known = all(is_number(counters[name]) and counters[name] >= 0 for name in ("epoch", "step", "seconds"))
    return whole and known and all(map(are_numbers, [*counters["rows"], counters["best"]]))


def save_weights(path: Path, weights: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write `weights` as safetensors, with `facts` as JSON in the file's metadata."""
    # a single metadata entry: safetensors does not preserve their order, and equal runs must give equal files
    write_atomically(path, safetensors.torch.save(unshared(weights), {"attngraft": json.dumps(dict(facts))}))


def load_best(path: Path, state: TrainState) -> int:
    """Load the best weights at `path` into `state.model` in all processes; return their epoch (from 1).

    Raises:
        TrainingError: the file is missing or damaged.
    """
    epoch: Any = None
    weights: dict[str, Any] = {}
    if state.accelerator.is_main_process:
        weights, facts = _read_weights(path)
        epoch = facts.get("epoch")
        if type(epoch) is not int:
            raise TrainingError(f"{path}: names no epoch; restore the file, or repeat the run")
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=state.accelerator.num_processes > 1)
    set_model_state_dict(state.model, weights, options=options)
    return int(broadcast_object_list([epoch])[0])


def load_weights(path: Path, model: nn.Module) -> dict[str, Any]:
    """Load the weights at `path` into `model` and return the file's metadata.

    Raises:
        TrainingError: the file is missing or damaged, or belongs to a different model.
    """
    weights, facts = _read_weights(path)
    if wrong := other_kinds(weights, model.state_dict()):
        raise TrainingError(f"{path}: {wrong[0]}; restore the file, or repeat the run")
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise other_model(path, error) from None
    return facts


def _read_weights(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the facts in a file written by `save_weights`.

    Raises:
        TrainingError: the file is missing or damaged.
    """
    try:
        check_regular(path)
        with safe_open(path, framework="pt") as file:
            facts = parse_json((file.metadata() or {}).get("attngraft", "{}"))
        if not isinstance(facts, dict):
            raise ValueError("its metadata are not an object")
        return safetensors.torch.load_file(path), facts
    except (OSError, SafetensorError, ValueError) as error:
        raise TrainingError(
            f"{path}: these weights cannot be read ({first_line(error)}); restore the file, or repeat the run"
        ) from None


def other_model(path: Path, error: RuntimeError) -> TrainingError:
    """Return the error for weights that do not fit, of which PyTorch's message has a line for each."""
    return TrainingError(
        f"{path}: these weights belong to a different model ({cut(first_line(error), 300)}); restore this file and "
        "recipe.yaml, or repeat the run"
    )


def _whole() -> StateDictOptions:
    return StateDictOptions(full_state_dict=True, cpu_offload=True)


def _refuse_not_finite(weights: Mapping[str, Tensor], counters: Counters) -> None:
    if bad := not_finite(weights):
        raise TrainingError(
            f"weights are not finite in epoch {counters.epoch + 1} after step {counters.step} "
            f"({shortened(bad, 5)}). The last checkpoint is intact; try a lower "
            "optimizer.lr or train.clip_grad=1"
        )
