"""Cost of the Triton kernels on a GPU, relative to the other backends: each operation, and training steps of models.

    python bench/triton_kernels.py --out benchmarks/triton_kernels.json

Operations run forward and backward with the sizes of published models, in bfloat16 and float32. Before timing, outputs and
gradients in float32 must equal those of the reference backend. Memory is the peak above the operands. A training step is
forward, cross-entropy, backward and AdamW under bfloat16 autocast; each is measured twice, relative to the same model with
eager backends and relative to the host without grafts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial

import timm
import torch
from steps import grafted, training_step
from torch import Tensor

import attngraft.models  # noqa: F401 - registers the names
from attngraft.bench.command import finish, options
from attngraft.bench.result import (
    Measurement,
    check_outputs,
    current_setting,
    measured_once,
    measurement,
)
from attngraft.dispatch import ENVIRONMENT
from attngraft.errors import BackendError
from attngraft.mechanisms.bisa.ops import inverse_attention, two_way_attention
from attngraft.mechanisms.bixt.ops import bidirectional_attention
from attngraft.mechanisms.local import local_filter
from attngraft.timing import paired_ratio

Work = Callable[[], tuple[Tensor, ...]]
#: operation, shapes of its operands, options; heads are laid out in memory as (B, N, H, width), as projections return them
OPERATIONS = {
    "two-way attention, 32 x 6 heads, 196 tokens, 64 channels": (two_way_attention, [(32, 6, 196, 64)] * 4, {}),
    "two-way attention, 8 x 6 heads, 1024 tokens, 64 channels": (two_way_attention, [(8, 6, 1024, 64)] * 4, {}),
    "inverse attention, 2048 windows x 3 heads, 49 tokens, 32 channels": (
        inverse_attention,
        [*[(2048, 3, 49, 32)] * 4, (32, 32, 32)],
        {},
    ),
    "bi-directional cross-attention, 64 latents, 32 x 3 heads, 784 tokens": (
        partial(bidirectional_attention, scale=0.125),
        [(32, 3, 64, 64), (32, 3, 784, 64)] * 2,
        {},
    ),
    "bi-directional cross-attention, 64 latents, 4 x 3 heads, 12544 tokens": (
        partial(bidirectional_attention, scale=0.125),
        [(4, 3, 64, 64), (4, 3, 12544, 64)] * 2,
        {},
    ),
    "local attention, 32 images of 56 x 56, 3 heads of 32 channels": (
        partial(local_filter, kernel_size=7),
        [(32, 96, 56, 56), (32, 147, 56, 56), None, (96, 7, 7)],
        {},
    ),
}
#: host, grafts
MODELS = {
    "vit_small_patch16_224, bisa@first:2": ("vit_small_patch16_224", "bisa@first:2"),
    "swin_tiny_patch4_window7_224, bisa@first:2": ("swin_tiny_patch4_window7_224", "bisa@first:2"),
    "elsa_swin_tiny over swin_tiny_patch4_window7_224": ("swin_tiny_patch4_window7_224", "elsa_swin_tiny"),
}


@contextmanager
def backend(name: str):  # type: ignore[no-untyped-def]
    os.environ[ENVIRONMENT] = name
    try:
        yield
    finally:
        del os.environ[ENVIRONMENT]


def within(name: str, work: Callable[[], object]) -> Callable[[], object]:
    """Return `work` with all operations on one backend."""

    def run() -> object:
        with backend(name):
            return work()

    return run


def operation(name: str, dtype: torch.dtype) -> Work:
    """Return a function that computes outputs and gradients of an operation."""
    op, shapes, options = OPERATIONS[name]
    torch.manual_seed(0)
    leaves: list[Tensor | None] = []
    for shape in shapes:
        if shape is None:
            leaves.append(None)
            continue
        tensor = torch.randn(shape, device="cuda")
        if len(shape) == 4 and "local" not in name:
            tensor = tensor.transpose(1, 2).contiguous().transpose(1, 2)
        leaves.append((tensor * (shape[-1] ** -0.5 if len(shape) == 3 else 1)).to(dtype).requires_grad_())
    wanted = [leaf for leaf in leaves if leaf is not None]
    cotangents: list[Tensor] = []

    def work() -> tuple[Tensor, ...]:
        found = op(*leaves, **options)
        outputs = [found] if isinstance(found, Tensor) else list(found)
        if not cotangents:
            cotangents.extend(torch.randn_like(output) for output in outputs)
        return *outputs, *torch.autograd.grad(outputs, wanted, cotangents)

    return work


def peak(work: Callable[[], object]) -> int:
    """Return the peak of the device's memory during a call, above what was allocated before."""
    work()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def operation_lines(name: str, pairs: int) -> list[Measurement]:
    work = operation(name, torch.float32)
    ours, theirs = within("triton", work)(), within("reference", work)()
    scaled = [(a / b.abs().max(), b / b.abs().max()) for a, b in zip(ours, theirs, strict=True)]  # type: ignore[call-overload]
    check_outputs([a for a, _ in scaled], [b for _, b in scaled], what=name, rtol=1e-3, atol=1e-4)
    del ours, theirs, scaled
    lines = []
    for dtype in (torch.bfloat16, torch.float32):
        work = operation(name, dtype)
        ours = within("triton", work)
        for other in ("eager", "reference"):
            theirs = within(other, work)
            try:
                theirs()
            except BackendError:  # the eager form of this operation is for CPUs
                continue
            what = f"{name}, {str(dtype).removeprefix('torch.')}, over {other}"
            ratio = paired_ratio(theirs, ours, pairs=pairs, min_seconds=0.02, synchronize=torch.cuda.synchronize)
            lines.append(measurement(f"{what}: time", ratio, bar=None))
            lines.append(measured_once(f"{what}: memory", peak(ours) / peak(theirs), bar=None))
    return lines


