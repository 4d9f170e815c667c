"""What BiSA's inverse branch attends to, on the image."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch

import attngraft
from attngraft.analysis.importance import ANALYSIS, importance, importance_map
from attngraft.attention import Geometry
from attngraft.errors import RecordError
from attngraft.recording.recording import Recording
from attngraft.recording.token_coordinates import TokenCoordinates
from attngraft.results.analysis import Curves, Pictures
from tests.analysis.requests import inputs, make_request, rows_of, run_and_check, swin, vit


def test_a_query_counts_by_the_key_that_it_agrees_with_best() -> None:
    weights = torch.tensor([[0.1, 0.7], [0.2, 0.2], [0.7, 0.1]])
    assert importance(weights).tolist() == pytest.approx([0.7, 0.2, 0.7])


def recorded(weights: torch.Tensor, places: torch.Tensor) -> Recording:
    """As a host with windows would have said it."""
    recording = Recording(coordinates=TokenCoordinates({"attn": Geometry(dim=4)}))
    recording.add("attn", "places", places)
    recording.add("attn", "bisa.inverse_weights", weights)
    return recording


def test_each_window_goes_from_0_to_1_where_it_stands() -> None:
    """Two windows of 1 x 2 beside each other, places as a host with a shift by one column has them."""
    weights = torch.zeros(2, 1, 2, 2)
    weights[0, 0] = torch.tensor([[0.2, 0.1], [0.8, 0.3]])
    weights[1, 0] = torch.tensor([[0.9, 0.0], [0.1, 0.4]])
    found = importance_map(recorded(weights, torch.tensor([[3, 0, 1, 2]])), "attn")
    assert found.tolist() == [[[[0, 0, 1, 1]]]]


def test_tokens_that_stand_nowhere_set_no_scale() -> None:
    """A class token first, more important than any patch; a filling token last."""
    weights = torch.tensor([0.9, 0.1, 0.2, 0.3, 0.0])[:, None].expand(5, 5)[None, None]
    found = importance_map(recorded(weights, torch.tensor([[1, 2, 3]])), "attn")
    torch.testing.assert_close(found, torch.tensor([[[[0.0, 0.5, 1.0]]]]))


def test_a_window_of_equals_is_zero() -> None:
    found = importance_map(recorded(torch.full((1, 2, 4, 4), 0.25), torch.arange(4).view(2, 2)), "attn")
    assert found.tolist() == [[[[0, 0], [0, 0]]] * 2]


def test_on_a_swin_with_shifted_windows() -> None:
    model = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=32, window_size=4, depths=(2,), embed_dim=16, num_heads=(2,)
    )
    attngraft.graft(model, "misa")
    with torch.no_grad(), attngraft.record(model.eval(), "misa") as recording:
        model(torch.randn(2, 3, 32, 32))
    for block in (0, 1):
        site = f"layers.0.blocks.{block}.attn"
        inverse = recording[site]["misa.inverse_weights"]
        found, places = importance_map(recording, site, "misa.inverse_weights"), recording.token_indices(site)
        assert found.shape == (2, 2, 8, 8)
        for window in range(4):
            inside = found[:, :, (places >= 16 * window) & (places < 16 * (window + 1))]
            torch.testing.assert_close(inside.amin(-1), torch.zeros(2, 2))
            torch.testing.assert_close(inside.amax(-1), torch.ones(2, 2))
        whole = importance(inverse).unflatten(0, (2, 4)).transpose(1, 2).flatten(2)[..., places]
        for window in range(4):
            inside = (places >= 16 * window) & (places < 16 * (window + 1))
            raw, scaled = whole[..., inside], found[..., inside]
            low, high = raw.amin(-1, keepdim=True), raw.amax(-1, keepdim=True)
            torch.testing.assert_close(scaled, (raw - low) / (high - low))


def test_images_of_another_size_have_their_own_map() -> None:
    """Of as many tokens as the model was built for, but not on a map of 4 x 4."""
    model = timm.create_model(
        "vit_tiny_patch16_224",
        img_size=32,
        patch_size=8,
        depth=1,
        embed_dim=24,
        num_heads=2,
        dynamic_img_size=True,
    )
    attngraft.graft(model, "bisa")
    with torch.no_grad(), attngraft.record(model.eval(), "bisa") as recording:
        model(torch.randn(1, 3, 16, 64))
    found = importance_map(recording, "blocks.0.attn")
    assert found.shape == (1, 2, 2, 8)
    of_patches = importance(recording["blocks.0.attn"]["bisa.inverse_weights"])[0, :, 1:]
    low, high = of_patches.amin(1, keepdim=True), of_patches.amax(1, keepdim=True)
    torch.testing.assert_close(found[0].flatten(1), (of_patches - low) / (high - low))


def test_maps_and_sizes_of_shifted_windows(tmp_path: Path) -> None:
    model, plain = swin(), swin()
    attngraft.graft(model, "bisa@layers.0.blocks.1 + misa@layers.1.blocks.0")
    given = make_request(model, plain, names=("bisa", "plain"))
    result = run_and_check(ANALYSIS, given, tmp_path)
    site = "layers.0.blocks.1.attn"
    with torch.no_grad(), attngraft.record(model, sites=site) as recording:
        model(inputs(given, [9]))
    kept, places = recording[site], recording.token_indices(site)
    windows = kept["bisa.inverse_weights"].amax(-1)
    low, high = windows.amin(-1, keepdim=True), windows.amax(-1, keepdim=True)
    expected = ((windows - low) / (high - low)).mean(1).flatten()[places]  # no window is filled up
    rows = rows_of(result, layer=site, image="noise/9", what="importance")
    assert {row["head"] for row in rows} == {"mean"}
    values = torch.zeros(8, 8)
    for row in rows:
        values[row["row"], row["column"]] = row["value"]
    torch.testing.assert_close(values, expected, atol=1e-5, rtol=1e-4)
    with torch.no_grad(), attngraft.record(model, sites=site) as both:
        model(inputs(given, [0, 9]))
    for branch in ("self", "inverse"):
        (row,) = rows_of(result, layer=site, what=f"mean |{branch}|")
        assert row["value"] == pytest.approx(float(both[site][f"bisa.{branch}"].abs().mean()), rel=1e-4)
    assert not rows_of(result, layer="layers.1.blocks.0.attn", what="mean |self|"), "misa has no other branch"
    assert list(result.numbers) == [f"bisa, {site}: mean |inverse| / mean |self|"]
    assert "bisa and misa" in result.left_out["plain"]
    pictures, sizes = result.panels
    assert isinstance(pictures, Pictures)
    assert [len(row.pictures) for row in pictures.rows] == [3, 3], "the image and two layers"
    assert isinstance(sizes, Curves)
    assert [(line.name, line.y[1] is None) for line in sizes.lines] == [("bisa: self", True), ("bisa: inverse", False)]


def test_models_share_the_axis_of_layers(tmp_path: Path) -> None:
    """In its order, whichever model comes first; curves begin and end where their models' layers do."""
    late, early = vit(), vit()
    attngraft.graft(late, "bisa@blocks.1-2")
    attngraft.graft(early, "bisa@blocks.0-1")
    sizes = run_and_check(ANALYSIS, make_request(late, early, shown=1), tmp_path).panels[-1]
    assert isinstance(sizes, Curves)
    assert sizes.ticks == ["0", "1", "2"]
    assert [line.x for line in sizes.lines] == [[1, 2], [1, 2], [0, 1], [0, 1]]
    assert all(size is not None for line in sizes.lines for size in line.y)


def test_head_by_head(tmp_path: Path) -> None:
    model = vit()
    attngraft.graft(model, "bisa@blocks.1-2")
    result = run_and_check(ANALYSIS, make_request(model, heads=True, shown=1), tmp_path)
    assert {row["head"] for row in rows_of(result, what="importance")} == {"0", "1"}
    pictures = [panel for panel in result.panels if isinstance(panel, Pictures)]
    assert [panel.title for panel in pictures] == [f"a: importance in blocks.{block}.attn" for block in (1, 2)]
    assert [each.caption for each in pictures[0].rows[0].pictures] == ["image", "head 0", "head 1"]


def test_without_an_inverse_branch() -> None:
    with pytest.raises(RecordError, match="the grafts bisa and misa add one"):
        ANALYSIS(make_request(vit(), swin()))
