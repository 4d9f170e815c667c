"""Hugging Face's DINOv3 ViT: patches are rotated by their positions, registers and class token are not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from transformers.models.dinov3_vit import modeling_dinov3_vit as dinov3

from attngraft.attention import prefix_names
from attngraft.hosts.adapter import Site
from attngraft.hosts.hf.attention import ScalingSite, attention_site
from attngraft.hosts.hf.family import ImageFamily, image_tokens
from attngraft.hosts.hf.mlp import Gated, UpAndDown, mlp_site
from attngraft.hosts.hf.rotary import RotarySite
from attngraft.hosts.registry import register_host


class GraftedDINOv3ViTAttention(RotarySite, ScalingSite, dinov3.DINOv3ViTAttention):
    """`transformers.models.dinov3_vit.modeling_dinov3_vit.DINOv3ViTAttention`."""

    rotary = dinov3
    rate = "dropout"
    precise = False


class GraftedDINOv3ViTMLP(UpAndDown, dinov3.DINOv3ViTMLP):
    """`transformers.models.dinov3_vit.modeling_dinov3_vit.DINOv3ViTMLP`."""


class GraftedDINOv3ViTGatedMLP(Gated, dinov3.DINOv3ViTGatedMLP):
    """`transformers.models.dinov3_vit.modeling_dinov3_vit.DINOv3ViTGatedMLP`."""


class TransformersDinov3(ImageFamily):
    """Sites `layer.<i>.attention` and `layer.<i>.mlp`."""

    name = "hf.dinov3"
    summary = "transformers DINOv3 ViTs, backbones too"
    patched: ClassVar = {
        dinov3.DINOv3ViTAttention: GraftedDINOv3ViTAttention,
        dinov3.DINOv3ViTMLP: GraftedDINOv3ViTMLP,
        dinov3.DINOv3ViTGatedMLP: GraftedDINOv3ViTGatedMLP,
    }
    models = (dinov3.DINOv3ViTModel, dinov3.DINOv3ViTBackbone)
    layers = (dinov3.DINOv3ViTLayer,)
    inner = ("model",)

    def read(self, layer: Any, path: str) -> Iterable[Site]:
        config = layer.attention.config
        known = image_tokens(config, prefix=prefix_names(registers=config.num_register_tokens))
        attention = f"{path}.attention"
        yield attention_site(layer.attention, attention, end=attention, arguments=("position_embeddings",), **known)
        yield mlp_site(layer.mlp, f"{path}.mlp", end=f"{path}.mlp", **known)


register_host(TransformersDinov3())
