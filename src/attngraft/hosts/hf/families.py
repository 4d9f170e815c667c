"""Table of the `transformers` families, and templates that only one family uses."""

from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers.models.dinov3_vit import modeling_dinov3_vit

from attngraft.attention import CLASS, GraftedModule, MlpEnds, MlpGeometry, prefix_names
from attngraft.errors import HostError
from attngraft.hosts import sites
from attngraft.hosts.adapter import check_known
from attngraft.hosts.family import Family, ShapeProbe, Sites, family_table, patched_by_name
from attngraft.hosts.hf import gpt2, marian, modernbert, swin, t5
from attngraft.hosts.hf.attention import ProjectedSite, RotarySite, ScalingSite, attention_site
from attngraft.hosts.hf.bert_layers import TEMPLATES, bert_sites
from attngraft.hosts.hf.decoder import SequenceFamily
from attngraft.hosts.hf.family import ImageFamily, TextFamily, image_tokens
from attngraft.hosts.hf.mlp import MaskedLayer, PlainMlp, UpDownMlp, missing_in_chunks, mlp_site


class LayerWithDropout(MaskedLayer):
    """A layer with dropout at the end of its attention branch and of its MLP branch."""

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


def _vit(layer: Any, path: str, shapes: ShapeProbe, *, distillation: bool = False) -> Sites:
    arguments = ("hidden_states", "attention_mask", "kwargs")
    children = ("attention", "layernorm_before", "layernorm_after", "mlp", "dropout")
    check_known(layer, path, arguments=arguments, children=children)
    fields = image_tokens(layer.attention.config, prefix=prefix_names(distillation=distillation))
    yield attention_site(layer.attention, f"{path}.attention", end=path, **fields)
    yield mlp_site(layer.mlp, f"{path}.mlp", end=path, layer=path, **fields)


def _dinov2(layer: Any, path: str, shapes: ShapeProbe) -> Sites:
    if not hasattr(layer.attention, "o_proj"):
        raise HostError(
            f"{path}.attention has no separate output projection, as in transformers before 5.20; attngraft supports "
            "DINOv2 from 5.20 on: pip install 'transformers>=5.20'"
        )
    config = layer.attention.config
    fields = image_tokens(config, prefix=prefix_names(registers=getattr(config, "num_register_tokens", 0)))
    yield attention_site(layer.attention, f"{path}.attention", **fields)
    yield mlp_site(layer.mlp, f"{path}.mlp", layer=path, **fields)


class Dinov3Attention(RotarySite, ScalingSite):
    rotary, rate, precise = modeling_dinov3_vit, "dropout", False


def _dinov3(layer: Any, path: str, shapes: ShapeProbe) -> Sites:
    config = layer.attention.config
    fields = image_tokens(config, prefix=prefix_names(registers=config.num_register_tokens))
    yield attention_site(layer.attention, f"{path}.attention", arguments=("position_embeddings",), **fields)
    yield mlp_site(layer.mlp, f"{path}.mlp", **fields)


def _tower(layer: Any, path: str, shapes: ShapeProbe, *, prefix: tuple[str, ...] = (), **init: Any) -> Sites:
    fields = image_tokens(layer.self_attn.config, prefix=prefix) | init
    yield attention_site(layer.self_attn, f"{path}.self_attn", ClipAttention, **fields)
    yield mlp_site(layer.mlp, f"{path}.mlp", **fields)


class DistilBertAttention(ScalingSite):
    projections = ("q_lin", "k_lin", "v_lin")
    out, width, rate = "out_lin", "attention_head_size", "dropout"
    precise = False


class DistilBertMlp(PlainMlp):
    linear_names = ("lin1", "lin2")
    before_mid, after_mid = ("lin1", "activation"), ("lin2", "dropout")

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input)


class DistilBertLayer(MaskedLayer):
    unmasked = ("ffn",)


def _distilbert(layer: Any, path: str, shapes: ShapeProbe) -> Sites:
    children = ("attention", "sa_layer_norm", "ffn", "output_layer_norm")
    check_known(layer, path, arguments=("hidden_states", "attention_mask", "kwargs"), children=children)
    fields: dict[str, Any] = {"dim": layer.ffn.lin1.in_features, "prefix": CLASS}
    yield attention_site(layer.attention, f"{path}.attention", DistilBertAttention, children=("dropout",), **fields)
    children = ("dropout", "lin1", "lin2", "activation")
    check_known(layer.ffn, f"{path}.ffn", arguments=("input",), children=children)
    geometry = MlpGeometry(**fields, hidden=layer.ffn.lin1.out_features)
    yield sites.mlp_site(f"{path}.ffn", geometry, missing_in_chunks(layer.ffn), layer=path)


