"""One update of the weights, for the training loop, the profiler and the search for batches that fit."""

import math
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from accelerate.utils import gather_object, send_to_device
from torch import Tensor, nn

from attngraft.errors import ConfigError
from attngraft.tasks.task import Batch, StepContext, Task
from attngraft.training.checkpoint import TrainState
from attngraft.training.inputs import in_memory_format
from attngraft.training.loading import TrainOrder
from attngraft.training.optimizer import create_schedule
from attngraft.training.randomness import reseed, stream_seed
from attngraft.training.recipe import Recipe
from attngraft.training.stages import StageContext
from attngraft.training.teacher import Teacher

_LARGEST_RATE = 1e30  #: optimizers overflow somewhat above
_EXAMPLES = ""  #: key in the shares for losses without a weight of their own


class Update:
    """Forward and backward of all micro-batches, gradient clipping, optimizer step and moving average.

    An update has two halves, `accumulate_gradients` and `apply`, so that a loss that is not finite can be rejected before
    any weight changes. The random generators are re-seeded from (seed, epoch, step, process) in each update, so a run only
    needs to save weights, optimizer and counters to resume exactly.
    """

    def __init__(
        self,
        recipe: Recipe,
        task: Task,
        *,
        state: TrainState,
        core: nn.Module,
        order: TrainOrder,
        teacher: Teacher | None,
    ) -> None:
        self.recipe, self.task, self.state, self.core, self.teacher = recipe, task, state, core, teacher
        self.order = order
        self._schedule = create_schedule(state.optimizer, recipe, steps=order.steps)
        self._schedule_begin = self._begin = self._before = 0  # first epochs of schedule and stage, updates before it
        self._stage = recipe.all_stages[0].name
        self._losses = _LossSums(state.accelerator.device)
        self._called = in_memory_format(state.model, channels_last=recipe.train.channels_last)
        self._has_weight = True  # whether the last update had any loss weight

    def enter(self, context: StageContext, *, begin: int, before: int) -> None:
        """Use the task, batches and schedule of a stage that begins in epoch `begin`, after `before` updates."""
        self.task, self.order, self._stage = context.task, context.order, context.stage.name
        self._begin, self._before = begin, before
        self._schedule_begin = begin if context.stage.own_schedule else 0
        groups = self.state.optimizer.param_groups
        rates = [group["lr"] for group in groups]
        for group in groups:
            group["initial_lr"] = context.recipe.lr
        self._schedule = create_schedule(self.state.optimizer, context.recipe, steps=self.order.steps)
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate  # metrics may be written before the next update sets the rate

    def accumulate_gradients(self, batches: list[Batch], *, epoch: int, step: int) -> dict[str, float]:
        """Set the learning rate, accumulate gradients over all micro-batches, and return the mean losses.

        Args:
            batches: micro-batches; each is removed from the list when it is used, which frees its memory.
            epoch: from 0.
            step: number of the update in the epoch, from 0.
        """
        accelerator, count = self.state.accelerator, self.recipe.train.accumulate
        self._schedule.step_update(self._position(epoch, step))
        highest = max(abs(float(group["lr"])) for group in self.state.optimizer.param_groups)
        if not highest <= _LARGEST_RATE:
            raise ConfigError(
                f"the learning rate of epoch {epoch + 1}, update {step + 1} is {highest:g}, above {_LARGEST_RATE:g}; lower "
                "optimizer.lr, its scales, or the rates in schedule"
            )
        reseed(stream_seed(self.recipe.seed, "step", epoch, step, accelerator.process_index), accelerator.device)
        shares = self._shares(batches, self.order.part_sizes(epoch, step))
        for number in range(count):
            last = number == count - 1
            with nullcontext() if last else accelerator.no_sync(self.state.model):
                batch = batches.pop(0)
                total, means = self.losses(batch, epoch=epoch, step=step * count + number, shares=shares[number])
                self._losses.add(means, last=last)
                accelerator.backward(total)
            del total, means, batch
        return {name: value / count for name, value in self._losses.read().items()}

    def losses(
        self, batch: Batch, *, epoch: int, step: int, shares: Mapping[str, float] | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return a micro-batch's part of the update's loss, to be differentiated, and its losses by name.

        Args:
            batch: the micro-batch, as loaded.
            epoch: from 0.
            step: number of the micro-batch in the epoch, from 0.
            shares: the micro-batch's share of the update in each loss, relative to an equal share; default: 1.
        """
        accelerator, count, shares = self.state.accelerator, self.recipe.train.accumulate, shares or {}
        if accelerator.device.type != "cpu":
            batch = send_to_device(batch, accelerator.device, non_blocking=True)
        batch = self.task.prepare(batch, epoch=epoch, step=step)
        at = StepContext(
            seed=self.recipe.seed, epoch=epoch, step=step, model=self.core, teacher=self.teacher, stage=self._stage
        )
        parts: list[Tensor] = []
        means: dict[str, Tensor] = {}
        with accelerator.autocast():
            for name, loss in self.task.step(self._called, batch, at).items():
                share = shares.get(name, shares.get(_EXAMPLES, 1.0))
                means[name] = loss.mean if share == 1 else loss.mean * share
                if loss.trained:
                    scale = loss.factor * share
                    parts.append(loss.mean if scale == 1 else loss.mean * scale)
            total = parts[0] if len(parts) == 1 else torch.stack(parts).sum()
            if "loss" not in means:
                means = {"loss": total.detach(), **means}
        return total if count == 1 else total / count, means

    def _position(self, epoch: int, step: int) -> float:
        """Return the position in the schedule, in updates.

        If epochs differ in length, each counts as many updates as the first, so that the learning rate follows the epochs.
        """
        order = self.order
        if self.recipe.schedule.steps is not None:
            return order.updates_before(epoch) + step
        part = step * order.steps / order.steps_of(epoch) if order.own_batches else step
        return (epoch - self._schedule_begin) * order.steps + part

    def _shares(self, batches: list[Batch], sizes: list[int] | None) -> list[dict[str, float]]:
        """Return the share of each micro-batch in the update, by loss, relative to an equal share.

        Losses without a weight use the share under `_EXAMPLES`, or 1 if `sizes` is None.

        Args:
            batches: this process's micro-batches.
            sizes: numbers of examples in the micro-batches of all processes; None if all are equal.
        """
        weights = [self.task.weights(batch) for batch in batches]
        accelerator = self.state.accelerator
        world, first = accelerator.num_processes, accelerator.process_index * len(batches)
        parts = world * len(batches)
        by_size: list[dict[str, float]] = [{} for _ in batches]
        if sizes is not None:
            by_size = [{_EXAMPLES: size * parts / sum(sizes)} for size in sizes[first : first + len(batches)]]
        self._has_weight = True
        if not any(weights):
            return by_size
        totals: dict[str, float] = {}
        for each in gather_object([weights]) if world > 1 else [weights]:
            for micro_batch in each:
                for name, weight in micro_batch.items():
                    totals[name] = totals.get(name, 0.0) + float(weight)
        self._has_weight = any(totals.values())
        return [
            shares | {name: weight * parts / totals[name] if totals[name] else 0.0 for name, weight in own.items()}
            for shares, own in zip(by_size, weights, strict=True)
        ]

    def apply(self, *, epoch: int, step: int) -> None:
        """Clip the gradients, step the optimizer, and update the moving average of the weights."""
        state, train = self.state, self.recipe.train
        if not self._has_weight:  # the optimizer would still apply weight decay and momentum
            state.optimizer.zero_grad()
            return
        if train.clip_grad is not None:
            state.accelerator.clip_grad_norm_(state.model.parameters(), train.clip_grad)
        state.optimizer.step()
        state.optimizer.zero_grad()
        if state.ema is not None:
            made = self._before + self.order.updates_before(epoch, begin=self._begin) + step + 1
            state.ema.update(self.core, step=made if train.ema_warmup else None)


def all_finite(losses: Mapping[str, float]) -> bool:
    """Return whether no loss is NaN or infinite."""
    return all(map(math.isfinite, losses.values()))


class _LossSums:
    """Sums of the losses over an update's micro-batches, copied to the CPU without stalling the device.

    On a GPU the copy is queued right after the last forward pass and read once the backward pass is queued, so the device
    works on the backward pass while the CPU waits. One object serves all updates, so that its buffer is pinned only once.
    """

    def __init__(self, device: torch.device) -> None:
        self._asynchronous = device.type == "cuda"
        self._names: tuple[str, ...] = ()
        self._sum: Tensor | None = None
        self._host: Tensor | None = None
        self._copied: Any = None  # torch.cuda.Event

    def add(self, losses: Mapping[str, Tensor], *, last: bool) -> None:
        values = torch.stack([loss.detach() for loss in losses.values()])
        self._names = tuple(losses)
        self._sum = values if self._sum is None else self._sum + values
        if last and self._asynchronous:
            if self._host is None or self._host.shape != self._sum.shape:
                self._host = torch.empty_like(self._sum, device="cpu", pin_memory=True)
                self._copied = torch.cuda.Event()
            self._host.copy_(self._sum, non_blocking=True)
            self._copied.record()

    def read(self) -> dict[str, float]:
        """Return the sums and reset them."""
        if self._copied is not None:
            self._copied.synchronize()
        source = self._host if self._asynchronous else self._sum
        values = source.tolist() if source is not None else []
        self._sum = None
        return dict(zip(self._names, values, strict=True))
