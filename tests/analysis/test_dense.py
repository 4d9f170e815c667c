"""The whole catalog on models that predict masks: each analysis applies, or is refused in a sentence."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

import attngraft
from attngraft.analysis.catalog import ANALYSES, analysis
from attngraft.errors import RecordError, UsageError
from attngraft.targets.handle import ModelHandle
from tests.analysis.requests import bixt, image_set, make_request, predicting_masks, rows_of, swin, vit

GRAFTS = {
    "swin": "bisa@layers.0 + cb_s + horizontal@layers.0 + elsa(kernel=3)@layers.1.blocks.1",
    "vit": "bisa@blocks.1 + cb_s + horizontal@blocks.0",
    "bixt": "cb_s",
}
PER_IMAGE = "requires a class per image, but (plain|grafted) predicts one per pixel"
LATENTS, FILTERS, GHOST = (
    f"no chosen layer has {what}" for what in ("latents", "filters over neighborhoods", "a ghost head")
)
#: why an analysis does not apply
REFUSED = {
    "swin": {
        "class-token": "has no class token",
        "rollout": "without windows",
        "latents": LATENTS,
        "symmetry": LATENTS,
    },
    "vit": {"latents": LATENTS, "symmetry": LATENTS, "filters": FILTERS, "ghost": GHOST},
    "bixt": {
        "entropy-maps": "unknown: they have no grid",
        "entropy-samples": "unknown: they have no grid",
        "distance": "distance requires tokens on a grid",
        "class-token": "has no class token",
        "rollout": "unknown: they have no grid",
        "importance": "no chosen layer has an inverse branch",
        "structure": "no chosen attention layer has a map of the image",
        "filters": FILTERS,
        "ghost": GHOST,
    },
}
ALL = {
    "curves": "requires runs",
    **dict.fromkeys(("confusion", "sides", "gradients"), PER_IMAGE),
}


@cache
def pair(kind: str) -> tuple[ModelHandle, ModelHandle]:
    def host() -> torch.nn.Module:
        if kind == "swin":
            return swin(strict_img_size=False, always_partition=True, num_classes=0)
        return vit(dynamic_img_size=True, num_classes=0) if kind == "vit" else bixt(num_classes=0, positions="dynamic")

    plain, grafted = host(), host()
    attngraft.graft(grafted, GRAFTS[kind])
    return predicting_masks(plain, "plain"), predicting_masks(grafted, "grafted")


@pytest.mark.parametrize("name", ANALYSES)
@pytest.mark.parametrize("kind", GRAFTS)
def test_catalog(kind: str, name: str) -> None:
    given = make_request(*pair(kind), limit=4, shown=1)
    reason = {**ALL, **REFUSED[kind]}.get(name)
    if reason is None:
        result = analysis(name)(given)
        assert result.table.rows and result.subjects == ["plain", "grafted"]
        assert ("padded size of the training crops" in result.note) == (analysis(name).images != "none")
        return
    with pytest.raises((RecordError, UsageError), match=reason) as refused:
        analysis(name)(given)
    assert "\n" not in str(refused.value)


def test_structure_uses_the_label_maps_of_the_images() -> None:
    labels = np.zeros((32, 32), dtype=np.uint8)
    labels[:, 16:], labels[:2] = 1, 255
    images = replace(image_set(), label_map=lambda index: labels)
    result = analysis("structure")(make_request(*pair("swin"), image_set=images, limit=4, shown=1))
    assert "Boundaries are from noise:" in result.note
    assert "correlation with boundaries" in [column.name for column in result.table.columns]
    (panel, _) = result.panels
    (row,) = panel.rows
    edge = np.array(row.pictures[1].values)  # the image is enlarged to 64 x 64; its rows from 16 to 48 are seen
    assert edge.shape == (8, 16)
    assert edge[:, 7:9].min() > 0 and edge[:, :7].max() == edge[:, 9:].max() == 0
    assert rows_of(result, model="plain")
