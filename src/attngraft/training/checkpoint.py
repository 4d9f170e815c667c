"""What a run needs to go on, in one file that is whole or not there; and its best weights, for others.

Models and optimizers are read and set through torch.distributed.checkpoint's state-dict functions, so that DDP and
FSDP runs save whole tensors under the model's own names, and a checkpoint fits any number of processes.
"""

from __future__ import annotations

import json
import logging
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
from attngraft.tensors import unshared
from attngraft.training.run_folder import Metrics, RunFolder
from attngraft.training.stages import Stages

FORMAT = 1
_DAMAGE = (OSError, EOFError, RuntimeError, KeyError, ValueError, pickle.UnpicklingError, zipfile.BadZipFile)

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class Counters:
    """Where a run stands: `step` updates of epoch `epoch` (both from 0) are made, `rows` are the finished epochs."""

    epoch: int = 0
    step: int = 0
    seconds: float = 0.0  #: spent on the running epoch so far
    sums: dict[str, float] = field(default_factory=dict)  #: of this process's losses over the running epoch
    rows: list[Metrics] = field(default_factory=list)
    best: dict[str, float] = field(default_factory=dict)  #: best primary metric so far, per kind of weights

    @property
    def moved(self) -> bool:
        """Whether any update was made: only then has an optimizer states of its own."""
        return bool(self.epoch or self.step)


@dataclass(frozen=True, kw_only=True)
class Learner:
    """What changes while a run learns."""

    accelerator: Accelerator
    model: nn.Module  #: as prepared by accelerate
    optimizer: torch.optim.Optimizer  #: as prepared by accelerate
    ema: ModelEmaV3 | None
    counters: Counters
    stages: Stages


def model_state(model: nn.Module) -> dict[str, Tensor]:
    """The whole weights under plain names, on the CPU; empty but in the first process of a distributed run."""
    return cast(dict[str, Tensor], get_model_state_dict(model, options=_whole()))


def save(run: RunFolder, learner: Learner) -> None:
    """Write `last.pt`; the one before becomes `previous.pt`. All processes take part, the first one writes.

    Raises:
        TrainingError: a weight is not finite; nothing is written.
    """
    counters, scaler = learner.counters, learner.accelerator.scaler
    state = {
        "format": FORMAT,
        "model": model_state(learner.model),
        "parked": detached_state(_core(learner)),
        "optimizer": _optimizer_state(learner),
        "ema": learner.ema.module.state_dict() if learner.ema else None,
        "scaler": scaler.state_dict() if scaler else None,
        "sums": gather_object([counters.sums]),
        "counters": {name: getattr(counters, name) for name in ("epoch", "step", "seconds", "rows", "best")},
    }
    if not learner.accelerator.is_main_process:
        return
    _refuse_not_finite(state["model"], counters)
    if run.last.exists():
        _keep_previous(run)
    with atomic_file(run.last) as file:
        torch.save(state, file)


def _core(learner: Learner) -> nn.Module:
    """The model without what accelerate and the compiler put around it."""
    return cast(nn.Module, extract_model_from_parallel(learner.model, keep_torch_compile=False))


def load_detached(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Give the modules of the host that grafts stand in for what `state`, a checkpoint, holds of them.

    Without a checkpoint they are not the run's own, and undo is to refuse them.
    """
    if "parked" in state:
        load_detached_state(model, state["parked"])
    else:
        for _, site in sites_with_detached(model):
            site.whole = False


def _optimizer_state(learner: Learner) -> dict[str, Any]:
    """Of an optimizer that has made a step: to read another's, torch would make an empty one, which counts."""
    if not learner.counters.moved:
        return {}
    return get_optimizer_state_dict(learner.model, learner.optimizer, options=_whole())


def restore(run: RunFolder, learner: Learner) -> bool:
    """Set `learner` to what `last.pt` says; False where there is no checkpoint yet.

    A damaged `last.pt` gives way to `previous.pt`, with a warning: the run only repeats a little. It is put aside as
    `damaged.pt`, so that the next checkpoint does not make it the previous one.

    Raises:
        TrainingError: no checkpoint can be read; names the file and the remedy.
    """
    accelerator = learner.accelerator
    state = _read_and_mend(run) if accelerator.is_main_process else None
    plain = _broadcast({name: state[name] for name in ("sums", "counters", "scaler")} if state else None)
    if plain is None:
        return False
    state = state or {"model": {}, "optimizer": {}, "ema": {}}
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=accelerator.num_processes > 1)
    for name, value in plain["counters"].items():
        setattr(learner.counters, name, value)
    learner.counters.sums = _own_sums(plain["sums"], accelerator)
    learner.stages.enter_last(epoch=learner.counters.epoch, step=learner.counters.step)
    if learner.counters.moved:
        # the optimizer first: to have a state to fill, torch makes an empty step
        set_optimizer_state_dict(learner.model, learner.optimizer, state["optimizer"], options=options)
    set_model_state_dict(learner.model, state["model"], options=options)
    if "parked" in state:  # in the first process; the others have what they began with, which is the same
        load_detached(_core(learner), state)
    if learner.ema:
        set_model_state_dict(learner.ema.module, state["ema"], options=options)
    if accelerator.scaler:
        accelerator.scaler.load_state_dict(plain["scaler"])
    return True


