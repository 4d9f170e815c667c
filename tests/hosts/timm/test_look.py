"""Shapes seen on the way through a host, and kept for models of the same form."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from torch import nn

import attngraft
from attngraft.hosts import find_host
from attngraft.hosts.timm import family
from attngraft.hosts.timm.family import Look, form

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
    """The models that were really looked through."""
    found: list[nn.Module] = []

    def noted(model: nn.Module) -> nn.Module:
        found.append(model)
        return on_meta(model)

    on_meta = family.on_meta
    monkeypatch.setattr(family, "on_meta", noted)
    monkeypatch.setattr(Look, "_seen", type(Look._seen)())
    return found


def tokens(model: nn.Module) -> list[int | None]:
    return [site.geometry.tokens for site in find_host(model).sites]


def test_models_of_the_same_form_are_looked_through_once(passes: list[nn.Module]) -> None:
    first = make()
    expected = tokens(first)
    assert tokens(make()) == expected
    attngraft.graft(first, "horizontal + cb_s")
    assert tokens(first.eval()) == expected
    assert len(passes) == 1


def test_another_size_is_another_form(passes: list[nn.Module]) -> None:
    assert tokens(make()) != tokens(make(img_size=48))
    assert len(passes) == 2


def test_settings_that_change_later_count(passes: list[nn.Module]) -> None:
    model = timm.create_model("levit_128s", img_size=48, stem_type="s16", embed_dim=(16, 24), key_dim=4, depth=(1, 1))
    before = form(model)
    model.stages[0].blocks[0].attn.use_conv = "anything"
    assert form(model) != before
    model.stages[0].blocks[0].attn.use_conv = False
    assert form(model) == before
    model.head = nn.Linear(3, 4)
    assert form(model) != before


def test_a_replaced_forward_is_not_compared() -> None:
    model = make()
    model.transformers[0].forward = lambda x: x
    assert form(model) is None


def test_no_more_than_some_are_kept(passes: list[nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Look, "_kept", 2)
    for size in (32, 40, 48, 32):
        tokens(make(img_size=size))
    assert len(passes) == 4
    tokens(make(img_size=48))
    assert len(passes) == 4
    assert len(Look._seen) == 2


def test_what_is_seen_are_shapes_of_the_real_pass() -> None:
    model = make().eval()
    seen: dict[str, tuple[int, ...]] = {}
    path = "transformers.1.blocks.0.attn"
    model.get_submodule(path).register_forward_pre_hook(lambda module, args: seen.update({path: tuple(args[0].shape)}))
    with torch.no_grad():
        model(torch.randn(1, 3, 32, 32))
    look = Look(find_host(model).adapter, model)
    assert look.entering(path) == look.leaving(path) == seen[path]
    assert look.ran(path)
    assert not look.ran("head_dist")
