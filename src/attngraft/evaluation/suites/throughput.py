"""Images per second and peak memory of evaluation, on the machine at hand."""

from __future__ import annotations

from collections.abc import Callable

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch import nn

from attngraft.evaluation.suites.ground import Ground
from attngraft.evaluation.suites.result import Measured
from attngraft.results.study import Interval
from attngraft.timing import duration
from attngraft.timing.memory import LiveStorages
from attngraft.training.inputs import model_inputs
from attngraft.training.profiler import synchronizer
from attngraft.training.recipe import Recipe
from attngraft.training.setup import cpu_threads

SAMPLES = 30


def measure_throughput(
    ground: Ground, model: nn.Module, recipe: Recipe, accelerator: Accelerator
) -> tuple[dict[str, Measured], int]:
    """`images_per_second` (median over `SAMPLES` forward passes with its bootstrap interval) and `peak_memory_bytes`
    (weights, batch, and what the pass itself makes), of an evaluation batch; and how many images it has.

    The batch is normalized and on the device before the clock starts: loading and decoding are not in it.
    """
    train = recipe.train
    size = min(train.eval_batch_size or train.batch_size // train.accumulate, len(ground.split))
    examples = [ground.split[(0, index)] for index in range(size)]
    batch = send_to_device(ground.split.collate(examples), accelerator.device)
    args, kwargs = model_inputs(ground.task, batch, channels_last=train.channels_last)
    model.eval()

    @torch.inference_mode()
    def forward() -> None:
        with accelerator.autocast():
            model(*args, **kwargs)

    with cpu_threads(recipe.train.threads):
        found = duration(forward, samples=SAMPLES, warmup=3, synchronize=synchronizer(accelerator.device))
        peak = _peak(forward, model, args, accelerator.device)
    rate = Measured(
        mean=size / found.seconds,
        interval=Interval(point=size / found.seconds, low=size / found.high, high=size / found.low),
        values=[size / found.seconds],
    )
    return {
        "images_per_second": rate,
        "peak_memory_bytes": Measured(mean=float(peak), interval=None, values=[float(peak)]),
    }, size


def _peak(forward: Callable[[], None], model: nn.Module, args: tuple[object, ...], device: torch.device) -> int:
    kept = [*model.parameters(), *model.buffers(), *(each for each in args if isinstance(each, torch.Tensor))]
    state = sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in kept}.values())
    if device.type == "cpu":
        with LiveStorages() as storages:
            forward()
        return state + storages.peak
    torch.accelerator.synchronize()
    torch.accelerator.reset_peak_memory_stats()
    before = torch.accelerator.memory_allocated()
    forward()
    torch.accelerator.synchronize()
    return state + torch.accelerator.max_memory_allocated() - before
