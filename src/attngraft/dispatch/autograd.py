"""Custom operations with an explicit backward, and helpers for their implementations."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry, register_flop_formula

Gradients = tuple[Tensor | None, ...]


def empty_gradients(*operands: Tensor | None) -> tuple[Tensor, ...]:
    """Return uninitialized contiguous gradients of the operands, with no elements for None."""
    like = next(operand for operand in operands if operand is not None)
    return tuple(
        like.new_empty(0) if operand is None else torch.empty_like(operand, memory_format=torch.contiguous_format)
        for operand in operands
    )


def custom_op(
    name: str,
    *,
    backward: Callable[..., tuple[Tensor, ...]],
    formula: Callable[..., tuple[Tensor | None, ...]],
    outputs: Callable[..., Any],
    flops: Callable[..., int],
    gradients: Callable[..., tuple[Tensor, ...]] = empty_gradients,
    results: int = 1,
    saves: Sequence[int] = (),
    needs: int | None = None,
) -> Callable[[Callable[..., Any]], Any]:
    """Register the decorated forward as `attngraft::<name>`, with its backward, fake kernels and FLOP formulas.

    The forward is `forward(*operands, *options)` and returns a tensor or a tuple of tensors. Its leading parameters,
    annotated as tensors, are the operands; the options are plain values. The returned operation has the backward as
    `.backward`.

    Args:
        backward: `backward(to_outputs, operands, saved, *options)` returns the gradients of all operands. The first three
            arguments are tuples: gradients of the differentiable outputs, operands, and saved outputs. It is registered
            as `attngraft::<name>_backward`, which takes the elements of these tuples as separate arguments.
        formula: the forward in plain operations, from operands and options to the differentiable outputs; used where the
            gradients are themselves differentiated.
        outputs: returns uninitialized outputs, from operands and options.
        flops: FLOPs of the forward, from operands (given by their shapes) and options. Linear layers, convolutions and
            matrix products count, elementwise operations do not. The backward counts twice as much as the forward.
        gradients: returns uninitialized gradients, from the operands.
        results: number of differentiable outputs; they come first.
        saves: indices of the outputs that the backward takes.
        needs: index of an operand whose gradient is optional. The backward then takes a final boolean argument, whether
            this gradient is needed; if not, `gradients` receives None for this operand.
    """

    def decorate(forward: Callable[..., Any]) -> Any:
        parameters = inspect.signature(forward).parameters.values()
        count = sum("Tensor" in str(parameter.annotation) for parameter in parameters)
        op = torch.library.custom_op(f"attngraft::{name}", forward, mutates_args=())
        declared = torch.library.infer_schema(forward, mutates_args=())[1:].partition(") ->")[0].split(", ")
        arguments = [f"Tensor to_output_{index}" for index in range(results)] + declared[:count]
        arguments += (
            [f"Tensor output_{index}" for index in saves] + declared[count:] + ["bool needed"] * (needs is not None)
        )
        schema = f"({', '.join(arguments)}) -> ({', '.join(['Tensor'] * count)})"
        of_operands, after = slice(results, results + count), results + count + len(saves)

        def run_backward(*given: Any) -> tuple[Tensor, ...]:
            return backward(given[:results], given[of_operands], given[of_operands.stop : after], *given[after:])

        backward_op = torch.library.custom_op(
            f"attngraft::{name}_backward", run_backward, mutates_args=(), schema=schema
        )

        def save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            ctx.options = inputs[count:]
            ctx.save_for_backward(*inputs[:count], *(output[index] for index in saves))

        def derivative(ctx: Any, *to_outputs: Tensor) -> Gradients:
            tensors = ctx.saved_tensors  # read once, because activation checkpointing unpacks them only once
            operands, saved = tensors[:count], tensors[count:]
            if torch.is_grad_enabled():  # double backward
                computed = differentiable_gradients(
                    lambda *inputs: formula(*inputs, *ctx.options), operands, to_outputs[:results]
                )
            else:
                flag = () if needs is None else (ctx.needs_input_grad[needs],)
                computed = backward_op(*to_outputs[:results], *operands, *saved, *ctx.options, *flag)
            needed = zip(computed, ctx.needs_input_grad, strict=False)
            return *(gradient if need else None for gradient, need in needed), *(None for _ in ctx.options)

        def fake_backward(*given: Any) -> tuple[Tensor, ...]:
            operands = list(given[of_operands])
            if needs is not None and not given[-1]:
                operands[needs] = None
            return gradients(*operands)

        def backward_flops(*given: Any, **_: Any) -> int:
            return 2 * flops(*given[of_operands], *given[after:])

        op.register_fake(outputs)
        op.register_autograd(derivative, setup_context=save)
        backward_op.register_fake(fake_backward)
        register_flops(name, lambda *given, **_: flops(*given))
        register_flops(f"{name}_backward", backward_flops)
        op.backward = backward_op  # type: ignore[attr-defined]
        return op

    return decorate


def register_flops(name: str, formula: Callable[..., int]) -> None:
    """Register the FLOPs of `attngraft::<name>` with `torch.utils.flop_counter`, where one multiply-add is 2 FLOPs."""
    op = getattr(torch.ops.attngraft, name)
    if op not in flop_registry:
        register_flop_formula(op)(formula)


def is_traced(*tensors: Tensor | None) -> bool:
    """Return whether a call must consist of plain PyTorch operations.

    This is the case under a compiler, an exporter or a function transform (vmap, grad), and for tensors that are not plain
    values in memory ("meta", fake, distributed, or any other subclass).
    """
    return (
        torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or any(each is not None and (each.is_meta or type(each) not in (Tensor, nn.Parameter)) for each in tensors)
    )


def needs_aten_ops(*tensors: Tensor | None) -> bool:
    """Return whether only ATen operations may be used.

    A compiler accepts our custom operations, but an exported program must run without attngraft.
    """
    return is_exporting() if torch.compiler.is_compiling() else is_traced(*tensors)


def is_exporting() -> bool:
    """Return whether the call is part of `torch.export`; torch 2.6 reports this only for `strict=False`."""
    if hasattr(torch.compiler, "is_exporting"):
        return torch.compiler.is_exporting()
    return torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling()


def in_dispatch_mode() -> bool:
    """Return whether a dispatch mode, such as a FLOP counter, is active.

    Under such a mode, use plain operations. Always False in compiled code.
    """
    return not torch.compiler.is_compiling() and bool(torch._C._len_torch_dispatch_stack())


def cast_for_autocast(first: Tensor, *others: Tensor | None) -> tuple[Any, ...]:
    """Return the tensors as autocast would cast them for a matrix product; None stays None."""
    tensors, device = (first, *others), first.device.type
    if first.is_meta or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(t if t is None or t.dtype == torch.float64 else t.to(dtype) for t in tensors)


def accumulation_dtype(tensor: Tensor) -> torch.dtype:
    """Return the dtype for softmaxes and long sums: float32 for half precision, else the tensor's dtype."""
    return torch.float32 if tensor.dtype in (torch.float16, torch.bfloat16) else tensor.dtype


def differentiable_gradients(
    formula: Callable[..., tuple[Tensor | None, ...]],
    inputs: Sequence[Tensor | None],
    gradients: Sequence[Tensor | None],
) -> Gradients:
    """Return differentiable gradients of `inputs`, by recomputing `formula`."""
    outputs = formula(*inputs)
    pairs = [(output, g) for output, g in zip(outputs, gradients, strict=True) if output is not None and g is not None]
    needed = [tensor for tensor in inputs if tensor is not None and tensor.requires_grad]
    computed = iter(
        torch.autograd.grad(
            [output for output, _ in pairs], needed, [g for _, g in pairs], create_graph=True, allow_unused=True
        )
    )
    return tuple(next(computed) if tensor is not None and tensor.requires_grad else None for tensor in inputs)


def without_autocast(backward: Callable[..., Gradients]) -> Callable[..., Gradients]:
    """Make the `backward` of an autograd function compute in the dtypes of its tensors, even under autocast."""

    @functools.wraps(backward)
    def run(ctx: Any, *gradients: Any) -> Gradients:
        with torch.autocast(gradients[-1].device.type, enabled=False):
            return backward(ctx, *gradients)

    return run
