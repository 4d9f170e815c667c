"""Tests that every op must pass, in one class; a subclass defines how a call is built.

All backends that can serve a call are compared with the reference, in outputs and gradients: on odd sizes, axes of size 1
and non-contiguous tensors; in half precision, relative to the error of plain PyTorch; under grad-of-grad, function
transforms, fake tensors and autocast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from attngraft.dispatch import Op
from attngraft.dispatch.triton import INTERPRETING
from tests.seeding import seed
from tests.slow import product_but

#: number of random examples; few in Triton's interpreter, which is slow: the kernels' own tests list their cases
EXAMPLES = 3 if INTERPRETING else 20
DTYPES_AND_TOLERANCES = ((torch.float64, 1e-10), (torch.float32, 1e-4))


@dataclass(frozen=True)
class Call:
    """The arguments of a call; tensors may be None."""

    arguments: tuple[Tensor | None, ...]
    options: dict[str, Any] = field(default_factory=dict)

    def map(self, function: Callable[[Tensor], Tensor]) -> Call:
        """Return the call with `function` applied to its floating-point tensors."""
        return Call(
            tuple(_apply(function, value) for value in self.arguments),
            {name: _apply(function, value) for name, value in self.options.items()},
        )

    def with_masks(self, function: Callable[[Tensor], Tensor]) -> Call:
        """Return the call with `function` applied to its boolean tensors."""

        def apply(value: Any) -> Any:
            return function(value) if isinstance(value, Tensor) and value.dtype == torch.bool else value

        return Call(tuple(map(apply, self.arguments)), {name: apply(value) for name, value in self.options.items()})

    def tensors(self) -> list[Tensor]:
        """Return the floating-point tensors, for which gradients are computed."""
        values = [*self.arguments, *self.options.values()]
        return [value for value in values if isinstance(value, Tensor) and value.is_floating_point()]

    def with_tensors(self, tensors: Sequence[Tensor]) -> Call:
        """Return the call with other floating-point tensors, in the order of `tensors()`."""
        left = iter(tensors)
        return self.map(lambda _: next(left))


def _apply(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    return function(value) if isinstance(value, Tensor) and value.is_floating_point() else value


def _apply_to_all(function: Callable[[Tensor], Tensor], values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(_apply(function, value) for value in values)


class CustomOps(TorchDispatchMode):
    """Dispatch mode that stores one call of each of our custom ops."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, tuple[Any, tuple[Any, ...]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "attngraft":
            assert not kwargs
            self.calls[func._opname] = func, _apply_to_all(lambda tensor: tensor.detach().clone(), args)
        return func(*args, **(kwargs or {}))


def strided(tensor: Tensor) -> Tensor:
    """Return the same values with other strides: the last axis is outermost in memory."""
    return tensor.transpose(0, -1).contiguous().transpose(0, -1)


def as_good_as_plain(ours: Tensor, theirs: Tensor, truth: Tensor, dtype: torch.dtype) -> bool:
    """Return whether our error in `dtype` is at most twice that of `theirs`, plain PyTorch's."""
    floor = torch.finfo(dtype).eps * truth.norm() / 4  # for results that are exact in plain PyTorch
    return bool((ours - truth).norm() <= 2 * (theirs - truth).norm() + floor)


