"""Maps reduced as they come are what the kept maps would have given."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch

import attngraft
from attngraft.errors import UsageError
from attngraft.recording import measures
from attngraft.recording.attention_maps import tokens_to_map
from attngraft.recording.recording import Recording
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
    by_hand = measures.relative_distance(kept[site]["weights"], (4, 4)) / 2
    on_map = tokens_to_map(by_hand.movedim(1, 2), kept.token_indices(site)).mean(0)
    torch.testing.assert_close(reduced[site]["distance"], on_map.flatten(0, 1).T)


@pytest.mark.parametrize(
    ("name", "size", "changes"),
    [
        (
            "swin_tiny_patch4_window7_224",
            28,
            {"window_size": 4, "depths": (2, 1), "embed_dim": 12, "num_heads": (2, 3)},
        ),
        ("maxvit_tiny_rw_224", 128, {"stem_width": 8, "depths": (1, 1), "embed_dim": (32, 32)}),
    ],
)
def test_windows_are_measured_by_place_and_fillers_left_out(name: str, size: int, changes: dict[str, Any]) -> None:
    """Swin's maps of 7 x 7 fill windows of 4 x 4 up; MaxViT's grid attention has windows that spread over the map."""
    torch.manual_seed(0)
    model = timm.create_model(name, img_size=size, **changes).eval()
    images = torch.randn(3, 3, size, size)
    kept, reduced = both(model, "distance", "patch_entropy", "patch_ceiling", "entropy", images=images)
    for site in kept:
        whole = kept.full_attention_map(site).double()
        among = whole / whole.sum(-1, keepdim=True)
        rows, columns = kept.token_indices(site).shape
        row, column = torch.meshgrid(torch.arange(rows) / rows, torch.arange(columns) / columns, indexing="ij")
        at = torch.stack([row.flatten(), column.flatten()], -1).double()
        expected = (among * torch.cdist(at, at, p=1)).sum(-1).mean(0)
        torch.testing.assert_close(reduced[site]["distance"].double(), expected, atol=1e-5, rtol=1e-4)
        torch.testing.assert_close(
            reduced[site]["patch_entropy"].double(), torch.special.entr(among).sum(-1).mean(0), atol=1e-5, rtol=1e-4
        )
        ceiling = (whole[0] > 0).sum(-1).double().log()
        torch.testing.assert_close(reduced[site]["patch_ceiling"].double(), ceiling, atol=1e-5, rtol=1e-4)
        assert reduced[site]["entropy"].shape == (whole.shape[1], rows * columns)


def test_steepness_and_evenness() -> None:
    kept, reduced = both(tiny_vit(), "steepness", "evenness")
    expected = measures.steepness(kept[SITE]["weights"].log()).mean(0)
    torch.testing.assert_close(reduced[SITE]["steepness"], expected)
    torch.testing.assert_close(reduced[SITE]["evenness"], expected / (1 - 1 / 5))


def test_a_misspelt_name_of_maps_is_refused_when_sites_have_run() -> None:
    with torch.no_grad(), attngraft.record(tiny_vit(), "weights") as recording:
        recording.reduce("entropy", of="weigths")
        recording.check()  # nothing has run yet
    model, run = tiny_vit(), []
    with (
        pytest.raises(attngraft.RecordError, match="none of the chosen sites has 'weigths'.*available:.*weights"),
        attngraft.record(model, "weights") as recording,
    ):
        run.append(misspelt(model, recording))
    assert run


def misspelt(model: torch.nn.Module, recording: Recording) -> torch.Tensor:
    recording.reduce("entropy", of="weigths")
    with torch.no_grad():
        return model(IMAGES)


def test_what_cannot_be_reduced_is_refused() -> None:
    model = tiny_vit(dynamic_img_size=True)
    with torch.no_grad(), attngraft.record(model, "weights") as recording:
        with pytest.raises(UsageError, match="unknown reduction 'entropie'.*entropy.*; available: mean, entropy"):
            recording.reduce("entropie")
        recording.reduce("mean")
        model(IMAGES)
        with pytest.raises(attngraft.RecordError, match=r"blocks.0.attn: its maps have .* reduce inputs of one size"):
            model(IMAGES.repeat(1, 1, 2, 1))
        recording.clear()
        model(IMAGES.repeat(1, 1, 2, 1))
        assert recording[SITE]["mean"].shape == (3, 9, 9)
    with torch.no_grad(), attngraft.record(model, "weights") as recording:
        recording.reduce("distance", "entropy")
        model(IMAGES)
        with pytest.raises(
            attngraft.RecordError,
            match=r"blocks.0.attn: .* a map of 1 x 4, previously on .* 2 x 2; reduce inputs of one",
        ):
            model(IMAGES.reshape(-1, 3, 8, 32))  # as many tokens, elsewhere
        recording.clear()
        model(IMAGES.reshape(-1, 3, 8, 32))
    assert recording[SITE]["distance"].shape == (3, 4)


def test_windows_of_which_nobody_says_where_they_stand_have_no_distances() -> None:
    model = timm.create_model("maxvit_tiny_pm_256", img_size=64, stem_width=8, depths=(1,), embed_dim=(32,)).eval()
    with torch.no_grad(), attngraft.record(model, "weights") as recording:
        recording.reduce("entropy", "distance")
        model(torch.randn(1, 3, 64, 64))
    site = next(iter(recording))
    assert recording[site]["entropy"].isfinite().all()
    with pytest.raises(attngraft.RecordError, match="distance requires tokens on a grid"):
        recording[site]["distance"]
