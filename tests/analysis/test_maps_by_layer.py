"""Entropy and distance by layer, against maps that are kept whole."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import timm
import torch

import attngraft
from attngraft.analysis import distance, entropy, entropy_maps
from attngraft.analysis.request import Analysis
from attngraft.errors import RecordError
from attngraft.results.analysis import Curves
from tests.analysis.requests import SIDE, inputs, make_request, rows_of, run_and_check, sharp, swin, vit


def test_entropy_of_a_vit(tmp_path: Path) -> None:
    given = make_request(vit(reg_tokens=1), swin(), names=("ViT", "Swin"))
    result = run_and_check(entropy.ANALYSIS, given, tmp_path)
    model = given.models[0].model
    with torch.no_grad(), attngraft.record(model, "weights") as recording:
        model(inputs(given, [0, 2, 4, 5, 7, 9]))  # six of ten, evenly
    for site, (row,) in zip(recording, [rows_of(result, model="ViT", layer=site) for site in recording], strict=True):
        weights = recording[site]["weights"].double()
        every = -(weights * weights.log()).sum(-1)
        patches = weights[..., 2:, 2:] / weights[..., 2:, 2:].sum(-1, keepdim=True)
        assert row["entropy"] == pytest.approx(float(every.mean()), rel=1e-5)
        assert row["class token"] == pytest.approx(float(every[:, :, 0].mean()), rel=1e-5)
        assert row["among patches"] == pytest.approx(float(-(patches * patches.log()).sum(-1).mean()), rel=1e-5)
        assert row["ceiling"] == pytest.approx(math.log(18))
        assert row["ceiling among patches"] == pytest.approx(math.log(16))
        assert row["entropy"] < row["ceiling"]
    assert all(row["class token"] is None for row in rows_of(result, model="Swin"))
    patches_panel, class_panel = result.panels
    assert isinstance(patches_panel, Curves)
    assert isinstance(class_panel, Curves)
    assert [line.name for line in class_panel.lines] == ["ViT", "maximum"]
    assert len(patches_panel.lines[0].y) == 2, "the last layer is left out, as in the paper"


def test_a_model_without_attention_is_left_out(tmp_path: Path) -> None:
    import attngraft.models

    mixer = attngraft.create_model("small_mixer", num_blocks=2, embed_dim=16).eval()
    result = run_and_check(entropy.ANALYSIS, make_request(vit(), mixer, names=("ViT", "Mixer")), tmp_path)
    assert list(result.left_out) == ["Mixer"]
    with pytest.raises(RecordError, match="weights"):
        entropy.ANALYSIS(make_request(mixer))


def test_distance(tmp_path: Path) -> None:
    given = make_request(vit())
    result = run_and_check(distance.ANALYSIS, given, tmp_path)
    model = given.models[0].model
    with torch.no_grad(), attngraft.record(model, "weights", sites="blocks.1") as recording:
        model(inputs(given, [0, 2, 4, 5, 7, 9]))
    weights = recording["blocks.1.attn"]["weights"][..., 1:, 1:].double()
    weights = weights / weights.sum(-1, keepdim=True)
    expected = [0.0, 0.0]
    for i in range(16):
        for j in range(16):
            far = abs(i // 4 - j // 4) / 4 + abs(i % 4 - j % 4) / 4
            for head in range(2):
                expected[head] += far * float(weights[:, head, i, j].mean()) / 16
    rows = {row["head"]: row["distance"] for row in rows_of(result, layer="blocks.1.attn")}
    assert rows["0"] == pytest.approx(expected[0], rel=1e-4)
    assert rows["1"] == pytest.approx(expected[1], rel=1e-4)
    assert rows["mean"] == pytest.approx(sum(expected) / 2, rel=1e-4)


def cait() -> torch.nn.Module:
    """Its last two layers have one query, the class token."""
    return sharp(timm.create_model("cait_xxs24_224", img_size=SIDE, patch_size=8, depth=2, embed_dim=24, num_heads=2))


def test_class_attention_has_rows_of_the_class_token_alone(tmp_path: Path) -> None:
    result = run_and_check(entropy.ANALYSIS, make_request(cait()), tmp_path)
    (row,) = rows_of(result, layer="blocks_token_only.0.attn")
    assert row["entropy"] == row["class token"] > 0
    assert row["ceiling"] == pytest.approx(math.log(17))
    assert (row["among patches"], row["ceiling among patches"]) == (None, None)
    assert "are different tokens" in result.left_out["a, blocks_token_only.0.attn, among patches"]
    patches = rows_of(result, layer="blocks.0.attn")[0]
    assert 0 < patches["among patches"] < patches["ceiling among patches"] == pytest.approx(math.log(16))


def test_one_layer_without_distances_does_not_leave_the_model_out(tmp_path: Path) -> None:
    result = run_and_check(distance.ANALYSIS, make_request(cait()), tmp_path)
    assert {row["layer"] for row in rows_of(result)} == {"blocks.0.attn", "blocks.1.attn"}
    assert set(result.left_out) == {f"a, blocks_token_only.{block}.attn" for block in (0, 1)}


def test_layers_of_two_models_stand_by_name(tmp_path: Path) -> None:
    detached = swin()
    attngraft.graft(detached, "elsa(kernel=3)@layers.0.blocks.0")
    result = run_and_check(distance.ANALYSIS, make_request(detached, swin()), tmp_path)
    (panel,) = result.panels
    assert isinstance(panel, Curves)
    assert [line.x for line in panel.lines] == [[1.0, 2.0, 3.0], [0.0, 1.0, 2.0, 3.0]]
    assert len(panel.ticks) == 4


def test_steepness_by_layer(tmp_path: Path) -> None:
    given = make_request(vit())
    result = run_and_check(entropy.ANALYSIS, given, tmp_path)
    with torch.no_grad(), attngraft.record(given.models[0].model, "weights") as recording:
        given.models[0].model(inputs(given, [0, 2, 4, 5, 7, 9]))
    weights = recording["blocks.1.attn"]["weights"]
    expected = float((weights - weights.square()).sum(-1).mean())
    (row,) = rows_of(result, layer="blocks.1.attn")
    assert row["steepness"] == pytest.approx(expected, rel=1e-5)
    assert row["evenness"] == pytest.approx(expected / (1 - 1 / 17), rel=1e-5)


def test_subsampling_layers_alone_have_no_distance(tmp_path: Path) -> None:
    levit = timm.create_model("levit_128s", num_classes=2).eval()
    result = run_and_check(distance.ANALYSIS, make_request(levit, limit=2), tmp_path)
    left_out = {name.removeprefix("a, ") for name in result.left_out}
    assert left_out == {"stages.1.downsample.attn_downsample", "stages.2.downsample.attn_downsample"}
    assert not left_out & {row["layer"] for row in rows_of(result)}


@pytest.mark.parametrize(
    "analysis", [entropy.ANALYSIS, distance.ANALYSIS, entropy_maps.ANALYSIS], ids=lambda each: each.name
)
def test_layers_without_a_map_are_named(analysis: Analysis) -> None:
    model = vit()
    attngraft.graft(model, "misa@blocks.1")
    result = analysis(make_request(model))
    assert {row["layer"] for row in rows_of(result)} == {"blocks.0.attn", "blocks.2.attn"}
    assert list(result.left_out) == ["a, blocks.1.attn"]
    assert "has no attention map" in result.left_out["a, blocks.1.attn"]


def test_the_models_last_layer_is_not_drawn_whichever_were_chosen() -> None:
    for sites, drawn in (("blocks.0-1", 2), ("blocks.1-2", 1), ("blocks.2", 1)):
        (panel, _) = entropy.ANALYSIS(make_request(vit(), sites=sites)).panels
        assert isinstance(panel, Curves)
        assert len(panel.lines[0].y) == drawn