class OpTester:
    """Base class of op tests; subclasses set `op`, `sizes`, `build` and, if necessary, the flags below."""

    op: ClassVar[Op]
    #: hypothesis strategies for the keywords of `build`
    sizes: ClassVar[dict[str, st.SearchStrategy[Any]]]
    #: keywords of `build` for a handful of numbers (numerical derivatives) and for a few thousand (rounding errors)
    small: ClassVar[dict[str, Any]]
    large: ClassVar[dict[str, Any]]
    #: False for maxima, which have no second derivative
    differentiable_twice: ClassVar[bool] = True
    #: multiply-adds that torch's flop counter must find for `small`
    macs: ClassVar[int] = 0

    def build(self, **sizes: Any) -> Call:
        """Return a call in float64 with random values; the generator is seeded."""
        raise NotImplementedError

    def backends(self, call: Call) -> list[str]:
        """Return the backends that can serve `call`, without the reference."""
        verdicts = self.op.explain(*call.arguments, **call.options).verdicts
        return [
            name for name, verdict in verdicts.items() if verdict in ("chosen", "could be used") and name != "reference"
        ]

    def outputs(self, call: Call, backend: str) -> tuple[Tensor, ...]:
        found = self.op(*call.arguments, backend=backend, **call.options)
        return found if isinstance(found, tuple) else (found,)

    def outputs_and_gradients(self, call: Call, backend: str) -> list[Tensor]:
        """Return outputs, then the gradients of their products with fixed random cotangents."""
        call = call.map(lambda tensor: tensor.detach().clone(memory_format=torch.preserve_format).requires_grad_())
        outputs = self.outputs(call, backend)
        generator = torch.Generator().manual_seed(5)
        cotangents = [torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype) for out in outputs]
        gradients = torch.autograd.grad(outputs, call.tensors(), cotangents, allow_unused=True)
        missing = [
            torch.zeros_like(tensor) if g is None else g for tensor, g in zip(call.tensors(), gradients, strict=True)
        ]
        return [*(out.detach() for out in outputs), *missing]

    # -- tests ---------------------------------------------------------------------------------------------------------

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.differing_executors])
    @given(data=st.data())
    def test_backends_agree_with_the_reference(self, data: st.DataObject) -> None:
        sizes = data.draw(st.fixed_dictionaries(self.sizes))
        noncontiguous = data.draw(st.booleans())
        seed(data.draw(st.integers(0, 99)))
        built = self.build(**sizes)
        for dtype, tolerance in DTYPES_AND_TOLERANCES:
            call = built.map(lambda tensor: (strided(tensor) if noncontiguous else tensor).to(dtype))  # noqa: B023
            expected = self.outputs_and_gradients(call, "reference")
            for backend in self.backends(call):
                for ours, theirs in zip(self.outputs_and_gradients(call, backend), expected, strict=True):
                    assert ours.dtype == theirs.dtype
                    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)

    def test_derivatives(self) -> None:
        call = self.build(**self.small).map(Tensor.requires_grad_)
        for backend in ["reference", *self.backends(call)]:

            def function(*tensors: Tensor, name: str = backend) -> tuple[Tensor, ...]:
                return self.outputs(call.with_tensors(tensors), name)

            assert torch.autograd.gradcheck(function, call.tensors())
            if self.differentiable_twice:
                assert torch.autograd.gradgradcheck(function, call.tensors())

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_half_precision_is_as_good_as_plain_pytorch(self, dtype: torch.dtype) -> None:
        call = self.build(**self.large).map(lambda tensor: tensor.to(dtype))
        exact = self.outputs_and_gradients(call.map(Tensor.double), "reference")
        plain = self.outputs_and_gradients(call, "reference")
        for backend in self.backends(call):
            for ours, theirs, truth in zip(self.outputs_and_gradients(call, backend), plain, exact, strict=True):
                assert ours.dtype == theirs.dtype
                assert as_good_as_plain(ours, theirs, truth, dtype), backend

    def test_function_transforms(self) -> None:
        call = self.build(**self.small)
        expected = self.outputs_and_gradients(call, "reference")
        count = len(self.outputs(call, "reference"))
        generator = torch.Generator().manual_seed(5)
        cotangents = [torch.randn(out.shape, generator=generator, dtype=torch.float64) for out in expected[:count]]

        def loss(tensors: list[Tensor]) -> Tensor:
            outputs = self.outputs(call.with_tensors(tensors), "auto")
            return sum((out * cotangent).sum() for out, cotangent in zip(outputs, cotangents, strict=True))

        tensors = call.tensors()
        for ours, theirs in zip(torch.func.grad(loss)(tensors), expected[count:], strict=True):
            torch.testing.assert_close(ours, theirs)
        twice = [torch.stack([tensor, 2 * tensor]) for tensor in tensors]
        stacked = torch.func.vmap(lambda tensors: self.outputs(call.with_tensors(tensors), "auto"))(twice)
        for ours, theirs in zip(
            stacked, self.outputs(call.with_tensors([2 * t for t in tensors]), "reference"), strict=True
        ):
            torch.testing.assert_close(ours[1], theirs)

    def test_shapes_and_costs_without_values(self) -> None:
        call = self.build(**self.small)
        expected = [(out.shape, out.dtype) for out in self.outputs(call, "reference")]
        meta = call.map(lambda tensor: tensor.to("meta")).with_masks(lambda tensor: tensor.to("meta"))
        on_meta = self.outputs(meta, "auto") if self.all_floating(call) else None
        assert on_meta is None or [(out.shape, out.dtype) for out in on_meta] == expected
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fake = call.map(mode.from_tensor).with_masks(mode.from_tensor)
            assert [(out.shape, out.dtype) for out in self.outputs(fake, "auto")] == expected
        with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
            self.outputs(call, "auto")
        assert counter.get_total_flops() == 2 * self.macs

    def all_floating(self, call: Call) -> bool:
        return all(value.is_floating_point() for value in call.arguments if value is not None)

    def test_autocast_and_inference(self) -> None:
        call = self.build(**self.large).map(Tensor.float)
        expected = self.outputs(call, "reference")
        with torch.inference_mode():
            for ours, theirs in zip(self.outputs(call, "auto"), expected, strict=True):
                torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found, plain = self.outputs_and_gradients(call, "auto"), self.outputs_and_gradients(call, "reference")
        floor = torch.finfo(torch.bfloat16).eps
        for ours, theirs, truth in zip(found, plain, self.outputs_and_gradients(call, "reference"), strict=True):
            assert (ours - truth).norm() <= 2 * (theirs - truth).norm() + floor * truth.norm()

    def test_custom_ops_are_registered_properly(self) -> None:
        """torch's opcheck passes for all custom ops that a call reaches in any backend, forward and backward."""
        call = self.build(**self.small).map(Tensor.float)
        with CustomOps() as seen:
            for backend in self.backends(call):
                self.outputs_and_gradients(call, backend)
        if not seen.calls:
            pytest.skip("reaches no custom op here")
        for name, (function, arguments) in seen.calls.items():
            if not name.endswith("_backward"):  # backward ops have no derivative
                arguments = _apply_to_all(Tensor.requires_grad_, arguments)
            assert set(torch.library.opcheck(function, arguments).values()) == {"SUCCESS"}, name

    @pytest.mark.parametrize("backend", product_but(["aot_eager", "inductor"], ["aot_eager"]))
    def test_compiles_whole(self, backend: str) -> None:
        call = self.build(**self.small).map(Tensor.float)
        torch._dynamo.reset()
        expected = self.outputs_and_gradients(call, "auto")
        compiled = torch.compile(
            lambda *tensors: self.outputs(call.with_tensors(tensors), "auto"), fullgraph=True, backend=backend
        )
        tensors = [tensor.clone().requires_grad_() for tensor in call.tensors()]
        outputs = compiled(*tensors)
        generator = torch.Generator().manual_seed(5)
        cotangents = [torch.randn(out.shape, generator=generator, dtype=torch.float64).to(out.dtype) for out in outputs]
        gradients = torch.autograd.grad(outputs, tensors, cotangents, materialize_grads=True)
        for ours, theirs in zip([*outputs, *gradients], expected, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
