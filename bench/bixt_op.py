"""Cost of bi-directional cross-attention: the layer with projections, relative to the same layer with explicit maps.

    python bench/bixt_op.py --threads 2 --pairs 40 --out benchmarks/bixt_op.json

The layers have 64 latents, width 192, 3 heads of 64, and biases. The explicit layer has the arithmetic of the published
one: one similarity of all latents and tokens, two softmaxes of it, and both maps in memory. Outputs and gradients must
be equal before timing. Upper limits:

- time of the forward pass: 1 at any size, and 1 / 1.4 for 8 images of 12,544 tokens; of forward and backward: 1 / 1.2 at
  this largest size, and no limit at the others;
- peak memory above the inputs at the largest size, in a new process: 0.55 for forward, 0.75 for forward and backward;
- memory of a process that runs one image of 1,048,576 tokens without gradients, including inputs: 3 GB.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

from attngraft.bench.command import finish, options
from attngraft.bench.result import Measurement, check_outputs, current_setting, measured_once, measurement
from attngraft.mechanisms.bixt.layer import BidirectionalCrossAttention
from attngraft.timing import paired_ratio
from attngraft.timing.memory import growth, in_fresh_process

WIDTH, HEADS, LATENTS = 192, 3, 64
LARGE = "8x12544"
SIZES = ("1x196", "1x784", "1x3136", "1x12544", "1x50176", "8x196", "8x784", "8x3136", LARGE)
FORWARD, TRAINING = "forward", "forward and backward"
OVER_EXPLICIT = {FORWARD: 1 / 1.4, TRAINING: 1 / 1.2}  #: time at the large size
MEMORY_OVER_EXPLICIT = {FORWARD: 0.55, TRAINING: 0.75}
LONG_TOKENS = 2**20
LONG_BYTES = 3e9
PARTS = ("forward", "training", "memory", "long")

Work = Callable[[], tuple[Tensor, ...]]


class Explicit(BidirectionalCrossAttention):
    """The same layer with both maps in memory."""

    def forward(self, latents: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        r_latents, v_latents = self.by_head(self.rv_latents(latents))
        r_tokens, v_tokens = self.by_head(self.rv_patches(tokens))
        similarity = (r_latents @ r_tokens.transpose(-2, -1)) * self.scale
        for_latents = similarity.softmax(-1) @ v_tokens
        for_tokens = similarity.transpose(-2, -1).softmax(-1) @ v_latents
        return (
            self.proj_lat(for_latents.transpose(1, 2).flatten(2)),
            self.proj_pat(for_tokens.transpose(1, 2).flatten(2)),
        )

    def by_head(self, projected: Tensor) -> tuple[Tensor, ...]:
        return projected.unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)


FORMS = {"lean": BidirectionalCrossAttention, "explicit": Explicit}


def layer(form: str) -> BidirectionalCrossAttention:
    """Create a layer; all forms have the same weights."""
    torch.manual_seed(0)
    return FORMS[form](WIDTH, WIDTH, dim_attention=WIDTH, heads=HEADS)


def inputs(size: str) -> tuple[Tensor, Tensor]:
    """Return latents and tokens of a size, "images x tokens"."""
    batch, count = map(int, size.split("x"))
    generator = torch.Generator().manual_seed(1)
    latents, tokens = (torch.randn(batch, n, WIDTH, generator=generator) for n in (LATENTS, count))
    return latents, tokens


def forward(module: nn.Module, *operands: Tensor) -> Work:
    """Return a function that computes outputs without gradients, in evaluation mode."""
    module.eval()

    def work() -> tuple[Tensor, ...]:
        with torch.no_grad():
            found: tuple[Tensor, ...] = module(*operands)
        return found

    return work


def training(module: nn.Module, *operands: Tensor) -> Work:
    """Return a function that computes outputs and all gradients for fixed cotangents."""
    operands = tuple(tensor.clone().requires_grad_() for tensor in operands)
    wanted, cotangents = [*operands, *module.parameters()], [torch.randn_like(tensor) for tensor in operands]
    for cotangent in cotangents:
        cotangent.normal_(generator=torch.Generator().manual_seed(2))

    def work() -> tuple[Tensor, ...]:
        outputs = module(*operands)
        return *outputs, *torch.autograd.grad(outputs, wanted, cotangents)

    return work


PASSES = {FORWARD: forward, TRAINING: training}


def check(size: str) -> None:
    """Check that both forms give the same outputs and gradients.

    Raises:
        WrongOutputsError: they do not.
    """
    ours, theirs = (training(layer(form), *inputs(size))() for form in FORMS)
    scaled = [(a / b.abs().max(), b / b.abs().max()) for a, b in zip(ours, theirs, strict=True)]
    check_outputs([a for a, _ in scaled], [b for _, b in scaled], what=size, rtol=1e-3, atol=1e-4)


def time_line(size: str, name: str, pairs: int) -> Measurement:
    """Measure our time relative to the explicit form's."""
    ours, theirs = (PASSES[name](layer(form), *inputs(size)) for form in FORMS)
    ratio = paired_ratio(theirs, ours, pairs=pairs, min_seconds=0.02)
    bar = OVER_EXPLICIT[name] if size == LARGE else 1.0 if name == FORWARD else None
    return measurement(f"{size} tokens, {name}: over explicit maps", ratio, bar=bar)


