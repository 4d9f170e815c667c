"""Shapes inside a host, cached for models of the same structure."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from torch import nn

import attngraft
from attngraft.hosts import family, find_host
from attngraft.hosts.family import ShapeProbe, structure

TINY: dict[str, Any] = {
    "img_size": 32,
    "patch_size": 8,
    "stride": 8,
    "base_dims": (8, 8),
    "depth": (1, 1),
    "heads": (2, 4),
}


def make(**changes: Any) -> nn.Module:
    return timm.create_model("pit_ti_224", **(TINY | changes))


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """Record the models that run on the meta device."""
    ran: list[nn.Module] = []

    def noted(model: nn.Module) -> nn.Module:
        ran.append(model)
        return on_meta(model)

    on_meta = family.on_meta
    monkeypatch.setattr(family, "on_meta", noted)
    monkeypatch.setattr(ShapeProbe, "_cache", type(ShapeProbe._cache)())
    return ran


def tokens(model: nn.Module) -> list[int | None]:
    return [site.geometry.tokens for site in find_host(model).sites]


def test_models_of_the_same_structure_run_once(passes: list[nn.Module]) -> None:
    first = make()
    expected = tokens(first)
    assert tokens(make()) == expected
    attngraft.graft(first, "horizontal + cb_s")
    assert tokens(first.eval()) == expected
    assert len(passes) == 1


def test_another_size_is_another_structure(passes: list[nn.Module]) -> None:
    assert tokens(make()) != tokens(make(img_size=48))
    assert len(passes) == 2


def test_changed_settings_are_another_structure(passes: list[nn.Module]) -> None:
    model = timm.create_model("levit_128s", img_size=48, stem_type="s16", embed_dim=(16, 24), key_dim=4, depth=(1, 1))
    before = structure(model)
    model.stages[0].blocks[0].attn.use_conv = "anything"
    assert structure(model) != before
    model.stages[0].blocks[0].attn.use_conv = False
    assert structure(model) == before
    model.head = nn.Linear(3, 4)
    assert structure(model) != before


def test_a_replaced_forward_is_not_compared() -> None:
    model = make()
    model.transformers[0].forward = lambda x: x
    assert structure(model) is None


def test_the_cache_is_limited(passes: list[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShapeProbe, "_cache_size", 2)
    for size in (32, 40, 48, 32):
        tokens(make(img_size=size))
    assert len(passes) == 4
    tokens(make(img_size=48))
    assert len(passes) == 4
    assert len(ShapeProbe._cache) == 2


def test_shapes_are_those_of_a_real_pass() -> None:
    model = make().eval()
    seen: dict[str, tuple[int, ...]] = {}
    path = "transformers.1.blocks.0.attn"
    model.get_submodule(path).register_forward_pre_hook(lambda module, args: seen.update({path: tuple(args[0].shape)}))
    with torch.no_grad():
        model(torch.randn(1, 3, 32, 32))
    shapes = ShapeProbe(find_host(model).adapter, model)
    assert shapes.input_shape(path) == shapes.output_shape(path) == seen[path]
    with pytest.raises(KeyError):
        shapes.input_shape("head_dist")  # unused
