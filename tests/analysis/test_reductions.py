"""Maps reduced as they come are what the kept maps would have given."""

from __future__ import annotations

import pytest
import timm
import torch

import attngraft
from attngraft.analysis import measures
from attngraft.errors import UsageError
from tests.grafting.test_apply import tiny_vit

IMAGES = torch.linspace(-1, 1, 5 * 3 * 16 * 16).reshape(5, 3, 16, 16).sin()
SITE = "blocks.1.attn"


def both(model: torch.nn.Module, *reductions: str, of: str = "weights", images: torch.Tensor = IMAGES):  # type: ignore[no-untyped-def]
    """Recordings of the same images: all maps at once, and reduced in uneven batches."""
    with torch.no_grad(), attngraft.record(model, of) as kept:
        model(images)
    with torch.no_grad(), attngraft.record(model, of) as reduced:
        reduced.reduce(*reductions, of=of)
        for batch in images.split(2):
            model(batch)
    return kept, reduced


def test_means_over_images_are_those_of_all_maps() -> None:
    kept, reduced = both(tiny_vit(), "mean", "entropy", "patch_entropy", "distance")
    weights = kept[SITE]["weights"]
    spatial = measures.without_prefix(weights)
    torch.testing.assert_close(reduced[SITE]["mean"], weights.mean(0))
    torch.testing.assert_close(reduced[SITE]["entropy"], measures.entropy(weights).mean(0))
    torch.testing.assert_close(reduced[SITE]["patch_entropy"], measures.entropy(spatial).mean(0))
    torch.testing.assert_close(reduced[SITE]["distance"], measures.relative_distance(spatial, (2, 2)).mean(0))
    assert list(reduced) == [f"blocks.{i}.attn" for i in range(3)]
    with pytest.raises(attngraft.RecordError, match="'weights' of 'blocks.1.attn' was not kept"):
        reduced[SITE]["weights"]


def test_maps_of_grafts_are_reduced_by_their_name() -> None:
    model = tiny_vit()
    attngraft.graft(model, "bisa")
    kept, reduced = both(model, "mean", of="bisa.inverse_weights")
    torch.testing.assert_close(reduced[SITE]["bisa.inverse_weights.mean"], kept[SITE]["bisa.inverse_weights"].mean(0))


def test_distances_in_windows_count_in_parts_of_the_whole_map() -> None:
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    model = timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=32, window_size=4, depths=(2, 1), embed_dim=12, num_heads=(2, 3)
    )
    site = "layers.1.blocks.0.attn"  # a window that is the map of 4 x 4
    kept, reduced = both(model.eval(), "distance", images=images)
    weights = kept[site]["weights"]
    torch.testing.assert_close(reduced[site]["distance"], measures.relative_distance(weights, (4, 4)).mean(0))
    site = "layers.0.blocks.0.attn"  # four of them on a map of 8 x 8
    by_hand = measures.relative_distance(kept[site]["weights"], (4, 4)).mean(0) / 2
    torch.testing.assert_close(reduced[site]["distance"], by_hand)


def test_what_cannot_be_reduced_is_refused() -> None:
    model = tiny_vit(dynamic_img_size=True)
    with torch.no_grad(), attngraft.record(model, "weights") as recording:
        with pytest.raises(UsageError, match="'entropie' is no reduction .*entropy.*; there are mean, entropy"):
            recording.reduce("entropie")
        recording.reduce("mean")
        model(IMAGES)
        with pytest.raises(attngraft.RecordError, match=r"blocks.0.attn: its maps have .* reduce inputs of one size"):
            model(IMAGES.repeat(1, 1, 2, 1))
        recording.clear()
        model(IMAGES.repeat(1, 1, 2, 1))
        assert recording[SITE]["mean"].shape == (3, 9, 9)
    with torch.no_grad(), attngraft.record(model, "weights") as recording:
        recording.reduce("distance")
        with pytest.raises(attngraft.RecordError, match="9 x 9 tokens stand on no grid"):
            model(IMAGES.repeat(1, 1, 2, 1))
