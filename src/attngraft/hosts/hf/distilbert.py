"""Hugging Face's DistilBERT."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from torch import Tensor, nn
from transformers.models.distilbert import modeling_distilbert as distilbert

from attngraft.attention import CLASS, MlpGeometry
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.hf.attention import ScalingSite, attention_site
from attngraft.hosts.hf.chunks import in_chunks
from attngraft.hosts.hf.family import TextFamily
from attngraft.hosts.hf.mlp import MaskedLayer, TwoLayers
from attngraft.hosts.registry import register_host
from attngraft.hosts.sites import mlp_site

PROJECTIONS = ("q_lin", "k_lin", "v_lin")


class GraftedDistilBertSelfAttention(ScalingSite, distilbert.DistilBertSelfAttention):
    """`transformers.models.distilbert.modeling_distilbert.DistilBertSelfAttention`."""

    projections = PROJECTIONS
    out, width = "out_lin", "attention_head_size"
    precise = False
    dropout: nn.Dropout

    def dropped(self) -> float:
        return self.dropout.p if self.training else 0.0


class GraftedFFN(TwoLayers, distilbert.FFN):
    """`transformers.models.distilbert.modeling_distilbert.FFN`."""

    linear_names = ("lin1", "lin2")
    activation_name = "activation"
    dropout: nn.Dropout

    def forward(self, input: Tensor) -> Tensor:
        """The sentence."""
        return super().forward(input)

    def out(self, x: Tensor) -> Tensor:
        return self.dropout(super().out(x))


class GraftedTransformerBlock(MaskedLayer, distilbert.TransformerBlock):
    """`transformers.models.distilbert.modeling_distilbert.TransformerBlock`."""

    unaware = ("ffn",)


class TransformersDistilbert(TextFamily):
    """Sites `transformer.layer.<i>.attention` and `transformer.layer.<i>.ffn`."""

    name = "hf.distilbert"
    summary = "transformers DistilBERT (without a head, and with any of its heads)"
    patched: ClassVar = {
        distilbert.DistilBertSelfAttention: GraftedDistilBertSelfAttention,
        distilbert.FFN: GraftedFFN,
        distilbert.TransformerBlock: GraftedTransformerBlock,
    }
    models = (
        distilbert.DistilBertModel,
        distilbert.DistilBertForMaskedLM,
        distilbert.DistilBertForSequenceClassification,
        distilbert.DistilBertForQuestionAnswering,
        distilbert.DistilBertForTokenClassification,
        distilbert.DistilBertForMultipleChoice,
    )
    several = (distilbert.DistilBertForMultipleChoice,)
    layers = (distilbert.TransformerBlock,)
    inner = ("distilbert",)
    heads = (*TextFamily.heads, "pre_classifier", "vocab_transform", "vocab_layer_norm", "vocab_projector")

    def read(self, layer: Any, path: str) -> Iterable[Site]:
        check_known(
            layer,
            path,
            arguments=("hidden_states", "attention_mask", "kwargs"),
            children=("attention", "sa_layer_norm", "ffn", "output_layer_norm"),
        )
        known = {"dim": layer.ffn.lin1.in_features, "prefix": CLASS}
        attention, ffn = f"{path}.attention", f"{path}.ffn"
        yield attention_site(
            layer.attention,
            attention,
            end=attention,
            out="out_lin",
            projections=PROJECTIONS,
            width="attention_head_size",
            children=("dropout",),
            **known,
        )
        check_known(layer.ffn, ffn, arguments=("input",), children=("dropout", "lin1", "lin2", "activation"))
        geometry = MlpGeometry(**known, hidden=layer.ffn.lin1.out_features)
        yield mlp_site(ffn, geometry, in_chunks(layer.ffn), layer=path)


register_host(TransformersDistilbert())
