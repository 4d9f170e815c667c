"""Cost of the operation of local attention, relative to a plain form that unfolds values and expands filters.

    python bench/local_filter.py --threads 2 --pairs 30 --out benchmarks/local_filter.json

The input is that of ELSA-Swin-T's first stage: 4 images of 56 x 56 pixels, 96 channels in 3 heads, neighborhoods of 7 x 7,
with softmax. The plain form has the arithmetic of the published fallback: `unfold`, filters (B, C, 49, 56, 56) from weights
that are broadcast to the channels of a head, a product, and a sum. Outputs and gradients must be equal before timing.
Upper limits:

- with the additive ghost matrix, as in all published models: 1/30 of the time and 1/10 of the memory for forward, 1/10 and
  1/8 for forward and backward;
- with both matrices: 1/20 of the time for forward, 1/8 for forward and backward.

A sample is one second of calls of the plain form and the same number of calls of ours. (The plain form mostly allocates
new pages, and the time of a single call of ours directly after it would include freeing them.) `channels last` is the
layout of the layers' tensors, `channels first` that of the equation.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from attngraft.bench.command import finish, options
from attngraft.bench.result import Measurement, check_outputs, current_setting, measured_once, measurement
from attngraft.mechanisms.local import local_filter
from attngraft.timing import paired_ratio
from attngraft.timing.memory import growth, in_fresh_process

IMAGES, CHANNELS, HEADS, PIXELS, KERNEL = 4, 96, 3, 56, 7
FORWARD, TRAINING = "forward", "forward and backward"
LAYOUTS = {"channels last": torch.channels_last, "channels first": torch.contiguous_format}
#: ghost matrices -> pass -> time relative to the plain form
TIME = {"add": {FORWARD: 1 / 30, TRAINING: 1 / 10}, "mul and add": {FORWARD: 1 / 20, TRAINING: 1 / 8}}
SECONDS = 1.0  #: of the plain form, per sample
MEMORY = {FORWARD: 1 / 10, TRAINING: 1 / 8}  #: with the additive matrix

Work = Callable[[], tuple[Tensor, ...]]
Form = Callable[[Tensor, Tensor, Tensor | None, Tensor], Tensor]


def plain(values: Tensor, logits: Tensor, mul: Tensor | None, add: Tensor) -> Tensor:
    """Compute the plain form: k * k copies of the values, and filters for all channels from the ghost head."""
    batch, channels, height, width = values.shape
    by_head = (HEADS, channels // HEADS, KERNEL**2)
    windows = F.unfold(values, KERNEL, padding=KERNEL // 2).view(batch, *by_head, height, width)
    filters = logits.view(batch, HEADS, 1, KERNEL**2, height, width).softmax(3)
    if mul is not None:
        filters = mul.view(*by_head, 1, 1) * filters
    return ((filters + add.view(*by_head, 1, 1)) * windows).sum(3).flatten(1, 2)


def lean(values: Tensor, logits: Tensor, mul: Tensor | None, add: Tensor) -> Tensor:
    return local_filter(values, logits, mul, add, kernel_size=KERNEL)


FORMS: dict[str, Form] = {"lean": lean, "plain": plain}


def operands(ghost: str, layout: str, images: int = IMAGES) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    generator = torch.Generator().manual_seed(0)
    values, logits = (
        torch.randn(images, channels, PIXELS, PIXELS, generator=generator).contiguous(memory_format=LAYOUTS[layout])
        for channels in (CHANNELS, HEADS * KERNEL**2)
    )
    mul, add = (torch.randn(CHANNELS, KERNEL, KERNEL, generator=generator) for _ in range(2))
    return values, logits, mul if ghost == "mul and add" else None, add


def forward(form: Form, *given: Tensor | None) -> Work:
    """Return a function that computes the output without gradients."""

    def work() -> tuple[Tensor, ...]:
        with torch.no_grad():
            return (form(*given),)  # type: ignore[arg-type]

    return work


def training(form: Form, *given: Tensor | None) -> Work:
    """Return a function that computes the output and all gradients for a fixed cotangent."""
    leaves = [tensor if tensor is None else tensor.clone().requires_grad_() for tensor in given]
    wanted = [leaf for leaf in leaves if leaf is not None]
    cotangent = torch.empty_like(wanted[0]).normal_(generator=torch.Generator().manual_seed(1))

    def work() -> tuple[Tensor, ...]:
        found = form(*leaves)  # type: ignore[arg-type]
        return found, *torch.autograd.grad(found, wanted, cotangent)

    return work


PASSES = {FORWARD: forward, TRAINING: training}


def check(ghost: str) -> None:
    """Check that both forms give the same output and gradients.

    Raises:
        WrongOutputsError: they do not.
    """
    given = operands(ghost, "channels first", images=1)
    ours, theirs = (training(form, *given)() for form in FORMS.values())
    scaled = [(a / b.abs().max(), b / b.abs().max()) for a, b in zip(ours, theirs, strict=True)]
    check_outputs([a for a, _ in scaled], [b for _, b in scaled], what=ghost, rtol=1e-3, atol=1e-5)


def time_line(ghost: str, layout: str, name: str, pairs: int) -> Measurement:
    """Measure our time relative to that of the plain form, which runs in the layout in which it is faster."""
    ours = PASSES[name](lean, *operands(ghost, layout))
    theirs = PASSES[name](plain, *operands(ghost, "channels first"))
    ratio = paired_ratio(theirs, ours, pairs=pairs, min_seconds=SECONDS)
    return measurement(f"ghost {ghost}, {layout}, {name}: over the plain form", ratio, bar=TIME[ghost][name])


def memory_line(name: str, threads: int) -> Measurement:
    """Measure our memory relative to the plain form's."""
    ours, theirs = (in_fresh_process(__file__, form, name, threads=threads) for form in FORMS)
    return measured_once(f"ghost add, {name}: memory over the plain form's", ours / theirs, bar=MEMORY[name])


def bytes_here(form: str, name: str) -> int:
    """Return the peak of a call above its operands."""
    layout = "channels last" if form == "lean" else "channels first"
    PASSES[name](
        FORMS[form], *operands("add", layout, images=1)
    )()  # excludes what libraries allocate at their first call
    used, _ = growth(PASSES[name](FORMS[form], *operands("add", layout)))
    if used is None:
        raise SystemExit("this system does not report the memory of a process")
    return used


def main() -> int:
    parser = options("Time and memory of local attention, relative to its plain form.", pairs=30)
    parser.add_argument("--threads", type=int, default=None, help="CPU threads of torch; torch's own choice by default")
    parser.add_argument("--ghosts", nargs="+", choices=TIME, default=list(TIME), help="ghost matrices; default: all")
    parser.add_argument("--bytes-here", nargs=2, default=None, help="measure memory in this process and print it")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.bytes_here:
        print(bytes_here(*arguments.bytes_here))
        return 0
    setting = current_setting()
    lines = [memory_line(name, torch.get_num_threads()) for name in PASSES]
    for ghost in arguments.ghosts:
        check(ghost)
        lines += [time_line(ghost, layout, name, arguments.pairs) for layout in LAYOUTS for name in PASSES]
    result = setting.result(
        "Local attention, the operation",
        settings={"pairs": arguments.pairs},
        measurements=lines,
    )
    return finish(result, out=arguments.out, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