def model_lines(name: str, batch: int, pairs: int) -> list[Measurement]:
    host_name, spec = MODELS[name]
    torch.manual_seed(0)
    host = timm.create_model(host_name)
    model = (timm.create_model(spec) if spec.startswith("elsa_") else grafted(host, spec)).cuda()
    images, labels = torch.randn(batch, 3, 224, 224, device="cuda"), torch.randint(1000, (batch,), device="cuda")
    with torch.no_grad():
        found = [within(each, lambda: model.eval()(images[:4]))() for each in ("triton", "reference")]
    check_outputs(*found, what=name, rtol=1e-3, atol=1e-3)

    def under_autocast(model: torch.nn.Module) -> Callable[[], object]:
        step = training_step(model, images, labels)

        def run() -> object:
            with torch.autocast("cuda", torch.bfloat16):
                return step()

        return run

    step, plain = under_autocast(model), under_autocast(host.cuda())
    ours, theirs = within("triton", step), within("eager", step)
    timed = {"pairs": pairs, "synchronize": torch.cuda.synchronize}
    return [
        measurement(f"{name}: training step over eager", paired_ratio(theirs, ours, **timed), bar=None),
        measurement(f"{name}: training step over the host's", paired_ratio(plain, ours, **timed), bar=None),
        measured_once(f"{name}: memory of a step over eager", peak(ours) / peak(theirs), bar=None),
    ]


def main() -> int:
    parser = options("Triton kernels relative to the other backends, on a GPU.", pairs=30)
    parser.add_argument("--batch", type=int, default=256, help="images of a training step")
    parser.add_argument("--only", default="", help="measure operations and models whose names contain this")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this benchmark needs a CUDA device")
    setting = current_setting("cuda")
    lines: list[Measurement] = []
    for name in OPERATIONS:
        if arguments.only in name:
            lines += operation_lines(name, arguments.pairs)
    for name in MODELS:
        if arguments.only in name:
            lines += model_lines(name, arguments.batch, arguments.pairs)
    result = setting.result(
        "Triton kernels over other backends",
        settings={"pairs": arguments.pairs, "batch": arguments.batch},
        measurements=lines,
    )
    return finish(result, out=arguments.out, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
