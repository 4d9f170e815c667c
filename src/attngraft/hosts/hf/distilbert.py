"""Hugging Face's DistilBERT."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from torch import Tensor, nn
from transformers.models.distilbert import modeling_distilbert as distilbert

from attngraft.attention import CLASS, MlpGeometry
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.hf.attention import ScalingSite, attention_site
from attngraft.hosts.hf.family import TextFamily
from attngraft.hosts.hf.mlp import MaskedLayer, PlainMlp, missing_in_chunks
from attngraft.hosts.shape_probe import ShapeProbe
from attngraft.hosts.sites import mlp_site

_PROJECTIONS = ("q_lin", "k_lin", "v_lin")


class GraftedDistilBertSelfAttention(ScalingSite, distilbert.DistilBertSelfAttention):
    """`transformers.models.distilbert.modeling_distilbert.DistilBertSelfAttention`."""

    projections = _PROJECTIONS
    out, width = "out_lin", "attention_head_size"
    precise = False
    dropout: nn.Dropout

    def dropped(self) -> float:
        return self.dropout.p if self.training else 0.0


class GraftedFFN(PlainMlp, distilbert.FFN):
    """`transformers.models.distilbert.modeling_distilbert.FFN`."""

    linear_names = ("lin1", "lin2")
    activation_name = "activation"
    dropout: nn.Dropout

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input)

    def out(self, x: Tensor) -> Tensor:
        return self.dropout(super().out(x))


class GraftedTransformerBlock(MaskedLayer, distilbert.TransformerBlock):
    """`transformers.models.distilbert.modeling_distilbert.TransformerBlock`."""

    unmasked = ("ffn",)


def _sites(layer: Any, path: str, shapes: ShapeProbe) -> Iterator[Site]:
    children = ("attention", "sa_layer_norm", "ffn", "output_layer_norm")
    check_known(layer, path, arguments=("hidden_states", "attention_mask", "kwargs"), children=children)
    fields: dict[str, Any] = {"dim": layer.ffn.lin1.in_features, "prefix": CLASS}
    yield attention_site(
        layer.attention,
        f"{path}.attention",
        out="out_lin",
        projections=_PROJECTIONS,
        width="attention_head_size",
        children=("dropout",),
        **fields,
    )
    ffn, children = f"{path}.ffn", ("dropout", "lin1", "lin2", "activation")
    check_known(layer.ffn, ffn, arguments=("input",), children=children)
    geometry = MlpGeometry(**fields, hidden=layer.ffn.lin1.out_features)
    yield mlp_site(ffn, geometry, missing_in_chunks(layer.ffn), layer=path)


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
    blocks: ClassVar = {distilbert.TransformerBlock: _sites}
    base_names = ("distilbert",)
    head_names = (*TextFamily.head_names, "pre_classifier", "vocab_transform", "vocab_layer_norm", "vocab_projector")
