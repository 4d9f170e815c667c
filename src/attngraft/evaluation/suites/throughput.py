"""Images per second and peak memory of evaluation on this machine."""

import torch
from accelerate import Accelerator
from accelerate.utils import send_to_device
from torch import nn

from attngraft.evaluation.suites.context import EvaluationContext
from attngraft.evaluation.suites.result import GroupMetric
from attngraft.results.study import Interval
from attngraft.timing import duration
from attngraft.timing.memory import peak_bytes
from attngraft.training.inputs import in_format
from attngraft.training.profiler import synchronizer
from attngraft.training.recipe import Recipe
from attngraft.training.setup import cpu_threads

SAMPLES = 30


def measure_throughput(
    context: EvaluationContext, model: nn.Module, recipe: Recipe, accelerator: Accelerator
) -> tuple[dict[str, GroupMetric], int]:
    """Measure the forward pass on an evaluation batch; return metrics and the batch size.

    `images_per_second` is the median over `SAMPLES` forward passes, with its bootstrap interval. `peak_memory_bytes` covers
    weights, batch and forward pass. The batch is normalized and moved to the device beforehand, so loading is not timed.
    """
    train = recipe.train
    size = min(train.eval_batch_size or train.batch_size // train.accumulate, len(context.split))
    examples = [context.split[(0, index)] for index in range(size)]
    batch = send_to_device(context.split.collate(examples), accelerator.device)
    args, kwargs = in_format(context.task.to_model(batch), channels_last=train.channels_last)
    model.eval()

    @torch.inference_mode()
    def forward() -> None:
        with accelerator.autocast():
            model(*args, **kwargs)

    with cpu_threads(recipe.train.threads):
        found = duration(forward, samples=SAMPLES, warmup=3, synchronize=synchronizer(accelerator.device))
        inputs = [each for each in args if isinstance(each, torch.Tensor)]
        peak = peak_bytes(forward, accelerator.device, kept=[*model.parameters(), *model.buffers(), *inputs])
    rate = GroupMetric(
        mean=size / found.seconds,
        interval=Interval(point=size / found.seconds, low=size / found.high, high=size / found.low),
        values=[size / found.seconds],
    )
    return {
        "images_per_second": rate,
        "peak_memory_bytes": GroupMetric(mean=float(peak), interval=None, values=[float(peak)]),
    }, size
