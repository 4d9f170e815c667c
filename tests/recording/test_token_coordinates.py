"""Where tokens stand: at the host's own size, at others, in sequences that lie between each other, and as keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from timm.models.mobilevit import MobileVitBlock
from timm.models.nest import Nest, deblockify
from torch import Tensor, nn

import attngraft
from attngraft.attention import AttentionGeometry, Geometry
from attngraft.errors import RecordError, UsageError
from attngraft.recording.attention_maps import interleaved_indices, scaled_grid, tokens_to_map
from attngraft.recording.recording import Recording
from attngraft.recording.token_coordinates import TokenCoordinates

sides = st.integers(1, 9)
pairs = st.tuples(sides, sides)


@given(grid=pairs, patch=pairs, seen=pairs, left=st.tuples(st.floats(0, 0.99), st.floats(0, 0.99)))
def test_a_grid_goes_with_the_size_of_the_images(
    grid: tuple[int, int], patch: tuple[int, int], seen: tuple[int, int], left: tuple[float, float]
) -> None:
    """A host that drops what is left over at a side, and one that fills it up, each with so many places as it has."""
    default_size = (grid[0] * patch[0], grid[1] * patch[1])
    more = tuple(int(share * each) for share, each in zip(left, patch, strict=True))
    pixels = (seen[0] * patch[0] + more[0], seen[1] * patch[1] + more[1])
    filled = (seen[0] + bool(more[0]), seen[1] + bool(more[1]))
    for found in (seen, filled):
        assert scaled_grid(pixels, grid=grid, default_size=default_size, tokens=found[0] * found[1]) == found
    assert scaled_grid(pixels, grid=grid, default_size=default_size) == (seen if filled == seen else None)
    assert scaled_grid(pixels, grid=grid, default_size=default_size, tokens=filled[0] * filled[1] + 1) is None


@given(grid=pairs, apart=pairs)
def test_every_place_has_one_token_of_one_sequence(grid: tuple[int, int], apart: tuple[int, int]) -> None:
    places = interleaved_indices(grid, apart)
    assert places.shape == (grid[0] * apart[0], grid[1] * apart[1])
    assert sorted(places.flatten().tolist()) == list(range(places.numel()))
    first = places // (grid[0] * grid[1]) == 0
    assert first.nonzero().tolist() == [
        [row * apart[0], column * apart[1]] for row in range(grid[0]) for column in range(grid[1])
    ]


def recorded(model: nn.Module, *size: int, call: Callable[[Tensor], Tensor] | None = None) -> Recording:
    with torch.no_grad(), attngraft.record(model, {"weights", "mlp.end"}) as recording:
        (call or model)(torch.randn(2, 3, *size))
    return recording


@pytest.mark.parametrize("size", [(64, 64), (32, 128), (128, 32), (96, 48)], ids=str)
@pytest.mark.parametrize("part", [False, True], ids=["whole", "features"])
def test_images_of_other_sizes_have_their_own_map(size: tuple[int, int], part: bool) -> None:
    """32 x 128 has as many tokens as the own size, 64 x 64, and another map."""
    model = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=2, dynamic_img_size=True).eval()
    rows, columns = (side // 16 for side in size)
    recording = recorded(model, *size, call=model.forward_features if part else None)
    site = "blocks.1.attn"
    assert recording.token_indices(site).tolist() == (1 + torch.arange(rows * columns)).view(rows, columns).tolist()
    weights = recording[site]["weights"]
    assert torch.equal(
        recording.attention_map_for_query(site, (rows - 1, 1))[:, :, 0, 1],
        weights[:, :, 1 + (rows - 1) * columns + 1, 2],
    )
    mlp = recording["blocks.1.mlp"]["mlp.end"]
    assert torch.equal(recording.on_map("blocks.1.mlp", "mlp.end")[:, rows - 1, 0], mlp[:, 1 + (rows - 1) * columns])
    with pytest.raises(UsageError, match=f"outside the map of {rows} x {columns}"):
        recording.attention_map_for_query(site, (rows, 0))


def test_distances_go_with_the_map_that_the_images_have() -> None:
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=64, depth=1, dynamic_img_size=True, class_token=False, global_pool="avg"
    )
    nn.init.zeros_(model.blocks[0].attn.qkv.weight)  # looks everywhere alike
    with torch.no_grad(), attngraft.record(model.eval(), {"weights"}) as recording:
        recording.reduce("distance")
        model(torch.randn(1, 3, 16, 256))
    far = torch.arange(16)
    expected = ((far[:, None] - far).abs() / 16).mean(1)
    torch.testing.assert_close(recording["blocks.0.attn"]["distance"][0], expected)


def test_the_size_is_of_the_last_images() -> None:
    model = timm.create_model("vit_tiny_patch16_224", img_size=64, depth=1, dynamic_img_size=True).eval()
    with torch.no_grad(), attngraft.record(model, {"weights"}) as recording:
        for size in ((32, 128), (64, 64)):
            model(torch.randn(1, 3, *size))
            assert recording.token_indices("blocks.0.attn").shape == (size[0] // 16, size[1] // 16)
    assert not model._forward_pre_hooks
    assert not model.patch_embed.proj._forward_pre_hooks


def test_as_many_tokens_on_another_map_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        image_size=64, patch_size=16, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    model = transformers.ViTModel(config).eval()
    with torch.no_grad(), attngraft.record(model, {"weights"}) as recording:
        model(pixel_values=torch.randn(1, 3, 32, 128), interpolate_pos_encoding=True)
    assert recording.attention_map_for_query(next(iter(recording)), (1, 7)).shape == (1, 2, 2, 8)


def test_sizes_that_are_no_whole_number_of_patches_need_the_tokens() -> None:
    coordinates = TokenCoordinates({"attn": Geometry(dim=4, grid=(4, 4), prefix=("class",))}, (64, 64))
    coordinates.image_size = (70, 64)
    assert coordinates.token_indices("attn", 17).shape == (4, 4)
    assert coordinates.token_indices("attn", 21).shape == (5, 4)
    with pytest.raises(RecordError, match="images of 70 x 64 .not a whole number of patches"):
        coordinates.token_indices("attn")
    with pytest.raises(
        RecordError, match="19 tokens., but its host.s default size of 64 x 64 has 1 prefix tokens and a map of 4 x 4"
    ):
        coordinates.token_indices("attn", 19)


def test_who_takes_no_images_has_its_own_number_of_tokens() -> None:
    coordinates = TokenCoordinates({"attn": Geometry(dim=4, grid=(2, 3))})
    assert coordinates.token_indices("attn", 6).tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(RecordError, match="got 7 tokens, but its host.s default is a map of 2 x 3"):
        coordinates.token_indices("attn", 7)


def test_sequences_that_nobody_places_are_not_taken_for_the_image() -> None:
    with pytest.raises(RecordError, match="cuts an image into 4 sequences and does not report their layout"):
        TokenCoordinates({"mlp": Geometry(dim=4, grid=(2, 3), sequences=4)}).token_indices("mlp", 6)


def test_pixels_of_mobilevits_patches_come_back_between_each_other() -> None:
    """The host cuts its map into one sequence for each pixel of a patch; compared with what it cuts."""
    model = timm.create_model("mobilevit_xxs", num_classes=3).eval()
    maps: dict[str, Tensor] = {}
    cut: dict[str, Tensor] = {}
    for path, module in model.named_modules():
        if isinstance(module, MobileVitBlock):
            module.conv_1x1.register_forward_hook(lambda _, __, out, path=path: maps.update({path: out}))
            module.transformer.register_forward_pre_hook(lambda _, given, path=path: cut.update({path: given[0]}))
    with torch.no_grad(), attngraft.record(model, {"weights", "mlp.end"}) as recording:
        model(torch.randn(2, 3, 256, 192))
    assert [tuple(each.shape[2:]) for each in maps.values()] == [(32, 24), (16, 12), (8, 6)]
    for path, tokens in cut.items():
        site = f"{path}.transformer.0.attn"
        places = recording.token_indices(site)
        assert torch.equal(tokens_to_map(tokens, places).permute(0, 3, 1, 2), maps[path])
        looks = recording.attention_map_for_query(site, (2, 3))
        assert looks.shape == (2, 4, *places.shape)
        assert looks[..., 0::2, 1::2].sum((-2, -1)).flatten().tolist() == pytest.approx([1] * 8)
        assert recording.on_map(f"{path}.transformer.0.mlp", "mlp.end").shape[1:3] == places.shape


def test_keys_of_cross_attention_stand_on_their_own_map() -> None:
    geometry = AttentionGeometry(dim=4, heads=1, key_width=4, value_width=4, cross=True, keys_grid=(2, 2))
    coordinates = TokenCoordinates({"cross": geometry, "own": Geometry(dim=4, grid=(2, 2))}, (32, 32))
    coordinates.image_size = (32, 64)
    assert coordinates.key_indices("cross", 8).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(RecordError, match="4 tokens"):
        coordinates.key_indices("cross", 4)
    with pytest.raises(RecordError, match=".own. is self-attention"):
        coordinates.key_indices("own")


def test_the_reason_is_the_pooled_keys_and_not_the_size() -> None:
    model = timm.create_model("twins_svt_small", img_size=64, depths=(2, 1, 1, 1)).eval()
    with torch.no_grad(), attngraft.record(model, {"weights"}) as recording:
        model(torch.randn(1, 3, 64, 64))
    for look in (recording.attention_map_for_query, lambda site, _: recording.full_attention_map(site)):
        with pytest.raises(UsageError, match="expected an attention map .* whose queries and keys are the same tokens"):
            look("blocks.0.1.attn", (0, 0))


def test_what_is_no_image_says_no_size() -> None:
    """NaFlexViT takes patches with their coordinates too: as many as its own size has, on another map."""
    model = timm.create_model("naflexvit_base_patch16_gap", embed_dim=32, num_heads=2, depth=1).eval()
    rows, columns = torch.meshgrid(torch.arange(8), torch.arange(72), indexing="ij")
    cut = {
        "patches": torch.randn(1, 576, 768),
        "patch_coord": torch.stack([rows, columns], -1).view(1, 576, 2),
        "patch_valid": torch.ones(1, 576, dtype=torch.bool),
    }
    with torch.no_grad(), attngraft.record(model, {"weights"}) as recording:
        model(cut)
        with pytest.raises(RecordError, match="the model got no images"):
            recording.attention_map_for_query("blocks.0.attn", (0, 0))
        model(torch.randn(1, 3, 128, 1152))
    assert recording.attention_map_for_query("blocks.0.attn", (7, 71)).shape == (1, 2, 8, 72)


def test_the_size_is_learned_where_patches_are_embedded_by_a_linear_layer() -> None:
    model = timm.create_model("naflexvit_base_patch16_gap", embed_dim=32, num_heads=2, depth=1).eval()
    with torch.no_grad(), attngraft.record(model, {"weights"}) as recording:
        model(torch.randn(1, 3, 256, 256))
        assert recording.attention_map_for_query("blocks.0.attn", (0, 0)).shape == (1, 2, 16, 16)
        model.forward_features(torch.randn(1, 3, 64, 1024))
        assert recording.attention_map_for_query("blocks.0.attn", (0, 0)).shape == (1, 2, 4, 64)
        model.forward_features(
            torch.randn(1, 256, 768), torch.zeros(1, 256, 2, dtype=torch.long), torch.ones(1, 256, dtype=torch.bool)
        )
        with pytest.raises(RecordError, match="the model got no images"):
            recording.attention_map_for_query("blocks.0.attn", (0, 0))
    assert not model.embeds._forward_pre_hooks


def test_blocks_of_nest_come_back_to_their_map() -> None:
    """At the first level there are as many blocks of as many tokens as the map has rows and columns."""
    model = Nest(img_size=64, embed_dims=(16, 24, 32), num_heads=(1, 2, 2), depths=(1, 1, 1), num_classes=3).eval()
    with torch.no_grad(), attngraft.record(model, {"heads", "attn.end", "mlp.mid", "mlp.end"}) as recording:
        model(torch.randn(2, 3, 64, 64))
    assert recording["levels.0.transformer_encoder.0.attn"]["attn.end"].shape == (2, 16, 16, 16)
    for level, side in enumerate((16, 8, 4)):
        block = f"levels.{level}.transformer_encoder.0"
        for site, name in ((f"{block}.attn", "attn.end"), (f"{block}.mlp", "mlp.mid"), (f"{block}.mlp", "mlp.end")):
            assert torch.equal(recording.on_map(site, name), deblockify(recording[site][name], 4))
            assert recording.on_map(site, name).shape[1:3] == (side, side)
        assert recording.on_map(f"{block}.attn", "heads").shape[2:4] == (side, side)


@pytest.mark.parametrize(
    ("name", "sites", "changes"),
    [
        (
            "swin_tiny_patch4_window7_224",
            "all",
            {"img_size": 64, "window_size": 4, "depths": (2, 2), "num_heads": (3, 3)},
        ),
        ("maxvit_tiny_tf_224", "stages.0-1", {"img_size": 64}),
        ("sam2_hiera_tiny", "blocks.0-3", {}),  # queries are pooled in blocks 1 and 3
    ],
)
def test_maps_stay_as_they_are(name: str, sites: str, changes: dict[str, Any]) -> None:
    model = timm.create_model(name, **changes).eval()
    with torch.no_grad(), attngraft.record(model, {"attn.end"}, sites=sites) as recording:
        model(torch.randn(1, 3, 64, 64))
    for site in recording:
        assert torch.equal(recording.on_map(site, "attn.end"), recording[site]["attn.end"])


def test_what_has_not_the_size_of_its_map_is_no_map() -> None:
    coordinates = TokenCoordinates(
        {"mlp": Geometry(dim=4, grid=(8, 8)), "apart": Geometry(dim=4, grid=(2, 3), apart=(2, 2))}
    )
    assert coordinates.map_size("apart") == (4, 6)
    recording = Recording(None, coordinates)
    recording.add("mlp", "mlp.end", torch.randn(1, 4, 16, 4))
    with pytest.raises(RecordError, match=r"'mlp.end' of 'mlp' has the shape \(1, 4, 16, 4\), but its map is 8 x 8"):
        recording.on_map("mlp", "mlp.end")
