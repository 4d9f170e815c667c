"""What operations with a written-out backward share: when to step aside for the formula, and how to differentiate twice."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Gradients = tuple[Tensor | None, ...]


def formula_wanted(*tensors: Tensor | None) -> bool:
    """Whether someone looks on who must see plain operations: a compiler, an exporter, a function transform (vmap, grad),
    or tensors that are not values in memory (on "meta", fake, distributed, any other subclass)."""
    return (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or any(_unusual(tensor) for tensor in tensors if tensor is not None)
    )


def plain_wanted(*tensors: Tensor | None) -> bool:
    """Whether operations must be ones that everybody knows: a compiler takes ours, but an exported program travels."""
    return torch.compiler.is_exporting() if torch.compiler.is_compiling() else formula_wanted(*tensors)


def counted() -> bool:
    """Whether a dispatch mode is told of every operation, as a counter of multiply-adds is: it is to see the equation's.
    A compiler cannot ask."""
    return not torch.compiler.is_compiling() and bool(torch._C._len_torch_dispatch_stack())


def in_autocast_dtype(first: Tensor, *others: Tensor | None) -> tuple[Any, ...]:
    """The tensors, or None, as autocast would hand them to a matrix product."""
    tensors, device = (first, *others), first.device.type
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(t if t is None or t.dtype == torch.float64 else t.to(dtype) for t in tensors)


def accurate(tensor: Tensor) -> torch.dtype:
    """The dtype for softmaxes and long sums: float32 for half precision, else the tensor's own."""
    return torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype


def differentiable(
    formula: Callable[..., tuple[Tensor | None, ...]],
    inputs: Sequence[Tensor | None],
    gradients: Sequence[Tensor | None],
) -> Gradients:
    """Gradients of `inputs` that can be differentiated again: those of `formula`, run on them once more."""
    outputs = formula(*inputs)
    given = [(output, g) for output, g in zip(outputs, gradients, strict=True) if output is not None and g is not None]
    wanted = [tensor for tensor in inputs if tensor is not None and tensor.requires_grad]
    found = iter(
        torch.autograd.grad(
            [output for output, _ in given], wanted, [g for _, g in given], create_graph=True, allow_unused=True
        )
    )
    return tuple(next(found) if tensor is not None and tensor.requires_grad else None for tensor in inputs)


def without_autocast(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """A `backward` of an autograd function that computes in the dtypes of its tensors, wherever it is called."""

    @functools.wraps(backward)
    def run(ctx: Any, *gradients: Any) -> Gradients:
        with torch.autocast(gradients[-1].device.type, enabled=False):
            return backward(ctx, *gradients)

    return run


def _unusual(tensor: Tensor) -> bool:
    return tensor.is_meta or type(tensor) not in (Tensor, nn.Parameter)
