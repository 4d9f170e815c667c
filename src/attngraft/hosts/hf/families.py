"""Families of `transformers` without a forward of their own: every module is patched by a shared template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from attngraft.attention import CLASS, GraftedModule, MlpEnds, prefix_names
from attngraft.errors import HostError
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.family import Family, family_table, patched_by_name
from attngraft.hosts.hf import bert_layers
from attngraft.hosts.hf.attention import ProjectedSite, ScalingSite, attention_site
from attngraft.hosts.hf.family import ImageFamily, TextFamily, image_tokens
from attngraft.hosts.hf.mlp import MaskedLayer, PlainMlp, mlp_site
from attngraft.hosts.shape_probe import ShapeProbe


class LayerWithDropout(MaskedLayer):
    """A layer with dropout at the end of both branches."""

    layernorm_before: nn.Module
    attention: nn.Module
    mlp: nn.Module
    layernorm_after: nn.Module
    dropout: nn.Module

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        self.check_mask(attention_mask, causal=kwargs.get("is_causal"))
        attended, _ = self.attention(self.layernorm_before(hidden_states), attention_mask, **kwargs)
        hidden_states = self.run("attn.end", self.dropout(attended)) + hidden_states
        out = self.dropout(self.mlp(self.layernorm_after(hidden_states)))
        return self.run("mlp.end", out) + hidden_states


class Dinov2Attention(ScalingSite):
    precise = False


class ClipAttention(ProjectedSite):
    out, rate = "out_proj", "dropout"


def _vit(layer: Any, path: str, shapes: ShapeProbe, *, distillation: bool = False) -> Iterator[Site]:
    arguments = ("hidden_states", "attention_mask", "kwargs")
    children = ("attention", "layernorm_before", "layernorm_after", "mlp", "dropout")
    check_known(layer, path, arguments=arguments, children=children)
    fields = image_tokens(layer.attention.config, prefix=prefix_names(distillation=distillation))
    yield attention_site(layer.attention, f"{path}.attention", end=path, **fields)
    yield mlp_site(layer.mlp, f"{path}.mlp", end=path, layer=path, **fields)


def _deit(layer: Any, path: str, shapes: ShapeProbe) -> Iterator[Site]:
    return _vit(layer, path, shapes, distillation=True)


def _dinov2(layer: Any, path: str, shapes: ShapeProbe) -> Iterator[Site]:
    if not hasattr(layer.attention, "o_proj"):
        raise HostError(
            f"{path}.attention has no output projection of its own, as in transformers before 5.20; attngraft supports "
            "DINOv2 from 5.20 on: pip install 'transformers>=5.20'"
        )
    config = layer.attention.config
    fields = image_tokens(config, prefix=prefix_names(registers=getattr(config, "num_register_tokens", 0)))
    yield attention_site(layer.attention, f"{path}.attention", **fields)
    yield mlp_site(layer.mlp, f"{path}.mlp", layer=path, **fields)


def _clip(layer: Any, path: str, shapes: ShapeProbe) -> Iterator[Site]:
    return _tower(layer, path, prefix=CLASS)


def _siglip(layer: Any, path: str, shapes: ShapeProbe) -> Iterator[Site]:
    return _tower(layer, path, prefix=(), init="xavier_uniform")


def _tower(layer: Any, path: str, *, prefix: tuple[str, ...], **init: Any) -> Iterator[Site]:
    fields = image_tokens(layer.self_attn.config, prefix=prefix) | init
    yield attention_site(layer.self_attn, f"{path}.self_attn", out="out_proj", **fields)
    yield mlp_site(layer.mlp, f"{path}.mlp", **fields)


def _bert_family(
    name: str, summary: str, kinds: Mapping[str, str], models: tuple[str, ...], heads: tuple[str, ...] = ()
) -> Family:
    """Return the row of models with BERT's layers.

    Args:
        kinds: module of the models -> prefix of its class names.
        models: class names without prefix, besides the base model and the usual heads.
        heads: further names of heads.
    """
    models = ("Model", *models, "ForMaskedLM", *(f"For{task}" for task in _TASKS))
    prefixes = [f"{module}.{prefix}" for module, prefix in kinds.items()]
    templates = {
        f"{prefix}{part}": getattr(bert_layers, f"Bert{part}")
        for prefix in prefixes
        for part in ("SelfAttention", "CrossAttention", "Attention", "Intermediate", "Output", "Layer")
    }
    return Family(
        name=name,
        summary=summary,
        base=TextFamily,
        models=tuple(f"{prefix}{model}" for prefix in prefixes for model in models),
        blocks={f"{prefix}Layer": bert_layers.bert_sites for prefix in prefixes},
        templates=templates,
        members={"base_names": (next(iter(kinds)),), "head_names": (*TextFamily.head_names, *heads)},
    )


_TASKS = ("SequenceClassification", "MultipleChoice", "TokenClassification", "QuestionAnswering")

FAMILIES = family_table(
    __name__,
    Family(
        name="hf.vit",
        summary="transformers ViT and DeiT (models without a head, and with any of theirs)",
        base=ImageFamily,
        models=(
            *("vit.ViTModel", "vit.ViTForImageClassification", "vit.ViTForMaskedImageModeling"),
            *("deit.DeiTModel", "deit.DeiTForImageClassification", "deit.DeiTForMaskedImageModeling"),
            "deit.DeiTForImageClassificationWithTeacher",
        ),
        blocks={"vit.ViTLayer": _vit, "deit.DeiTLayer": _deit},
        templates={
            "vit.ViTAttention": ScalingSite,
            "vit.ViTMLP": PlainMlp,
            "vit.ViTLayer": LayerWithDropout,
            "deit.DeiTAttention": ScalingSite,
            "deit.DeiTMLP": PlainMlp,
            "deit.DeiTLayer": LayerWithDropout,
        },
        members={"base_names": ("vit", "deit")},
    ),
    Family(
        name="hf.dinov2",
        summary="transformers DINOv2, with and without registers, backbones too",
        base=ImageFamily,
        models=(
            *("dinov2.Dinov2Model", "dinov2.Dinov2ForImageClassification", "dinov2.Dinov2Backbone"),
            "dinov2_with_registers.Dinov2WithRegistersModel",
            "dinov2_with_registers.Dinov2WithRegistersForImageClassification",
            "dinov2_with_registers.Dinov2WithRegistersBackbone",
        ),
        blocks={"dinov2.Dinov2Layer": _dinov2, "dinov2_with_registers.Dinov2WithRegistersLayer": _dinov2},
        templates={
            "dinov2.Dinov2Attention": Dinov2Attention,
            "dinov2.Dinov2MLP": PlainMlp,
            "dinov2.Dinov2SwiGLUFFN": MlpEnds,
            "dinov2.Dinov2Layer": MaskedLayer,
            "dinov2_with_registers.Dinov2WithRegistersAttention": Dinov2Attention,
            "dinov2_with_registers.Dinov2WithRegistersMLP": PlainMlp,
            "dinov2_with_registers.Dinov2WithRegistersSwiGLUFFN": MlpEnds,
            "dinov2_with_registers.Dinov2WithRegistersLayer": MaskedLayer,
        },
        members={"base_names": ("dinov2", "dinov2_with_registers")},
    ),
    Family(
        name="hf.clip",
        summary="the vision towers of transformers CLIP and SigLIP",
        base=ImageFamily,
        models=(
            *("clip.CLIPVisionModel", "clip.CLIPVisionModelWithProjection", "clip.CLIPForImageClassification"),
            *("siglip.SiglipVisionModel", "siglip.SiglipForImageClassification"),
        ),
        blocks={"clip.CLIPEncoderLayer": _clip, "siglip.SiglipEncoderLayer": _siglip},
        templates={
            "clip.CLIPAttention": ClipAttention,
            "clip.CLIPMLP": PlainMlp,
            "siglip.SiglipAttention": ClipAttention,
            "siglip.SiglipMLP": PlainMlp,
        },
        members={"base_names": ("vision_model",)},
    ),
    _bert_family(
        "hf.bert",
        "transformers BERT (without a head, and with any of its heads; as a decoder too)",
        {"bert": "Bert"},
        ("ForPreTraining", "LMHeadModel", "ForNextSentencePrediction"),
    ),
    _bert_family(
        "hf.roberta",
        "transformers RoBERTa, XLM-RoBERTa and CamemBERT (as decoders too)",
        {"roberta": "Roberta", "xlm_roberta": "XLMRoberta", "camembert": "Camembert"},
        ("ForCausalLM",),
    ),
    _bert_family(
        "hf.electra",
        "transformers ELECTRA, discriminators and generators (as decoders too)",
        {"electra": "Electra"},
        ("ForPreTraining", "ForCausalLM"),
        heads=("discriminator_predictions", "generator_predictions", "generator_lm_head"),
    ),
)


def __getattr__(name: str) -> type[GraftedModule]:
    """Create the patched class of a row when unpickling needs it."""
    return patched_by_name(FAMILIES, name)
