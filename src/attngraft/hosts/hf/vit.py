"""Hugging Face's ViT and DeiT: one dropout of the layer ends both of its branches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from torch import Tensor, nn
from transformers.models.deit import modeling_deit as deit
from transformers.models.vit import modeling_vit as vit

from attngraft.attention import prefix_names
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.hf.attention import ScalingSite, attention_site
from attngraft.hosts.hf.family import ImageFamily, image_tokens
from attngraft.hosts.hf.mlp import MaskedLayer, TwoLayers, mlp_site
from attngraft.hosts.registry import register_host


class GraftedViTAttention(ScalingSite, vit.ViTAttention):
    """`transformers.models.vit.modeling_vit.ViTAttention`."""


class GraftedDeiTAttention(ScalingSite, deit.DeiTAttention):
    """`transformers.models.deit.modeling_deit.DeiTAttention`."""


class GraftedViTMLP(TwoLayers, vit.ViTMLP):
    """`transformers.models.vit.modeling_vit.ViTMLP`."""


class GraftedDeiTMLP(TwoLayers, deit.DeiTMLP):
    """`transformers.models.deit.modeling_deit.DeiTMLP`."""


class LayerWithDropout(MaskedLayer):
    """A layer that drops behind attention and MLP, before it adds what came in: there both branches end."""

    layernorm_before: nn.Module
    attention: nn.Module
    mlp: nn.Module
    layernorm_after: nn.Module
    dropout: nn.Module

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        """The host's own, with places at both ends."""
        self.check(attention_mask, causal=kwargs.get("is_causal"))
        attended, _ = self.attention(self.layernorm_before(hidden_states), attention_mask, **kwargs)
        hidden_states = self.run("attn.end", self.dropout(attended)) + hidden_states
        out = self.dropout(self.mlp(self.layernorm_after(hidden_states)))
        return self.run("mlp.end", out) + hidden_states


class GraftedViTLayer(LayerWithDropout, vit.ViTLayer):
    """`transformers.models.vit.modeling_vit.ViTLayer`."""


class GraftedDeiTLayer(LayerWithDropout, deit.DeiTLayer):
    """`transformers.models.deit.modeling_deit.DeiTLayer`."""


class TransformersViT(ImageFamily):
    """Sites `layers.<i>.attention` and `layers.<i>.mlp`."""

    name = "hf.vit"
    summary = "transformers ViT and DeiT (models without a head, and with any of theirs)"
    patched: ClassVar = {
        vit.ViTAttention: GraftedViTAttention,
        vit.ViTMLP: GraftedViTMLP,
        vit.ViTLayer: GraftedViTLayer,
        deit.DeiTAttention: GraftedDeiTAttention,
        deit.DeiTMLP: GraftedDeiTMLP,
        deit.DeiTLayer: GraftedDeiTLayer,
    }
    models = (
        vit.ViTModel,
        vit.ViTForImageClassification,
        vit.ViTForMaskedImageModeling,
        deit.DeiTModel,
        deit.DeiTForImageClassification,
        deit.DeiTForImageClassificationWithTeacher,
        deit.DeiTForMaskedImageModeling,
    )
    layers = (vit.ViTLayer, deit.DeiTLayer)
    inner = ("vit", "deit")

    def read(self, layer: Any, path: str) -> Iterable[Site]:
        check_known(
            layer,
            path,
            arguments=("hidden_states", "attention_mask", "kwargs"),
            children=("attention", "layernorm_before", "layernorm_after", "mlp", "dropout"),
        )
        prefix = prefix_names(distillation=isinstance(layer, deit.DeiTLayer))
        known = image_tokens(layer.attention.config, prefix=prefix)
        yield attention_site(layer.attention, f"{path}.attention", end=path, **known)
        yield mlp_site(layer.mlp, f"{path}.mlp", end=path, layer=path, **known)


register_host(TransformersViT())
