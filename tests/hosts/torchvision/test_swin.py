"""torchvision's Swin at sizes that do not divide into windows, with dropout, and its ViT with dropout."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformer, SwinTransformerBlockV2
from torchvision.models.vision_transformer import VisionTransformer

import attngraft
from attngraft.export.fold import fold
from tests.contract.tester import outputs_and_gradients, randomize
from tests.contract.torchvision.test_swin import SMALL

#: maps of 8 x 5 and 4 x 3 in windows of 3, padded on both axes or on one
IMAGES = torch.randn(2, 3, 16, 10, generator=torch.Generator().manual_seed(1))


@pytest.fixture(params=["1", "2"])
def swin(request: pytest.FixtureRequest) -> SwinTransformer:
    torch.manual_seed(0)
    second = {"block": SwinTransformerBlockV2, "downsample_layer": PatchMergingV2}
    return SwinTransformer(**SMALL, dropout=0.1, attention_dropout=0.1, **(second if request.param == "2" else {}))


def _vit() -> VisionTransformer:
    torch.manual_seed(0)
    model = VisionTransformer(
        image_size=16,
        patch_size=8,
        num_layers=2,
        num_heads=2,
        hidden_dim=16,
        mlp_dim=24,
        num_classes=5,
        dropout=0.2,
        attention_dropout=0.2,
    )
    nn.init.normal_(model.heads.head.weight)
    return model


def test_spelled_out_it_is_the_host(swin: SwinTransformer) -> None:
    expected, gradients = outputs_and_gradients(swin, (IMAGES,))
    with attngraft.record(swin) as recording:
        found, found_gradients = outputs_and_gradients(swin, (IMAGES,))
    assert torch.equal(found, expected)
    assert all(torch.equal(a, b) for a, b in zip(gradients, found_gradients, strict=True))
    assert recording["features.1.1.attn"]["weights"].shape == (2 * 6, 2, 9, 9)
    assert recording["features.1.1.attn"]["attn.end"].shape == (2, 8, 5, 16)
    assert recording["features.1.1.attn"]["attn.window"].shape == (2 * 6, 9, 16)


def test_tokens_that_fill_up_take_no_part_in_the_inverse(swin: SwinTransformer) -> None:
    """The projections add biases to padding tokens, which the inverse must ignore."""
    attngraft.graft(swin.eval(), "misa")
    randomize(swin)
    seen = []
    handles = [
        module.grafts["misa"].register_forward_pre_hook(
            lambda _, arguments: seen.append(arguments[0].projected.present)
        )
        for module in swin.modules()
        if hasattr(module, "grafts")
    ]
    with torch.no_grad():
        swin(IMAGES)
    for handle in handles:
        handle.remove()
    assert [int(present.sum()) for present in seen] == [8 * 5, 8 * 5, 4 * 3]


def test_the_vits_dropout_draws_as_the_host_does() -> None:
    host, images = _vit(), torch.randn(2, 3, 16, 16)
    torch.manual_seed(1)
    expected = host(images)
    attngraft.graft(host, "identity + identity(stage='attn.end') + identity(stage='mlp.end')")
    torch.manual_seed(1)
    assert torch.equal(host(images), expected)


def test_a_branch_of_the_vit_ends_behind_the_blocks_dropout() -> None:
    host = _vit().train()
    attngraft.graft(host, "identity(stage='attn.end')")
    with attngraft.record(host, ["tokens", "attn.end"]) as recording:
        host(torch.randn(2, 3, 16, 16))
    for name in ("encoder.layers.encoder_layer_0", "encoder.layers.encoder_layer_1"):
        seen = recording[f"{name}.self_attention"]
        assert (seen["attn.end"] == 0).any()
        assert (seen["tokens"] != 0).all()


def test_a_vit_in_evaluation_keeps_its_grafts_and_gives_them_back() -> None:
    host, images = _vit().eval(), torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        expected = host(images)
        attngraft.graft(host, "horizontal + cb(at=both)")
        found = host(images)
        assert not torch.allclose(found, expected, atol=1e-3)
    torch.testing.assert_close(host(images), found)
    attngraft.ungraft(host)
    with torch.no_grad():
        assert torch.equal(host(images), expected)


@pytest.mark.parametrize("spec", ["cb(at=both)", "cb(at=both, position=mid)", "cb(at=attention, scope=window)"])
def test_what_is_constant_folds(swin: SwinTransformer, spec: str) -> None:
    for host, images in ((swin.eval(), IMAGES), (_vit().eval(), IMAGES[:, :, :, :1].expand(2, 3, 16, 16))):
        if "window" in spec and host is not swin:
            continue
        attngraft.graft(host, spec)
        with torch.no_grad():
            expected = host(images)
            folded = fold(host)
            torch.testing.assert_close(host(images), expected, atol=1e-5, rtol=1e-4)
        assert folded.entries
        assert all(entry.folded for entry in folded.entries)


def test_another_block_is_refused() -> None:
    class Mine(SwinTransformerBlockV2):
        """A user-defined subclass."""

    with pytest.raises(attngraft.HostError, match=r"features\.1\.0 is a Mine"):
        attngraft.graft(SwinTransformer(**SMALL, block=Mine), "horizontal")
