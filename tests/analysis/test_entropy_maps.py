"""Entropies on the image, against maps that are recorded here."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch

import attngraft
from attngraft.analysis import entropy_maps
from attngraft.errors import RecordError
from tests.analysis.requests import bixt, inputs, make_request, rows_of, run_and_check, sharp, swin, vit


def test_of_patches_without_the_class_token(tmp_path: Path) -> None:
    given = make_request(vit(), vit(class_token=False, global_pool="avg"), names=("class", "none"))
    result = run_and_check(entropy_maps.ANALYSIS, given, tmp_path)
    for subject, prefix in zip(given.models, (1, 0), strict=True):
        with torch.no_grad(), attngraft.record(subject.model, "weights") as recording:
            subject.model(inputs(given, [9], subject=given.models.index(subject)))
        for layer in range(3):
            among = recording[f"blocks.{layer}.attn"]["weights"][0, :, prefix:, prefix:].double()
            among = among / among.sum(-1, keepdim=True)
            expected = -(among * among.log()).sum(-1).mean(0)
            rows = rows_of(result, model=subject.name, image="noise/9", layer=f"blocks.{layer}.attn", head="mean")
            assert [row["entropy"] for row in rows] == pytest.approx(expected.tolist(), rel=1e-4)
            assert [(row["row"], row["column"]) for row in rows] == [(i // 4, i % 4) for i in range(16)]
    first = result.panels[0]
    assert [row.name for row in first.rows] == ["image", "entropy"]
    assert [picture.caption for picture in first.rows[1].pictures] == ["layer 0", "layer 1", "layer 2"]
    every = [row["entropy"] for row in rows_of(result)]
    assert {(panel.low, panel.high) for panel in result.panels} == {(min(every), max(every))}


def test_shifted_windows_stand_in_their_places() -> None:
    given = make_request(swin(), shown=1, heads=True)
    result = entropy_maps.ANALYSIS(given)
    model = given.models[0].model
    with torch.no_grad(), attngraft.record(model, "weights") as recording:
        model(inputs(given, [0]))
    for site in recording:
        whole = recording.full_attention_map(site)[0].double()
        expected = torch.special.entr(whole).sum(-1)
        for head, values in enumerate(expected):
            rows = rows_of(result, layer=site, head=str(head))
            assert [row["entropy"] for row in rows] == pytest.approx(values.tolist(), rel=1e-4)
    (panel,) = result.panels
    assert [len(row.pictures) for row in panel.rows] == [1, 1, 1, 2, 2]


def test_layers_without_places_are_named() -> None:
    model = sharp(
        timm.create_model("levit_128s", img_size=64, embed_dim=(16, 24), key_dim=4, depth=(1, 1), num_heads=(2, 3))
    )
    result = entropy_maps.ANALYSIS(make_request(model, shown=1))
    assert {key.partition(", ")[0] for key in result.left_out} == {"a"}
    assert any("downsample" in key for key in result.left_out)


def test_a_model_without_such_maps() -> None:
    with pytest.raises(RecordError, match="they have no grid"):
        entropy_maps.ANALYSIS(make_request(bixt(), shown=1, sites="blocks.0"))
