"""What is shown image by image: the class token's rows, and what reaches the output."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import attngraft
from attngraft.analysis import class_token, rollout
from attngraft.errors import RecordError
from attngraft.results.analysis import Pictures
from tests.analysis.requests import inputs, make_request, rows_of, run_and_check, swin, vit


def test_class_token(tmp_path: Path) -> None:
    given = make_request(vit(), swin(), names=("ViT", "Swin"))
    result = run_and_check(class_token.ANALYSIS, given, tmp_path)
    assert "class token" in result.left_out["Swin"]
    model = given.models[0].model
    with torch.no_grad(), attngraft.record(model, "weights") as recording:
        model(inputs(given, [9]))
    rows = rows_of(result, image="noise/9")
    expected = recording["blocks.2.attn"]["weights"][0, :, 0].mean(0).log()
    for token in (0, 7, 16):
        (value,) = [row["log attention"] for row in rows if (row["layer"], row["token"]) == ("blocks.2.attn", token)]
        assert value == pytest.approx(float(expected[token]), rel=1e-4)
    (panel,) = result.panels
    assert isinstance(panel, Pictures)
    images, maps = panel.rows
    with Image.open(io.BytesIO(base64.b64decode(images.pictures[1].image or ""))) as shown:
        view = given.models[0].view(given.images.open(9))
        assert np.array_equal(np.array(shown), view.movedim(0, -1).numpy())
    assert np.array(maps.pictures[0].values).shape == (3, 17)


def test_rollout(tmp_path: Path) -> None:
    given = make_request(
        vit(depth=2), vit(class_token=False, global_pool="avg", depth=2), swin(), names=("class", "none", "Swin")
    )
    result = run_and_check(rollout.ANALYSIS, given, tmp_path)
    assert "windows" in result.left_out["Swin"]
    model = given.models[0].model
    with torch.no_grad(), attngraft.record(model, "weights") as recording:
        model(inputs(given, [0]))
    through = torch.eye(17)
    for site in ("blocks.0.attn", "blocks.1.attn"):
        through = (0.5 * recording[site]["weights"][0].mean(0) + 0.5 * torch.eye(17)) @ through
    shares = {(row["row"], row["column"]): row["share"] for row in rows_of(result, model="class", image="noise/0")}
    assert len(shares) == 16
    assert shares[1, 2] == pytest.approx(float(through[0, 1 + 6]), rel=1e-4)
    without = rows_of(result, model="none", image="noise/0")
    assert sum(row["share"] for row in without) == pytest.approx(1, rel=1e-4)
    with pytest.raises(RecordError, match="without windows"):
        rollout.ANALYSIS(make_request(swin()))


def test_layers_whose_map_a_graft_replaced_are_named(tmp_path: Path) -> None:
    model = vit()
    attngraft.graft(model, "misa@blocks.1")
    with pytest.raises(
        RecordError, match="blocks.1.attn: no attention map, but rollout requires maps of all layers; use --sites"
    ):
        rollout.ANALYSIS(make_request(model))
    assert rollout.ANALYSIS(make_request(model, sites="blocks.2")).table.rows
    result = run_and_check(class_token.ANALYSIS, make_request(model), tmp_path)
    assert {row["layer"] for row in rows_of(result)} == {"blocks.0.attn", "blocks.2.attn"}
    assert list(result.left_out) == ["a, blocks.1.attn"]
    assert "has no attention map; available: values" in result.left_out["a, blocks.1.attn"]