def memory_line(size: str, name: str, threads: int) -> Measurement:
    """Measure our memory relative to the explicit form's."""
    ours, theirs = (in_fresh_process(__file__, "memory", form, size, name, threads=threads) for form in FORMS)
    return measured_once(
        f"{size} tokens, {name}: memory over explicit maps'", ours / theirs, bar=MEMORY_OVER_EXPLICIT[name]
    )


def long_line(threads: int) -> Measurement:
    """Measure the memory of a process with a million tokens."""
    used = in_fresh_process(__file__, "long", threads=threads) / LONG_BYTES
    return measured_once(f"{LONG_TOKENS:,} tokens, {FORWARD}: memory of the whole process over 3 GB", used, bar=1)


def bytes_here(what: str, *arguments: str) -> int:
    """Return the peak of a call above its inputs for "memory FORM SIZE PASS", or the peak of this process for "long"."""
    if what == "long":
        forward(layer("lean"), *inputs(f"1x{LONG_TOKENS}"))()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    form, size, name = arguments
    module = layer(form)
    PASSES[name](module, *inputs("1x1024"))()  # excludes what libraries allocate at their first call
    used, _ = growth(PASSES[name](module, *inputs(size)))
    if used is None:
        raise SystemExit("this system does not report the memory of a process")
    return used


def main() -> int:
    parser = options("Time and memory of the layer relative to explicit maps, and with a million tokens.", pairs=40)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=list(SIZES), help="images x tokens")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure")
    parser.add_argument("--threads", type=int, default=None, help="CPU threads of torch; torch's own choice by default")
    parser.add_argument("--bytes-here", nargs="+", default=None, help="measure memory in this process and print it")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.bytes_here:
        print(bytes_here(*arguments.bytes_here))
        return 0
    setting, lines, threads = current_setting(), [], torch.get_num_threads()
    if "long" in arguments.parts:  # first: a process inherits the peak of its parent
        lines.append(long_line(threads))
    if "memory" in arguments.parts:
        lines += [memory_line(LARGE, name, threads) for name in PASSES]
    for size in arguments.sizes:
        check(size)
        lines += [
            time_line(size, name, arguments.pairs)
            for part, name in zip(("forward", "training"), PASSES, strict=True)
            if part in arguments.parts
        ]
    result = setting.result(
        "Bi-directional cross-attention, the layer",
        settings={"sizes": arguments.sizes, "parts": arguments.parts, "pairs": arguments.pairs},
        measurements=lines,
    )
    return finish(result, out=arguments.out, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
