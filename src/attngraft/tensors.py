"""Helpers for tensors: copies without shared storage, and models without values."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

#: buffers of indices in the models of timm, torchvision and transformers
_TABLES = ("relative_position_index", "attention_bias_idxs", "position_ids")


def unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous CPU tensors that share no storage, as safetensors requires; tied weights are copied."""
    seen: set[int] = set()
    found = {}
    for name, value in tensors.items():
        tensor = value.detach().cpu().resolve_conj().resolve_neg()  # flags that safetensors does not store
        storage = tensor.untyped_storage().data_ptr()
        found[name] = tensor.clone(memory_format=torch.contiguous_format) if storage in seen else tensor.contiguous()
        seen.add(storage)
    return found


def misfits(tensors: Mapping[str, Tensor], expected: Mapping[str, torch.Size], *, unknown: str) -> list[str]:
    """Describe how names and shapes of `tensors` differ from the expected ones; `unknown` says who lacks a name."""
    problems = [f"lacks {name}" for name in expected if name not in tensors]
    problems += [f"has {name}, which {unknown}" for name in tensors if name not in expected]
    return problems + [
        f"has {name} of shape {tuple(tensors[name].shape)} where {tuple(shape)} fits"
        for name, shape in expected.items()
        if name in tensors and tensors[name].shape != shape
    ]


def kind_of(tensor: Tensor) -> str:
    """Return the kind of a tensor's numbers: float, bool, int or complex. Precisions may differ."""
    kinds = {"float": tensor.is_floating_point(), "bool": tensor.dtype == torch.bool, "complex": tensor.is_complex()}
    return next((name for name, holds in kinds.items() if holds), "int")


def other_kinds(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> list[str]:
    """Describe the tensors that differ in kind from those of the same name in `expected`.

    Also described are tables of indices with other values, because a model computes these from its arguments.
    """
    pairs = {name: (tensor, expected[name]) for name, tensor in tensors.items() if name in expected}
    kinds = {name: (kind_of(tensor), kind_of(other)) for name, (tensor, other) in pairs.items()}
    wrong = [
        f"{name} of type {found} where {wanted} fits" for name, (found, wanted) in kinds.items() if found != wanted
    ]
    return wrong + [
        f"{name} with other values than those that the model computes"
        for name, (tensor, other) in pairs.items()
        if name.rpartition(".")[2] in _TABLES
        and not (tensor.is_meta or other.is_meta)
        and tensor.shape == other.shape
        and not torch.equal(tensor.cpu(), other.cpu())
    ]


def not_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the tensors with infinite values or values that are not numbers."""
    floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
    # torch has no `isfinite` of 8-bit floats
    return [name for name, each in floats.items() if not (each if each.itemsize > 1 else each.float()).isfinite().all()]


@contextmanager
def meta_device() -> Iterator[None]:
    """Create tensors on the meta device, without the operations that would only fill new ones.

    PyTorch runs these in Python, which takes three quarters of the time of creating a model there.
    """
    with torch.device("meta"), _SkipFilling():
        yield


class _SkipFilling(TorchFunctionMode):
    _FILLING = frozenset({"uniform_", "normal_", "erfinv_", "mul_", "add_", "clamp_", "fill_", "zero_"})

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        filled = args[0] if args else None
        if isinstance(filled, Tensor) and filled.is_meta and getattr(func, "__name__", "") in self._FILLING:
            return filled
        return func(*args, **(kwargs or {}))


def on_meta(model: nn.Module) -> nn.Module:
    """Return a copy of `model` whose parameters, buffers and other tensors are on the meta device."""
    memo: dict[int, Any] = {}
    attributes = [value for module in model.modules() for value in vars(module).values()]
    kept = [value for each in attributes if isinstance(each, dict) for value in each.values()]  # from earlier calls
    for tensor in [*model.buffers(), *attributes, *kept]:
        if isinstance(tensor, Tensor):
            memo[id(tensor)] = tensor.detach().to("meta")
    for parameter in model.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
    return copy.deepcopy(model, memo)