def _read_and_mend(run: RunFolder) -> dict[str, Any] | None:
    """`read_checkpoint`, after which `last.pt` is the one that was read."""
    path, state = _newest(run)
    if path == run.previous:
        if run.last.exists():
            os.replace(run.last, run.checkpoints / "damaged.pt")
        os.replace(run.previous, run.last)
    return state


def read_checkpoint(run: RunFolder) -> dict[str, Any] | None:
    """What `last.pt` holds, or `previous.pt` where that is damaged (with a warning); None where there is neither.

    Raises:
        TrainingError: none can be read; names the files and the remedy.
    """
    return _newest(run)[1]


def _newest(run: RunFolder) -> tuple[Path | None, dict[str, Any] | None]:
    """The newest checkpoint that can be read, and what it holds."""
    problems = []
    for path in (run.last, run.previous):
        if not path.exists():
            continue
        try:
            state = _read_one(path)
        except _DAMAGE as error:
            problems.append(f"{path}: this checkpoint is damaged ({str(error).splitlines()[0]})")
            continue
        if problems:
            log.warning("%s; going on from %s", problems[0], path.name)
        return path, state
    if problems:
        raise TrainingError(
            f"{'; '.join(problems)}. Put a good copy there, or delete {run.checkpoints} to start this run again"
        )
    return None, None


def save_weights(path: Path, weights: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """`weights` as safetensors, with `facts` as JSON in the file's metadata."""
    metadata = {
        "attngraft": json.dumps(dict(facts))
    }  # one entry: safetensors keeps no order, and equal runs give equal files
    write_atomically(path, safetensors.torch.save(unshared(weights), metadata))


def load_weights(path: Path, model: nn.Module) -> dict[str, Any]:
    """Fill `model` with the weights at `path`; the file's facts are returned.

    Raises:
        TrainingError: the file is missing, damaged, or of another model.
    """
    try:
        with safe_open(path, framework="pt") as file:
            facts: dict[str, Any] = json.loads((file.metadata() or {}).get("attngraft", "{}"))
        model.load_state_dict(safetensors.torch.load_file(path))
    except (OSError, SafetensorError) as error:
        raise TrainingError(f"{path}: these weights cannot be read: {error}") from None
    except RuntimeError as error:
        raise TrainingError(f"{path}: these weights are of another model: {error}") from None
    return facts


def _whole() -> StateDictOptions:
    return StateDictOptions(full_state_dict=True, cpu_offload=True)


def _read_one(path: Path) -> dict[str, Any]:
    with zipfile.ZipFile(path) as archive:
        if broken := archive.testzip():  # torch does not look at the checksums that it writes
            raise ValueError(f"checksum of {broken} is wrong")
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    if state["format"] > FORMAT:
        raise TrainingError(
            f"{path}: written by a newer release (format {state['format']}, this one reads up to {FORMAT}); "
            "upgrade attngraft"
        )
    return state


def _keep_previous(run: RunFolder) -> None:
    """Give the old checkpoint a second name; where the file system has no links there is just no previous one."""
    try:
        run.previous.unlink(missing_ok=True)
        os.link(run.last, run.previous)
    except OSError:
        log.debug("no previous checkpoint is kept: %s has no hard links", run.checkpoints)


def _refuse_not_finite(weights: Mapping[str, Tensor], counters: Counters) -> None:
    bad = [name for name, tensor in weights.items() if tensor.is_floating_point() and not tensor.isfinite().all()]
    if bad:
        raise TrainingError(
            f"weights are not finite in epoch {counters.epoch + 1} after step {counters.step} ({', '.join(bad[:5])}"
            f"{f' and {len(bad) - 5} more' if len(bad) > 5 else ''}); the last checkpoint, from before, was kept"
        )


def _own_sums(sums: list[dict[str, float]], accelerator: Accelerator) -> dict[str, float]:
    """This process's sums; the mean of all where the run goes on with another number of processes."""
    if len(sums) == accelerator.num_processes:
        return sums[accelerator.process_index]
    return {name: sum(each[name] for each in sums) / len(sums) for name in sums[0]}


def _broadcast(value: Any) -> Any:
    return broadcast_object_list([value])[0]
