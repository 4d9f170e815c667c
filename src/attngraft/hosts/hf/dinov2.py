"""Hugging Face's DINOv2, with registers or without."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from transformers.models.dinov2 import modeling_dinov2 as dinov2
from transformers.models.dinov2_with_registers import modeling_dinov2_with_registers as registers

from attngraft.attention import prefix_names
from attngraft.errors import HostError
from attngraft.hosts.adapter import Site
from attngraft.hosts.hf.attention import ScalingSite, attention_site
from attngraft.hosts.hf.family import ImageFamily, image_tokens
from attngraft.hosts.hf.mlp import Gated, MaskedLayer, TwoLayers, mlp_site
from attngraft.hosts.registry import register_host


class GraftedDinov2Attention(ScalingSite, dinov2.Dinov2Attention):
    """`transformers.models.dinov2.modeling_dinov2.Dinov2Attention`."""

    precise = False


class GraftedRegistersAttention(ScalingSite, registers.Dinov2WithRegistersAttention):
    """`transformers.models.dinov2_with_registers.modeling_dinov2_with_registers.Dinov2WithRegistersAttention`."""

    precise = False


class GraftedDinov2MLP(TwoLayers, dinov2.Dinov2MLP):
    """`transformers.models.dinov2.modeling_dinov2.Dinov2MLP`."""


class GraftedRegistersMLP(TwoLayers, registers.Dinov2WithRegistersMLP):
    """`transformers.models.dinov2_with_registers.modeling_dinov2_with_registers.Dinov2WithRegistersMLP`."""


class GraftedDinov2SwiGLUFFN(Gated, dinov2.Dinov2SwiGLUFFN):
    """`transformers.models.dinov2.modeling_dinov2.Dinov2SwiGLUFFN`."""


class GraftedRegistersSwiGLUFFN(Gated, registers.Dinov2WithRegistersSwiGLUFFN):
    """`transformers.models.dinov2_with_registers.modeling_dinov2_with_registers.Dinov2WithRegistersSwiGLUFFN`."""


class GraftedDinov2Layer(MaskedLayer, dinov2.Dinov2Layer):
    """`transformers.models.dinov2.modeling_dinov2.Dinov2Layer`."""


class GraftedRegistersLayer(MaskedLayer, registers.Dinov2WithRegistersLayer):
    """`transformers.models.dinov2_with_registers.modeling_dinov2_with_registers.Dinov2WithRegistersLayer`."""


class TransformersDinov2(ImageFamily):
    """Sites `encoder.layer.<i>.attention` and `encoder.layer.<i>.mlp`."""

    name = "hf.dinov2"
    summary = "transformers DINOv2, with and without registers, backbones too"
    patched: ClassVar = {
        dinov2.Dinov2Attention: GraftedDinov2Attention,
        dinov2.Dinov2MLP: GraftedDinov2MLP,
        dinov2.Dinov2SwiGLUFFN: GraftedDinov2SwiGLUFFN,
        dinov2.Dinov2Layer: GraftedDinov2Layer,
        registers.Dinov2WithRegistersLayer: GraftedRegistersLayer,
        registers.Dinov2WithRegistersAttention: GraftedRegistersAttention,
        registers.Dinov2WithRegistersMLP: GraftedRegistersMLP,
        registers.Dinov2WithRegistersSwiGLUFFN: GraftedRegistersSwiGLUFFN,
    }
    models = (
        dinov2.Dinov2Model,
        dinov2.Dinov2ForImageClassification,
        dinov2.Dinov2Backbone,
        registers.Dinov2WithRegistersModel,
        registers.Dinov2WithRegistersForImageClassification,
        registers.Dinov2WithRegistersBackbone,
    )
    layers = (dinov2.Dinov2Layer, registers.Dinov2WithRegistersLayer)
    inner = ("dinov2", "dinov2_with_registers")

    def read(self, layer: Any, path: str) -> Iterable[Site]:
        if not hasattr(layer.attention, "o_proj"):
            raise HostError(
                f"{path}.attention has no output projection of its own, as in transformers before 5.20; DINOv2 is read from "
                "5.20 on: pip install 'transformers>=5.20'"
            )
        config = layer.attention.config
        known = image_tokens(config, prefix=prefix_names(registers=getattr(config, "num_register_tokens", 0)))
        yield attention_site(layer.attention, f"{path}.attention", end=f"{path}.attention", **known)
        yield mlp_site(layer.mlp, f"{path}.mlp", end=f"{path}.mlp", layer=path, **known)


register_host(TransformersDinov2())
