"""Hugging Face's ELECTRA."""

from __future__ import annotations

from typing import ClassVar

from transformers.models.electra import modeling_electra as electra

from attngraft.hosts.hf.split import Around, CrossHeads, End, Front, Heads, Layer, SplitFamily
from attngraft.hosts.registry import register_host


class GraftedElectraSelfAttention(Heads, electra.ElectraSelfAttention):
    """`transformers.models.electra.modeling_electra.ElectraSelfAttention`."""


class GraftedElectraCrossAttention(CrossHeads, electra.ElectraCrossAttention):
    """`transformers.models.electra.modeling_electra.ElectraCrossAttention`."""


class GraftedElectraAttention(Around, electra.ElectraAttention):
    """`transformers.models.electra.modeling_electra.ElectraAttention`."""


class GraftedElectraIntermediate(Front, electra.ElectraIntermediate):
    """`transformers.models.electra.modeling_electra.ElectraIntermediate`."""


class GraftedElectraOutput(End, electra.ElectraOutput):
    """`transformers.models.electra.modeling_electra.ElectraOutput`."""


class GraftedElectraLayer(Layer, electra.ElectraLayer):
    """`transformers.models.electra.modeling_electra.ElectraLayer`."""


class TransformersElectra(SplitFamily):
    """Sites as `SplitFamily` says."""

    name = "hf.electra"
    summary = "transformers ELECTRA, discriminators and generators (as decoders too)"
    patched: ClassVar = {
        electra.ElectraSelfAttention: GraftedElectraSelfAttention,
        electra.ElectraCrossAttention: GraftedElectraCrossAttention,
        electra.ElectraAttention: GraftedElectraAttention,
        electra.ElectraIntermediate: GraftedElectraIntermediate,
        electra.ElectraOutput: GraftedElectraOutput,
        electra.ElectraLayer: GraftedElectraLayer,
    }
    models = (
        electra.ElectraModel,
        electra.ElectraForPreTraining,
        electra.ElectraForCausalLM,
        electra.ElectraForMaskedLM,
        electra.ElectraForSequenceClassification,
        electra.ElectraForMultipleChoice,
        electra.ElectraForTokenClassification,
        electra.ElectraForQuestionAnswering,
    )
    several = (electra.ElectraForMultipleChoice,)
    layers = (electra.ElectraLayer,)
    inner = ("electra",)
    heads = (*SplitFamily.heads, "discriminator_predictions", "generator_predictions", "generator_lm_head")


register_host(TransformersElectra())
