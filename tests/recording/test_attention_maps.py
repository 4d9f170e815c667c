"""Windows put back onto the image: the host itself says where each token stands."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from torch import nn

import attngraft
from attngraft.errors import UsageError
from attngraft.mechanisms.local import local_filter
from attngraft.recording.attention_maps import attention_map_for_query, filters_to_attention_map
from tests.grafting.test_apply import tiny_vit

SIZES = {"window_size": 4, "depths": (2, 1), "embed_dim": 12, "num_heads": (2, 3)}


def timm_swin(name: str, **changes: Any) -> nn.Module:
    return timm.create_model(name, **(SIZES | {"img_size": 28} | changes))  # maps of 7 x 7: windows are filled up


def torchvision_swin() -> nn.Module:
    from torchvision.models.swin_transformer import SwinTransformer

    return SwinTransformer(patch_size=[4, 4], embed_dim=12, depths=[2, 1], num_heads=[2, 3], window_size=[4, 4])


def transformers_swin() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.SwinConfig(image_size=28, **SIZES)
    return transformers.SwinModel(config)


HOSTS = {
    "v1": lambda: timm_swin("swin_tiny_patch4_window7_224"),
    "v2": lambda: timm_swin("swinv2_tiny_window8_256", img_size=32),  # older timm makes none with windows to fill
    "v2-cr": lambda: timm_swin("swinv2_cr_tiny_224", img_size=32),
    "torchvision": torchvision_swin,
    "transformers": transformers_swin,
}


@pytest.mark.parametrize("name", HOSTS)
def test_windows_come_back_where_the_host_puts_them(name: str) -> None:
    torch.manual_seed(0)
    model = HOSTS[name]().eval()
    side = 32 if name.startswith("v2") else 28
    with torch.no_grad(), attngraft.record(model) as recording:
        model(torch.randn(2, 3, side, side))
    sites = [site for site in recording if "weights" in recording[site]]
    assert len(sites) == 3
    for site in sites:
        back = recording.on_map(site, "tokens")
        assert torch.equal(back, recording[site]["attn.end"])
        rows, columns = back.shape[1:3]
        whole = recording.full_attention_map(site)
        assert whole.shape == (2, len(recording[site]["weights"][0]), rows * columns, rows * columns)
        for query in ((0, 0), (rows - 1, columns // 2)):
            looks = recording.attention_map_for_query(site, query)
            assert torch.equal(looks.flatten(2), whole[:, :, query[0] * columns + query[1]])
        heads = recording.on_map(site, "heads").flatten(2, 3)
        values = recording.on_map(site, "values").flatten(2, 3)
        filled = recording[site]["weights"].shape[-1] * len(recording[site]["weights"]) != 2 * rows * columns
        if not filled:  # zeros that fill up take their share of the host's attention, and stand nowhere
            torch.testing.assert_close(whole @ values, heads, atol=1e-5, rtol=1e-4)
        assert (whole.sum(-1) <= 1 + 1e-5).all()


def test_a_sequence_stands_behind_its_leading_tokens() -> None:
    model = tiny_vit(reg_tokens=1)
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), attngraft.record(model, sites="blocks.0.attn") as recording:
        model(images)
    weights = recording["blocks.0.attn"]["weights"]
    assert torch.equal(recording.attention_map_for_query("blocks.0.attn", (1, 0)).flatten(2), weights[:, :, 4, 2:])
    assert torch.equal(recording.full_attention_map("blocks.0.attn"), weights[:, :, 2:, 2:])
    assert torch.equal(
        recording.on_map("blocks.0.attn", "tokens").flatten(1, 2), recording["blocks.0.attn"]["tokens"][:, 2:]
    )
    with pytest.raises(UsageError, match=r"position \(2, 0\) is outside the map of 2 x 2"):
        recording.attention_map_for_query("blocks.0.attn", (2, 0))


def test_what_is_not_known_is_said() -> None:
    other = timm.create_model("maxvit_tiny_pm_256", img_size=64, stem_width=8, depths=(1,), embed_dim=(32,)).eval()
    with torch.no_grad(), attngraft.record(other, {"weights"}) as recording:
        other(torch.randn(1, 3, 64, 64))
    site = next(iter(recording))
    with pytest.raises(attngraft.RecordError, match="do not report how they cut windows"):
        recording.token_indices(site)


def test_maps_whose_queries_are_no_keys_are_refused() -> None:
    with pytest.raises(UsageError, match=r"expected an attention map .*, got \(1, 2, 3, 4\)"):
        attention_map_for_query(torch.zeros(1, 2, 3, 4), torch.arange(4).view(2, 2), (0, 0))
    with pytest.raises(UsageError, match="3 sequences of 4 tokens do not fit"):
        attention_map_for_query(torch.zeros(3, 2, 4, 4), torch.arange(8).view(2, 4), (0, 0))


def test_filters_of_neighborhoods_are_scattered() -> None:
    """The filters_to_attention_map map times the values is what the local operation gives."""
    torch.manual_seed(0)
    model = timm_swin("swin_tiny_patch4_window7_224").eval()
    attngraft.graft(model, "elsa(kernel=5, add=0)@layers.0.blocks.0")
    with torch.no_grad(), attngraft.record(model, {"elsa"}) as recording:
        model(torch.randn(2, 3, 28, 28))
    site, name = "layers.0.blocks.0.attn", "elsa.local_filters"
    filters, whole = recording[site][name], recording.full_attention_map(site, name)
    heads, rows, columns = filters.shape[1], *filters.shape[-2:]
    values = torch.randn(2, heads * 3, rows, columns)
    expected = local_filter(values, filters.flatten(1, 2), kernel_size=5, softmax=False)
    found = whole @ values.unflatten(1, (heads, 3)).flatten(3).transpose(2, 3)
    torch.testing.assert_close(found.transpose(2, 3).reshape(expected.shape), expected)
    for query in ((0, 0), (3, 6)):
        assert torch.equal(
            recording.attention_map_for_query(site, query, name).flatten(2), whole[:, :, query[0] * columns + query[1]]
        )
    with pytest.raises(UsageError, match="16 offsets are not a neighborhood"):
        filters_to_attention_map(torch.zeros(1, 1, 16, 4, 4))
