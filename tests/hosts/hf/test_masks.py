"""Masks in exported programs: created by transformers, or an input."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from packaging.version import Version
from torch import Tensor, nn

import attngraft
from tests.contract.hf.hosts import TINY, transformers

IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])


class Masked(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, mask: Tensor | None = None) -> Tensor:
        tokens: Tensor = self.model(images, attention_mask=mask).last_hidden_state
        return tokens


def grafted(spec: str, implementation: str) -> Masked:
    torch.manual_seed(0)
    config = transformers.ViTConfig(**{**TINY, "num_hidden_layers": 1}, attn_implementation=implementation)
    model = transformers.ViTModel(config, add_pooling_layer=False).eval()
    attngraft.graft(model, spec)
    return Masked(model)


def exported(model: nn.Module, *inputs: Tensor, free: bool = True) -> Any:
    batch = torch.export.Dim("batch", min=1)
    shapes = tuple({0: batch} for _ in inputs) if free else None
    return torch.export.export(model, inputs, dynamic_shapes=shapes, strict=False).module()


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("free", [True, False])
def test_a_mask_that_is_an_input_is_refused_as_in_a_call(implementation: str, free: bool) -> None:
    model = grafted("cb_s(init=1)", implementation)
    with pytest.raises(attngraft.AttngraftError, match="cb_s.*a padding mask") as called:
        model(IMAGES, MASK)
    with pytest.raises(attngraft.AttngraftError) as traced:
        exported(model, IMAGES, MASK, free=free)
    assert str(traced.value).startswith(str(called.value))


def test_a_mask_that_only_its_size_ties_to_the_inputs_is_not() -> None:
    """Exported programs contain masks that hide nothing, which depend only on the batch size."""
    model = grafted("cb_s(init=1)", "sdpa")
    program = exported(model, IMAGES)
    for images in (IMAGES, IMAGES[:1]):
        torch.testing.assert_close(program(images), model(images))


def test_what_is_checked_in_a_call_is_exported_by_dynamo() -> None:
    model = grafted("cb_s(init=1) + horizontal", "sdpa")
    program = torch.export.export(model, (IMAGES,), strict=True).module()
    torch.testing.assert_close(program(IMAGES), model(IMAGES))


@pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.20"), reason="older ones make a mask of their own while compiled"
)
def test_what_is_checked_in_a_call_is_compiled() -> None:
    model = grafted("cb_s(init=1) + horizontal", "sdpa")
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(IMAGES), model(IMAGES))


def test_grafts_that_know_of_masks_are_exported_with_them() -> None:
    model = grafted("bisa + horizontal", "sdpa")
    program = exported(model, IMAGES, MASK)
    torch.testing.assert_close(program(IMAGES, MASK), model(IMAGES, MASK))
    assert not torch.allclose(program(IMAGES, MASK), model(IMAGES))