_TASKS = (
    *("ForMaskedLM", "ForSequenceClassification", "ForMultipleChoice"),
    *("ForTokenClassification", "ForQuestionAnswering"),
)

FAMILIES = family_table(
    __name__,
    ImageFamily,
    Family(
        name="hf.vit",
        summary="transformers ViT and DeiT (without a head, or with any of their heads)",
        prefixes=("vit.ViT", "deit.DeiT"),
        models=(
            *("Model", "ForImageClassification", "ForMaskedImageModeling"),
            "deit.DeiTForImageClassificationWithTeacher",
        ),
        blocks={"vit.ViTLayer": _vit, "deit.DeiTLayer": partial(_vit, distillation=True)},
        templates={"Attention": ScalingSite, "MLP": PlainMlp, "Layer": LayerWithDropout},
        members={"base_names": ("vit", "deit"), "any_size": {}},
    ),
    Family(
        name="hf.dinov2",
        summary="transformers DINOv2, with and without registers, including backbones",
        prefixes=("dinov2.Dinov2", "dinov2_with_registers.Dinov2WithRegisters"),
        models=("Model", "ForImageClassification", "Backbone"),
        blocks={"Layer": _dinov2},
        templates={"Attention": Dinov2Attention, "MLP": PlainMlp, "SwiGLUFFN": MlpEnds, "Layer": MaskedLayer},
        members={"base_names": ("dinov2", "dinov2_with_registers"), "any_size": {}},
    ),
    Family(
        name="hf.dinov3",
        summary="transformers DINOv3 ViTs, including backbones",
        prefixes=("dinov3_vit.DINOv3ViT",),
        models=("Model", "Backbone"),
        blocks={"Layer": _dinov3},
        templates={"Attention": Dinov3Attention, "MLP": UpDownMlp, "GatedMLP": MlpEnds},
        members={"base_names": ("model",)},
    ),
    Family(
        name="hf.clip",
        summary="the vision towers of transformers CLIP and SigLIP",
        prefixes=("clip.CLIP", "siglip.Siglip"),
        models=("VisionModel", "clip.CLIPVisionModelWithProjection", "ForImageClassification"),
        blocks={
            "clip.CLIPEncoderLayer": partial(_tower, prefix=CLASS),
            "siglip.SiglipEncoderLayer": partial(_tower, init="xavier_uniform"),
        },
        templates={"Attention": ClipAttention, "MLP": PlainMlp},
        members={"base_names": ("vision_model",)},
    ),
    Family(
        name="hf.swin",
        summary="transformers Swin, including backbones",
        prefixes=("swin.Swin",),
        models=("Model", "ForImageClassification", "ForMaskedImageModeling", "Backbone"),
        blocks={"Layer": swin.swin_sites},
        templates={"MLP": PlainMlp},
        patched=swin.PATCHED,
        members={"base_names": ("swin",), "any_size": {}},
    ),
    Family(
        name="hf.bert",
        summary="transformers BERT (without a head, or with any of its heads; also as a decoder)",
        base=TextFamily,
        prefixes=("bert.Bert",),
        models=("Model", "ForPreTraining", "LMHeadModel", "ForNextSentencePrediction", *_TASKS),
        blocks={"Layer": bert_sites},
        templates=TEMPLATES,
        members={"base_names": ("bert",)},
    ),
    Family(
        name="hf.roberta",
        summary="transformers RoBERTa, XLM-RoBERTa and CamemBERT (also as decoders)",
        base=TextFamily,
        prefixes=("roberta.Roberta", "xlm_roberta.XLMRoberta", "camembert.Camembert"),
        models=("Model", "ForCausalLM", *_TASKS),
        blocks={"Layer": bert_sites},
        templates=TEMPLATES,
        members={"base_names": ("roberta",)},
    ),
    Family(
        name="hf.electra",
        summary="transformers ELECTRA, discriminators and generators (also as decoders)",
        base=TextFamily,
        prefixes=("electra.Electra",),
        models=("Model", "ForPreTraining", "ForCausalLM", *_TASKS),
        blocks={"Layer": bert_sites},
        templates=TEMPLATES,
        members={
            "base_names": ("electra",),
            "head_names": (
                *TextFamily.head_names,
                *("discriminator_predictions", "generator_predictions", "generator_lm_head"),
            ),
        },
    ),
    Family(
        name="hf.distilbert",
        summary="transformers DistilBERT (without a head, or with any of its heads)",
        base=TextFamily,
        prefixes=("distilbert.DistilBert",),
        models=("Model", *_TASKS),
        blocks={"distilbert.TransformerBlock": _distilbert},
        templates={
            "SelfAttention": DistilBertAttention,
            "distilbert.FFN": DistilBertMlp,
            "distilbert.TransformerBlock": DistilBertLayer,
        },
        members={
            "base_names": ("distilbert",),
            "head_names": (
                *TextFamily.head_names,
                *("pre_classifier", "vocab_transform", "vocab_layer_norm", "vocab_projector"),
            ),
        },
    ),
    Family(
        name="hf.modernbert",
        summary="transformers ModernBERT (without a head, or with any of its heads)",
        base=TextFamily,
        prefixes=("modernbert.ModernBert",),
        models=("Model", *_TASKS),
        blocks={"EncoderLayer": modernbert.modernbert_sites},
        templates={
            "Attention": modernbert.ModernBertAttention,
            "MLP": modernbert.ModernBertMlp,
            "EncoderLayer": modernbert.ModernBertLayer,
        },
        members={"base_names": ("model",), "head_names": (*TextFamily.head_names, "head", "decoder")},
    ),
    Family(
        name="hf.gpt2",
        summary="transformers GPT-2 (without a head, or with its language-modeling head; also as a decoder)",
        base=TextFamily,
        prefixes=("gpt2.GPT2",),
        models=("Model", "LMHeadModel"),
        blocks={"Block": gpt2.gpt2_sites},
        templates={"Attention": gpt2.Attention, "MLP": gpt2.Mlp},
        members={"base_names": ("transformer",)},
    ),
    Family(
        name="hf.marian",
        summary="transformers Marian and BART: encoder, decoder and cross attention",
        base=SequenceFamily,
        prefixes=("marian.Marian", "bart.Bart"),
        models=(
            *("Model", "marian.MarianMTModel", "bart.BartForConditionalGeneration"),
            *("bart.BartForSequenceClassification", "bart.BartForQuestionAnswering"),
        ),
        blocks={"EncoderLayer": marian.encoder_sites, "DecoderLayer": marian.decoder_sites},
        templates={
            "Attention": marian.Attention,
            "EncoderLayer": marian.EncoderLayer,
            "DecoderLayer": marian.DecoderLayer,
        },
        members={"base_names": ("model",)},
    ),
    Family(
        name="hf.m2m_100",
        summary="transformers M2M100 (NLLB) and mBART: encoder, decoder and cross attention",
        base=SequenceFamily,
        prefixes=("m2m_100.M2M100", "mbart.MBart"),
        models=(
            *("Model", "ForConditionalGeneration"),
            *("mbart.MBartForSequenceClassification", "mbart.MBartForQuestionAnswering"),
        ),
        blocks={"EncoderLayer": marian.encoder_sites, "DecoderLayer": marian.decoder_sites},
        templates={
            "Attention": marian.Attention,
            "EncoderLayer": marian.NormFirstEncoderLayer,
            "DecoderLayer": marian.NormFirstDecoderLayer,
        },
        members={"base_names": ("model",)},
    ),
    Family(
        name="hf.t5",
        summary="transformers T5 and mT5: encoder, decoder and cross attention, or the encoder alone",
        base=SequenceFamily,
        prefixes=("t5.T5", "mt5.MT5"),
        models=(
            *("Model", "ForConditionalGeneration", "EncoderModel"),
            *("ForQuestionAnswering", "ForSequenceClassification", "ForTokenClassification"),
        ),
        blocks={"Block": t5.t5_sites},
        templates=t5.TEMPLATES,
        members={"base_names": ("transformer",)},
    ),
)


def __getattr__(name: str) -> type[GraftedModule]:
    """Create a table row's patched class on access, for unpickling."""
    return patched_by_name(FAMILIES, name)
