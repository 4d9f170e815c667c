"""What BiSA's inverse branch attends to, on the image."""

from __future__ import annotations

import pytest
import timm
import torch

import attngraft
from attngraft.analysis.importance import importance, importance_map
from attngraft.attention import Geometry
from attngraft.recording.recording import Recording
from attngraft.recording.token_coordinates import TokenCoordinates


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
