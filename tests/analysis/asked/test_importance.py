"""What the inverse branch finds important, against weights that are recorded and scaled here."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import attngraft
from attngraft.analysis.asked import importance
from attngraft.errors import RecordError
from attngraft.results.analysis import Curves, Pictures
from tests.analysis.asked.asking import ask, found, inputs, rows_of, swin, vit


def test_maps_and_sizes_of_shifted_windows(tmp_path: Path) -> None:
    model, plain = swin(), swin()
    attngraft.graft(model, "bisa@layers.0.blocks.1 + misa@layers.1.blocks.0")
    given = ask(model, plain, names=("bisa", "plain"))
    finding = found(importance.ANALYSIS, given, tmp_path)
    site = "layers.0.blocks.1.attn"
    with torch.no_grad(), attngraft.record(model, sites=site) as recording:
        model(inputs(given, [9]))
    kept, places = recording[site], recording.token_indices(site)
    windows = kept["bisa.inverse_weights"].amax(-1)
    low, high = windows.amin(-1, keepdim=True), windows.amax(-1, keepdim=True)
    expected = ((windows - low) / (high - low)).mean(1).flatten()[places]  # no window is filled up
    rows = rows_of(finding, layer=site, image="noise/9", what="importance")
    assert {row["head"] for row in rows} == {"mean"}
    values = torch.zeros(8, 8)
    for row in rows:
        values[row["row"], row["column"]] = row["value"]
    torch.testing.assert_close(values, expected, atol=1e-5, rtol=1e-4)
    with torch.no_grad(), attngraft.record(model, sites=site) as both:
        model(inputs(given, [0, 9]))
    for branch in ("self", "inverse"):
        (row,) = rows_of(finding, layer=site, what=f"mean |{branch}|")
        assert row["value"] == pytest.approx(float(both[site][f"bisa.{branch}"].abs().mean()), rel=1e-4)
    assert not rows_of(finding, layer="layers.1.blocks.0.attn", what="mean |self|"), "misa has no other branch"
    assert list(finding.numbers) == [f"bisa, {site}: mean |inverse| / mean |self|"]
    assert "bisa and misa" in finding.left_out["plain"]
    pictures, sizes = finding.panels
    assert isinstance(pictures, Pictures)
    assert [len(row.pictures) for row in pictures.rows] == [3, 3], "the image and two layers"
    assert isinstance(sizes, Curves)
    assert [(line.name, line.y[1] is None) for line in sizes.lines] == [("bisa: self", True), ("bisa: inverse", False)]


def test_models_share_the_axis_of_layers(tmp_path: Path) -> None:
    """In its order, whichever model comes first; curves begin and end where their models' layers do."""
    late, early = vit(), vit()
    attngraft.graft(late, "bisa@blocks.1-2")
    attngraft.graft(early, "bisa@blocks.0-1")
    sizes = found(importance.ANALYSIS, ask(late, early, shown=1), tmp_path).panels[-1]
    assert isinstance(sizes, Curves)
    assert sizes.ticks == ["0", "1", "2"]
    assert [line.x for line in sizes.lines] == [[1, 2], [1, 2], [0, 1], [0, 1]]
    assert all(size is not None for line in sizes.lines for size in line.y)


def test_head_by_head(tmp_path: Path) -> None:
    model = vit()
    attngraft.graft(model, "bisa@blocks.1-2")
    finding = found(importance.ANALYSIS, ask(model, heads=True, shown=1), tmp_path)
    assert {row["head"] for row in rows_of(finding, what="importance")} == {"0", "1"}
    pictures = [panel for panel in finding.panels if isinstance(panel, Pictures)]
    assert [panel.title for panel in pictures] == [f"a: importance in blocks.{block}.attn" for block in (1, 2)]
    assert [each.caption for each in pictures[0].rows[0].pictures] == ["image", "head 0", "head 1"]


def test_without_an_inverse_branch() -> None:
    with pytest.raises(RecordError, match="which the grafts bisa and misa give"):
        importance.ANALYSIS(ask(vit(), swin()))
