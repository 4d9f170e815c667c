"""The vision towers of Hugging Face's CLIP and SigLIP, alone or in the model that compares images with texts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from transformers.models.clip import modeling_clip as clip
from transformers.models.siglip import modeling_siglip as siglip

from attngraft.attention import CLASS
from attngraft.hosts.adapter import Site
from attngraft.hosts.hf.attention import ProjectedSite, attention_site
from attngraft.hosts.hf.family import ImageFamily, image_tokens
from attngraft.hosts.hf.mlp import TwoLayers, mlp_site
from attngraft.hosts.registry import register_host


class GraftedCLIPAttention(ProjectedSite, clip.CLIPAttention):
    """`transformers.models.clip.modeling_clip.CLIPAttention`."""

    out, rate = "out_proj", "dropout"


class GraftedSiglipAttention(ProjectedSite, siglip.SiglipAttention):
    """`transformers.models.siglip.modeling_siglip.SiglipAttention`."""

    out, rate = "out_proj", "dropout"


class GraftedCLIPMLP(TwoLayers, clip.CLIPMLP):
    """`transformers.models.clip.modeling_clip.CLIPMLP`."""


class GraftedSiglipMLP(TwoLayers, siglip.SiglipMLP):
    """`transformers.models.siglip.modeling_siglip.SiglipMLP`."""


class TransformersClip(ImageFamily):
    """Sites `encoder.layers.<i>.self_attn` and `encoder.layers.<i>.mlp`; towers of texts are none of them."""

    name = "hf.clip"
    summary = "the vision towers of transformers CLIP and SigLIP"
    patched: ClassVar = {
        clip.CLIPAttention: GraftedCLIPAttention,
        clip.CLIPMLP: GraftedCLIPMLP,
        siglip.SiglipAttention: GraftedSiglipAttention,
        siglip.SiglipMLP: GraftedSiglipMLP,
    }
    models = (
        clip.CLIPVisionModel,
        clip.CLIPVisionModelWithProjection,
        clip.CLIPForImageClassification,
        siglip.SiglipVisionModel,
        siglip.SiglipForImageClassification,
    )
    layers = (clip.CLIPEncoderLayer, siglip.SiglipEncoderLayer)
    inner = ("vision_model",)

    def read(self, layer: Any, path: str) -> Iterable[Site]:
        prefix = CLASS if isinstance(layer, clip.CLIPEncoderLayer) else ()
        known = image_tokens(layer.self_attn.config, prefix=prefix)
        if not prefix:
            known["init"] = "xavier_uniform"
        attention = f"{path}.self_attn"
        yield attention_site(layer.self_attn, attention, end=attention, out="out_proj", **known)
        yield mlp_site(layer.mlp, f"{path}.mlp", end=f"{path}.mlp", **known)


register_host(TransformersClip())
