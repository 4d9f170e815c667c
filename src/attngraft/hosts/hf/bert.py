"""Hugging Face's BERT."""

from __future__ import annotations

from typing import ClassVar

from transformers.models.bert import modeling_bert as bert

from attngraft.hosts.hf.split import Around, CrossHeads, End, Front, Heads, Layer, SplitFamily
from attngraft.hosts.registry import register_host


class GraftedBertSelfAttention(Heads, bert.BertSelfAttention):
    """`transformers.models.bert.modeling_bert.BertSelfAttention`."""


class GraftedBertCrossAttention(CrossHeads, bert.BertCrossAttention):
    """`transformers.models.bert.modeling_bert.BertCrossAttention`."""


class GraftedBertAttention(Around, bert.BertAttention):
    """`transformers.models.bert.modeling_bert.BertAttention`."""


class GraftedBertIntermediate(Front, bert.BertIntermediate):
    """`transformers.models.bert.modeling_bert.BertIntermediate`."""


class GraftedBertOutput(End, bert.BertOutput):
    """`transformers.models.bert.modeling_bert.BertOutput`."""


class GraftedBertLayer(Layer, bert.BertLayer):
    """`transformers.models.bert.modeling_bert.BertLayer`."""


class TransformersBert(SplitFamily):
    """Sites as `SplitFamily` says."""

    name = "hf.bert"
    summary = "transformers BERT (without a head, and with any of its heads; as a decoder too)"
    patched: ClassVar = {
        bert.BertSelfAttention: GraftedBertSelfAttention,
        bert.BertCrossAttention: GraftedBertCrossAttention,
        bert.BertAttention: GraftedBertAttention,
        bert.BertIntermediate: GraftedBertIntermediate,
        bert.BertOutput: GraftedBertOutput,
        bert.BertLayer: GraftedBertLayer,
    }
    models = (
        bert.BertModel,
        bert.BertForPreTraining,
        bert.BertLMHeadModel,
        bert.BertForMaskedLM,
        bert.BertForNextSentencePrediction,
        bert.BertForSequenceClassification,
        bert.BertForMultipleChoice,
        bert.BertForTokenClassification,
        bert.BertForQuestionAnswering,
    )
    several = (bert.BertForMultipleChoice,)
    layers = (bert.BertLayer,)
    inner = ("bert",)


register_host(TransformersBert())
