"""Gradients at the positions of an MLP, against hooks on its layers."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import attngraft
from attngraft.analysis import gradients
from attngraft.errors import UsageError
from tests.analysis.requests import image_set, inputs, make_request, rows_of, run_and_check, vit

LIMIT = 6


def by_hooks(model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, dict[str, float]]:
    """Return root mean squares of the norms of gradients, by layer and position."""
    kept: dict[tuple[str, str], Tensor] = {}

    def keep(key: tuple[str, str], tensor: Tensor) -> None:
        tensor.retain_grad()
        kept[key] = tensor

    for index, block in enumerate(model.blocks):
        layer = f"blocks.{index}.mlp"
        block.mlp.fc1.register_forward_pre_hook(lambda _m, given, layer=layer: keep((layer, "front"), given[0]))
        block.mlp.act.register_forward_hook(lambda _m, _i, out, layer=layer: keep((layer, "mid"), out))
        block.mlp.register_forward_hook(lambda _m, _i, out, layer=layer: keep((layer, "end"), out))
    nn.functional.cross_entropy(model(images), labels, reduction="sum").backward()
    found: dict[str, dict[str, float]] = {}
    for (layer, position), tensor in kept.items():
        found.setdefault(layer, {})[position] = float(tensor.grad.norm(dim=-1).square().mean().sqrt())
    return found


def test_of_every_layer_and_position(tmp_path: Path) -> None:
    model = vit(num_classes=2)
    for parameter in model.blocks[0].parameters():
        parameter.requires_grad_(False)
    given = make_request(model, limit=LIMIT)
    result = run_and_check(gradients.ANALYSIS, given, tmp_path)
    places = given.images.sample(LIMIT)
    expected = by_hooks(deepcopy(model), inputs(given, places), torch.tensor(image_set().labels[places]))
    found: dict[str, dict[str, float]] = {}
    for row in rows_of(result):
        found.setdefault(row["layer"], {})[row["position"]] = row["gradient"]
    assert found.keys() == expected.keys()
    for layer, each in expected.items():
        assert found[layer] == pytest.approx(each, rel=1e-4)
    assert [panel.title for panel in result.panels] == [
        f"gradient at the {where} of the MLP" for where in ("front", "middle", "end")
    ]
    assert all(parameter.grad is None for parameter in model.parameters())


def test_cb_at_the_middle_and_the_end_has_the_same_gradients_at_the_front() -> None:
    plain = vit(num_classes=2)
    models = [deepcopy(plain) for _ in range(3)]
    for model, position in zip(models, ("front", "mid", "end"), strict=True):
        attngraft.graft(model, f"cb(position={position})")
    result = gradients.ANALYSIS(make_request(*models, names=("front", "mid", "end")))
    front, mid, end = (
        [row["gradient"] for row in rows_of(result, model=name, position="front")] for name in ("front", "mid", "end")
    )
    assert mid == pytest.approx(end, rel=1e-4)
    assert front != pytest.approx(end, rel=1e-2)


def test_images_without_labels_and_other_classes_are_refused() -> None:
    with pytest.raises(UsageError, match="no labels; use --data"):
        gradients.ANALYSIS(make_request(vit(num_classes=2), image_set=replace(image_set(), labels=None)))
    with pytest.raises(UsageError, match="has 5 classes without names"):
        gradients.ANALYSIS(make_request(vit()))
