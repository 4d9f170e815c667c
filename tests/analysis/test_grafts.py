"""What grafts learned: scales of cb_s, and how gates are distributed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import attngraft
from attngraft.analysis import gates, scaling
from attngraft.errors import RecordError
from attngraft.results.analysis import Boxes
from tests.analysis.requests import inputs, make_request, rows_of, run_and_check, swin, vit


def test_scales(tmp_path: Path) -> None:
    plain, scaled = vit(), vit()
    attngraft.graft(scaled, "cb_s")
    with torch.no_grad():
        scaled.blocks[1].mlp.grafts["cb_s"].scale.copy_(torch.arange(24) - 3.0)
    result = run_and_check(
        scaling.ANALYSIS, make_request(plain, scaled, names=("plain", "cb_s"), image_set=None), tmp_path
    )
    (row,) = rows_of(result, layer="blocks.1.mlp")
    assert row["mean"] == pytest.approx(23 / 2 - 3)
    assert row["ratio"] == pytest.approx(abs(2.3 - 3) / abs(20.7 - 3), rel=1e-5)
    (zero,) = rows_of(result, layer="blocks.0.mlp")
    assert zero["ratio"] is None, "0 / 0 is no number"
    assert "near 0" in result.left_out["cb_s, blocks.0.mlp: ratio"]
    assert (row["10%"], row["90%"]) == pytest.approx((2.3 - 3, 20.7 - 3), rel=1e-5)
    mean = result.panels[1].lines[0]
    assert (mean.low[1], mean.high[1]) == pytest.approx((2.3 - 3, 20.7 - 3), rel=1e-5)
    assert "graft cb_s" in result.left_out["plain"]
    with pytest.raises(RecordError, match="graft cb_s"):
        scaling.ANALYSIS(make_request(plain))


def test_a_ratio_near_zero_is_undefined() -> None:
    """Negative scales have a ratio; one whose 90% quantile is near 0 has none."""
    model = vit()
    attngraft.graft(model, "cb_s(init=1)")
    for block, low, high in zip(model.blocks, (-2.0, -1.0, -1.0), (-1.0, 0.12, 1.0), strict=True):
        block.mlp.grafts["cb_s"].scale.data.copy_(torch.linspace(low, high, 24))
    result = scaling.ANALYSIS(make_request(model, image_set=None))
    ratios = [row["ratio"] for row in rows_of(result)]
    assert ratios[0] == pytest.approx(1.9 / 1.1, rel=1e-5)
    assert ratios[1] is None
    assert ratios[2] == pytest.approx(1.0, rel=1e-5)
    assert list(result.left_out) == ["a, blocks.1.mlp: ratio"]


def test_gates(tmp_path: Path) -> None:
    model = vit()
    attngraft.graft(model, "horizontal@blocks.1 + vertical@blocks.1-2")
    given = make_request(model)
    result = run_and_check(gates.ANALYSIS, given, tmp_path)
    with torch.no_grad(), attngraft.record(model, "gates") as recording:
        model(inputs(given, [0, 2, 4, 5, 7, 9]))
    alpha = recording["blocks.1.attn"]["horizontal.alpha"].flatten().double()
    (row,) = rows_of(result, gate="horizontal.alpha")
    assert row["layer"] == "blocks.1.attn"
    assert row["mean"] == pytest.approx(float(alpha.mean()), rel=1e-5)
    assert (row["least"], row["largest"]) == pytest.approx((float(alpha.min()), float(alpha.max())))
    width = 3 * float(alpha.max() - alpha.min()) / 1000
    for share, name in ((0.05, "5%"), (0.5, "50%"), (0.95, "95%")):
        assert row[name] == pytest.approx(float(alpha.quantile(share)), abs=width)
    boxes = {panel.title: panel for panel in result.panels}
    assert list(boxes) == ["horizontal.alpha", "vertical.beta"]
    assert isinstance(boxes["vertical.beta"], Boxes)
    assert boxes["vertical.beta"].ticks == ["1", "2"]
    with pytest.raises(RecordError, match="gates"):
        gates.ANALYSIS(make_request(vit()))


def test_gates_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    model = vit()
    attngraft.graft(model, "horizontal@blocks.1 + vertical@blocks.1")
    for parameter in model.blocks[1].attn.grafts["horizontal"].parameters():
        parameter.data.fill_(torch.nan)
    model.blocks[1].attn.grafts["horizontal"].register_forward_hook(lambda module, given, output: given[0])
    result = run_and_check(gates.ANALYSIS, make_request(model), tmp_path)
    (row,) = rows_of(result, gate="horizontal.alpha")
    assert (row["mean"], row["50%"], row["largest"]) == (None, None, None)
    assert "NaN or infinite" in result.left_out["a, blocks.1.attn: horizontal.alpha"]


def test_two_scales_of_one_site_have_a_row_each() -> None:
    model = vit()
    attngraft.graft(model, "cb_s(position=end)@blocks.0-1 + cb_s(position=front)@blocks.0")
    with torch.no_grad():
        for scale, graft in enumerate(model.blocks[0].mlp.grafts.values()):
            graft.scale.fill_(1.0 + scale)
    result = scaling.ANALYSIS(make_request(model, image_set=None))
    names = list(model.blocks[0].mlp.grafts)
    assert {row["layer"]: row["mean"] for row in rows_of(result)} == {
        f"blocks.0.mlp, {names[0]}": 1,
        f"blocks.0.mlp, {names[1]}": 2,
        "blocks.1.mlp": 0,
    }


def test_gates_of_tokens_that_only_fill_windows_up_do_not_count(tmp_path: Path) -> None:
    model = swin(img_size=64, window_size=7)
    attngraft.graft(model, "horizontal@layers.1 + vertical@layers.1")
    given = make_request(model)
    result = run_and_check(gates.ANALYSIS, given, tmp_path)
    site = "layers.1.blocks.1.attn"  # 2 x 2 shifted windows of 7 x 7 on a map of 8 x 8
    with torch.no_grad(), attngraft.record(model, "gates") as recording:
        model(inputs(given, [0, 2, 4, 5, 7, 9]))
    for gate in ("horizontal.alpha", "vertical.beta"):
        every, on_map = recording[site][gate], recording.on_map(site, gate)
        assert every.shape[:2] == (6 * 4, 49)
        assert on_map.shape[:3] == (6, 8, 8)
        (row,) = rows_of(result, gate=gate, layer=site)
        assert row["mean"] == pytest.approx(float(on_map.mean()), rel=1e-5)
        assert (row["least"], row["largest"]) == pytest.approx((float(on_map.min()), float(on_map.max())))
    (row,) = rows_of(result, gate="vertical.beta", layer=site)
    assert row["mean"] != pytest.approx(float(every.mean()), rel=1e-5)
