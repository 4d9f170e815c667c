"""Adapters refuse unknown arguments, children and blocks."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

import attngraft
from attngraft.hosts import find_host, patched_class, register_host
from attngraft.hosts.timm.vit import TimmViT
from attngraft.tensors import meta_device
from tests.grafting.test_apply import tiny_swin, tiny_vit


def test_a_new_argument_of_a_hosts_forward_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from timm.layers import Attention

    monkeypatch.setattr(Attention, "forward", lambda self, x, attn_mask=None, is_causal=False, sink=None: x)
    with pytest.raises(
        attngraft.HostError,
        match=rf"blocks\.0\.attn \(Attention of timm {timm.__version__}\) has an unknown argument 'sink'.*update",
    ):
        attngraft.graft(tiny_vit(), "cb")


def test_a_new_sub_module_is_refused() -> None:
    model = tiny_swin()
    model.layers[0].blocks[0].attn.sink = nn.Linear(2, 2)
    with pytest.raises(attngraft.HostError, match="sub-module 'sink'"):
        attngraft.graft(model, "cb")


def test_a_gated_mlp_has_ends_and_no_middle() -> None:
    from timm.layers import SwiGLUPacked

    torch.manual_seed(0)
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=24, depth=2, num_heads=3, mlp_layer=SwiGLUPacked
    ).eval()
    x = torch.randn(1, 3, 16, 16)
    before = model(x)
    with pytest.raises(attngraft.HostError, match="gated.*position=front or end"):
        attngraft.graft(model, "cb(position=mid)")
    attngraft.graft(model, "cb_s(init=1)")
    assert not torch.equal(model(x), before)
    attngraft.ungraft(model)
    assert torch.equal(model(x), before)


def test_unknown_blocks_are_refused_with_their_names() -> None:
    from timm.models.vision_transformer import ParallelScalingBlock

    model = timm.create_model(
        "vit_tiny_patch16_224",
        img_size=16,
        patch_size=8,
        embed_dim=24,
        depth=1,
        num_heads=3,
        block_fn=ParallelScalingBlock,
    )
    with pytest.raises(attngraft.HostError, match="ParallelScalingBlock"):
        attngraft.graft(model, "cb")


def test_a_projection_without_parameters_is_refused() -> None:
    model = tiny_vit()
    model.blocks[0].attn.qkv = nn.Identity()  # a quantized layer has no parameters either
    with pytest.raises(
        attngraft.HostError, match="qkv of Attention has no parameters, as after quantization; graft first"
    ):
        attngraft.graft(model, "cb_s")


def test_geometry_of_a_vit() -> None:
    with meta_device():
        host = find_host(timm.create_model("deit_small_distilled_patch16_224"))
    attention, mlp = (site.geometry for site in host.sites[:2])
    assert (attention.tokens, attention.prefix_tokens, attention.class_token, attention.grid) == (
        198,
        2,
        True,
        (14, 14),
    )
    assert (attention.heads, attention.key_width, attention.value_width, attention.dim) == (6, 64, 64, 384)
    assert attention.rows["k"][0].spans(0, 6) == ((384, 768),)
    assert (mlp.hidden, mlp.width("mlp.mid"), mlp.shape("mlp.end")) == (1536, 1536, (1, 198, 384))


def test_geometry_of_a_swin() -> None:
    with meta_device():
        host = find_host(timm.create_model("swin_tiny_patch4_window7_224"))
    attention, mlp = (site.geometry for site in host.sites[:2])
    assert (attention.tokens, attention.sequences, attention.grid, attention.window) == (49, 64, (56, 56), (7, 7))
    assert attention.shape("heads") == (64, 3, 49, 32)
    assert attention.shape("attn.end") == (1, 56, 56, 96)
    assert mlp.shape("mlp.mid") == (1, 3136, 384)
    assert not mlp.class_token


@pytest.mark.parametrize(
    "name",
    [
        "vit_base_patch16_clip_224",
        "vit_large_patch14_dinov2",
        "vit_so400m_patch14_siglip_224",
        "vit_small_patch16_18x2_224",
        "deit3_small_patch16_224",
        "swin_large_patch4_window12_384",
    ],
)
def test_published_sizes_are_recognized(name: str) -> None:
    with meta_device():
        model = timm.create_model(name)
    if name == "vit_small_patch16_18x2_224":
        with pytest.raises(attngraft.HostError, match="ParallelThingsBlock"):
            attngraft.plan(model, "cb")
    else:
        assert attngraft.plan(model, "horizontal").parameters > 0


def test_registering_the_same_name_twice_is_refused() -> None:
    class Impostor(TimmViT):
        pass

    with pytest.raises(ValueError, match="already registered"):
        register_host(Impostor())
    assert patched_class(nn.Linear(1, 1)) is None


@pytest.mark.parametrize("spec", ["misa", "uniform_heads(count=1)"])
def test_unused_rows_of_a_projection_with_lora(spec: str) -> None:
    """The rows of LoRA's second factor are unused too; its first factor has rows of another kind."""
    peft = pytest.importorskip("peft", reason="needs peft: pip install peft")
    torch.manual_seed(0)
    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 1, "num_heads": 2, "num_classes": 3}
    host = timm.create_model("vit_tiny_patch16_224", **sizes)
    model = peft.get_peft_model(host, peft.LoraConfig(r=2, target_modules=["qkv"], init_lora_weights=False))
    attngraft.graft(model, spec)
    model(torch.randn(2, 3, 16, 16)).square().sum().backward()
    unused = {"misa": slice(48, 72), "uniform_heads(count=1)": slice(12, 24)}[spec]  # values, or queries of a head
    attention = host.blocks[0].attn
    assert not attention.qkv.lora_B["default"].weight.grad[unused].any()
    assert attention.qkv.lora_A["default"].weight.grad.any()


def test_the_container_of_grafts_is_in_the_mode_of_its_module() -> None:
    model = tiny_vit().eval()
    attngraft.graft(model, "cb")
    assert not [path for path, module in model.named_modules() if module.training]
