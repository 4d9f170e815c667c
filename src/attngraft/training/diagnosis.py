"""What is said and written down when a loss is not finite."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from attngraft.errors import TrainingError
from attngraft.training.run_folder import write_json
from attngraft.training.setup import Job

_SHOWN = 8  #: examples and parameters in the message; failure.json has all


def raise_not_finite(job: Job, losses: dict[str, float]) -> NoReturn:
    """Stop before the optimizer moves; name the step, the batch's examples and the gradients' norms.

    Everything goes into `failure.json`, the most telling part into the message. Weights and checkpoints are as they
    were after the step before. Under FSDP the norms are those of this process's shards.

    Raises:
        TrainingError: always.
    """
    counters, accelerator = job.learner.counters, job.accelerator
    accelerator.unscale_gradients()
    norms = _gradient_norms(job.core)
    batches = job.order.micro_batches(counters.epoch, counters.step)
    names = [job.data.train.name(index) for keys in batches for _, index in keys]
    path = job.run.path / (
        "failure.json" if accelerator.is_main_process else f"failure-{accelerator.process_index}.json"
    )
    report: dict[str, Any] = {
        "epoch": counters.epoch + 1,
        "step": counters.step + 1,
        "losses": {name: str(value) for name, value in losses.items()},
        "examples": names,
        "gradient_norms": {name: str(norm) for name, norm in norms.items()},
    }
    write_json(path, report)
    values = ", ".join(f"{name} {value}" for name, value in losses.items())
    raise TrainingError(
        f"the loss is not finite in epoch {counters.epoch + 1}, step {counters.step + 1} ({values}).\n"
        f"  batch: {_some(names)}\n"
        f"  gradient norms: {_some([f'{name} {norm:.3g}' for name, norm in _worst_first(norms)])}\n"
        f"  all of it: {path}\n"
        f"The last checkpoint is from before and good. A lower optimizer.lr, train.clip_grad=1, a longer warm-up or "
        f"another train.amp (now {job.recipe.train.amp}) may help; if the named examples are broken, take them out."
    )


def _gradient_norms(model: torch.nn.Module) -> dict[str, float]:
    return {
        name: float(parameter.grad.norm()) for name, parameter in model.named_parameters() if parameter.grad is not None
    }


def _worst_first(norms: dict[str, float]) -> list[tuple[str, float]]:
    """NaN, then infinite, then the largest."""
    return sorted(norms.items(), key=lambda item: (item[1] == item[1], -item[1] if item[1] == item[1] else 0.0))


def _some(texts: list[str]) -> str:
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return ", ".join(texts[:_SHOWN]) + more
