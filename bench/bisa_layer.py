"""Cost of a BiSA layer: forward and backward of one attention layer, relative to the host's layer and to a naive form.

    python bench/bisa_layer.py --threads 2 --pairs 60 --out benchmarks/bisa_layer.json

Layers are the hosts' own modules, with and without the graft, including projections. The naive form follows the equation
literally: it creates a matrix per value and multiplies every query by every matrix, which takes N x N x d numbers. Before
timing, outputs and gradients of our layer must equal the naive ones. Upper limits:

- time relative to the host's layer: 1.2 times the ratio of multiply-adds, at the sizes of the paper's models. There is no
  limit at 1,024 tokens, where the host's fused kernel keeps the softmax in the cache, which the separate operations of two
  branches cannot do;
- time relative to the naive layer: 1 / 3.5 for Swin's windows, 1 / 5 otherwise; memory relative to the naive layer: a
  quarter. Memory is the peak that torch allocates above the inputs in one forward and backward;
- memory of a new process that runs a single attention layer of ViT-S's width with 4,096 tokens: 2 GB.
"""

from __future__ import annotations

import copy
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass

import timm
import torch
from steps import grafted
from torch import Tensor, nn

from attngraft.bench.command import finish, options
from attngraft.bench.result import Measurement, check_outputs, current_setting, measured_once, measurement
from attngraft.mechanisms.bisa import reference
from attngraft.mechanisms.bisa.mix import BidirectionalMix
from attngraft.timing import count_macs, paired_ratio

OVER_MACS = 1.2
OVER_NAIVE_MEMORY = 1 / 4
LONG = "4096 tokens"
LONG_BYTES = 2e9


@dataclass(frozen=True)
class Shape:
    """A layer of a model and the size of its input."""

    model: str
    layer: str
    size: tuple[int, int, int]  #: (batch, tokens, C)
    over_naive: float
    options: tuple[tuple[str, int], ...] = ()
    barred: bool = True  #: whether the time relative to the host's layer has a limit

    def layers(self) -> tuple[nn.Module, nn.Module, Tensor]:
        """Return the host's layer, the one with BiSA, and tokens."""
        torch.manual_seed(0)
        host = timm.create_model(self.model, **dict(self.options))
        model = grafted(host, f"bisa@{self.layer}")
        tokens = torch.randn(self.size, requires_grad=True)
        return host.get_submodule(self.layer), model.get_submodule(self.layer), tokens


SHAPES = {
    "Swin-T, stage 1": Shape("swin_tiny_patch4_window7_224", "layers.0.blocks.0.attn", (64, 49, 96), 1 / 3.5),
    "LeViT-128S, stage 1": Shape("levit_128s", "stages.0.blocks.0.attn", (8, 196, 128), 1 / 5),
    "ViT-S": Shape("vit_small_patch16_224", "blocks.0.attn", (4, 197, 384), 1 / 5, (("depth", 1),)),
    "1024 tokens": Shape(
        "vit_tiny_patch16_224",
        "blocks.0.attn",
        (1, 1024, 128),
        1 / 5,
        (("depth", 1), ("embed_dim", 128), ("num_heads", 4)),
        barred=False,
    ),
}
LONG_SHAPE = Shape("vit_small_patch16_224", "blocks.0.attn", (1, 4096, 384), 1, (("depth", 1),))


class NaiveTransform(nn.Module):
    """The hypernetwork, written as in the equation."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, q: Tensor, k: Tensor, q_hat: Tensor, v_hat: Tensor, **scored: Tensor) -> Tensor:
        return reference.inverse_attention(q, k, q_hat, v_hat, self.weight, **scored)


def naive(layer: nn.Module) -> nn.Module:
    """Copy a grafted layer, with the naive inverse branch next to the host's attention."""
    layer = copy.deepcopy(layer)
    for module in layer.modules():
        if isinstance(module, BidirectionalMix):
            module.inverse.transform = NaiveTransform(module.inverse.transform.weight)  # type: ignore[assignment, arg-type]
    return layer


def forward_and_backward(layer: nn.Module, tokens: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    """Return a function that computes the output of `layer` and all gradients for a fixed cotangent."""
    cotangent = torch.randn(layer(tokens).shape, generator=torch.Generator().manual_seed(0))
    wanted = [tokens, *(p for p in layer.parameters() if p.requires_grad)]

    def work() -> tuple[Tensor, ...]:
        output = layer(tokens)
        return output, *torch.autograd.grad(output, wanted, cotangent, allow_unused=True)

    return work


def peak_bytes(work: Callable[[], object]) -> int:
    """Return the peak of torch's allocations during `work`, above those before it."""
    work()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def lines_of(name: str, shape: Shape, pairs: int) -> list[Measurement]:
    """Check the outputs of a shape, and return its measurements: two of time and one of memory."""
    host, lean, tokens = shape.layers()
    plain, ours, theirs = (forward_and_backward(layer, tokens) for layer in (host, lean, naive(lean)))
    check_outputs(ours(), theirs(), what=name, rtol=1e-3, atol=1e-4)
    macs = count_macs(lean, tokens) / count_macs(host, tokens)
    over_host = paired_ratio(plain, ours, pairs=pairs)
    over_naive = paired_ratio(theirs, ours, pairs=pairs, warmup=1)
    memory = peak_bytes(ours) / peak_bytes(theirs)
    bar = OVER_MACS * macs if shape.barred else None
    return [
        measurement(f"{name}: over the host's layer (multiply-adds {macs:.2f}x)", over_host, bar=bar),
        measurement(f"{name}: over the naive layer", over_naive, bar=shape.over_naive),
        measured_once(f"{name}: memory over the naive layer's", memory, bar=OVER_NAIVE_MEMORY),
    ]


def long_bytes(threads: int) -> int:
    """Return the peak memory of a new process that runs the layer with 4,096 tokens forward and backward."""
    command = [sys.executable, __file__, "--long-here", "--threads", str(threads)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> int:
    parser = options("Forward and backward of a BiSA layer, relative to the host's layer and a naive form.", pairs=30)
    parser.add_argument("--shapes", nargs="+", choices=[*SHAPES, LONG], default=[*SHAPES, LONG])
    parser.add_argument("--threads", type=int, default=None, help="CPU threads of torch; torch's own choice by default")
    parser.add_argument("--long-here", action="store_true", help="run the layer once in this process, print its memory")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.long_here:
        _, lean, tokens = LONG_SHAPE.layers()
        forward_and_backward(lean, tokens)()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
        return 0
    setting, lines = current_setting(), []
    if LONG in arguments.shapes:  # first: a process inherits the peak of its parent
        memory = long_bytes(torch.get_num_threads()) / LONG_BYTES
        lines.append(
            measured_once(f"{LONG}, one attention layer: memory of the whole process over 2 GB", memory, bar=1)
        )
    for name in arguments.shapes:
        if name != LONG:
            lines += lines_of(name, SHAPES[name], arguments.pairs)
    result = setting.result(
        "A BiSA layer, forward and backward",
        settings={"shapes": arguments.shapes, "pairs": arguments.pairs},
        measurements=lines,
    )
    return finish(result, out=arguments.out, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
