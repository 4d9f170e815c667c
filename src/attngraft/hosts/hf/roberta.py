"""Hugging Face's RoBERTa, and what is the same under other names: XLM-RoBERTa, CamemBERT."""

from __future__ import annotations

from typing import ClassVar

from transformers.models.camembert import modeling_camembert as camembert
from transformers.models.roberta import modeling_roberta as roberta
from transformers.models.xlm_roberta import modeling_xlm_roberta as xlm_roberta

from attngraft.hosts.hf.split import Around, CrossHeads, End, Front, Heads, Layer, SplitFamily
from attngraft.hosts.registry import register_host


class GraftedRobertaSelfAttention(Heads, roberta.RobertaSelfAttention):
    """`transformers.models.roberta.modeling_roberta.RobertaSelfAttention`."""


class GraftedRobertaCrossAttention(CrossHeads, roberta.RobertaCrossAttention):
    """`transformers.models.roberta.modeling_roberta.RobertaCrossAttention`."""


class GraftedRobertaAttention(Around, roberta.RobertaAttention):
    """`transformers.models.roberta.modeling_roberta.RobertaAttention`."""


class GraftedRobertaIntermediate(Front, roberta.RobertaIntermediate):
    """`transformers.models.roberta.modeling_roberta.RobertaIntermediate`."""


class GraftedRobertaOutput(End, roberta.RobertaOutput):
    """`transformers.models.roberta.modeling_roberta.RobertaOutput`."""


class GraftedRobertaLayer(Layer, roberta.RobertaLayer):
    """`transformers.models.roberta.modeling_roberta.RobertaLayer`."""


class GraftedXLMRobertaSelfAttention(Heads, xlm_roberta.XLMRobertaSelfAttention):
    """`transformers.models.xlm_roberta.modeling_xlm_roberta.XLMRobertaSelfAttention`."""


class GraftedXLMRobertaCrossAttention(CrossHeads, xlm_roberta.XLMRobertaCrossAttention):
    """`transformers.models.xlm_roberta.modeling_xlm_roberta.XLMRobertaCrossAttention`."""


class GraftedXLMRobertaAttention(Around, xlm_roberta.XLMRobertaAttention):
    """`transformers.models.xlm_roberta.modeling_xlm_roberta.XLMRobertaAttention`."""


class GraftedXLMRobertaIntermediate(Front, xlm_roberta.XLMRobertaIntermediate):
    """`transformers.models.xlm_roberta.modeling_xlm_roberta.XLMRobertaIntermediate`."""


class GraftedXLMRobertaOutput(End, xlm_roberta.XLMRobertaOutput):
    """`transformers.models.xlm_roberta.modeling_xlm_roberta.XLMRobertaOutput`."""


class GraftedXLMRobertaLayer(Layer, xlm_roberta.XLMRobertaLayer):
    """`transformers.models.xlm_roberta.modeling_xlm_roberta.XLMRobertaLayer`."""


class GraftedCamembertSelfAttention(Heads, camembert.CamembertSelfAttention):
    """`transformers.models.camembert.modeling_camembert.CamembertSelfAttention`."""


class GraftedCamembertCrossAttention(CrossHeads, camembert.CamembertCrossAttention):
    """`transformers.models.camembert.modeling_camembert.CamembertCrossAttention`."""


class GraftedCamembertAttention(Around, camembert.CamembertAttention):
    """`transformers.models.camembert.modeling_camembert.CamembertAttention`."""


class GraftedCamembertIntermediate(Front, camembert.CamembertIntermediate):
    """`transformers.models.camembert.modeling_camembert.CamembertIntermediate`."""


class GraftedCamembertOutput(End, camembert.CamembertOutput):
    """`transformers.models.camembert.modeling_camembert.CamembertOutput`."""


class GraftedCamembertLayer(Layer, camembert.CamembertLayer):
    """`transformers.models.camembert.modeling_camembert.CamembertLayer`."""


class TransformersRoberta(SplitFamily):
    """Sites as `SplitFamily` says."""

    name = "hf.roberta"
    summary = "transformers RoBERTa, XLM-RoBERTa and CamemBERT (as decoders too)"
    patched: ClassVar = {
        roberta.RobertaSelfAttention: GraftedRobertaSelfAttention,
        roberta.RobertaCrossAttention: GraftedRobertaCrossAttention,
        roberta.RobertaAttention: GraftedRobertaAttention,
        roberta.RobertaIntermediate: GraftedRobertaIntermediate,
        roberta.RobertaOutput: GraftedRobertaOutput,
        roberta.RobertaLayer: GraftedRobertaLayer,
        xlm_roberta.XLMRobertaSelfAttention: GraftedXLMRobertaSelfAttention,
        xlm_roberta.XLMRobertaCrossAttention: GraftedXLMRobertaCrossAttention,
        xlm_roberta.XLMRobertaAttention: GraftedXLMRobertaAttention,
        xlm_roberta.XLMRobertaIntermediate: GraftedXLMRobertaIntermediate,
        xlm_roberta.XLMRobertaOutput: GraftedXLMRobertaOutput,
        xlm_roberta.XLMRobertaLayer: GraftedXLMRobertaLayer,
        camembert.CamembertSelfAttention: GraftedCamembertSelfAttention,
        camembert.CamembertCrossAttention: GraftedCamembertCrossAttention,
        camembert.CamembertAttention: GraftedCamembertAttention,
        camembert.CamembertIntermediate: GraftedCamembertIntermediate,
        camembert.CamembertOutput: GraftedCamembertOutput,
        camembert.CamembertLayer: GraftedCamembertLayer,
    }
    models = (
        roberta.RobertaModel,
        roberta.RobertaForCausalLM,
        roberta.RobertaForMaskedLM,
        roberta.RobertaForSequenceClassification,
        roberta.RobertaForMultipleChoice,
        roberta.RobertaForTokenClassification,
        roberta.RobertaForQuestionAnswering,
        xlm_roberta.XLMRobertaModel,
        xlm_roberta.XLMRobertaForCausalLM,
        xlm_roberta.XLMRobertaForMaskedLM,
        xlm_roberta.XLMRobertaForSequenceClassification,
        xlm_roberta.XLMRobertaForMultipleChoice,
        xlm_roberta.XLMRobertaForTokenClassification,
        xlm_roberta.XLMRobertaForQuestionAnswering,
        camembert.CamembertModel,
        camembert.CamembertForCausalLM,
        camembert.CamembertForMaskedLM,
        camembert.CamembertForSequenceClassification,
        camembert.CamembertForMultipleChoice,
        camembert.CamembertForTokenClassification,
        camembert.CamembertForQuestionAnswering,
    )
    several = (
        roberta.RobertaForMultipleChoice,
        xlm_roberta.XLMRobertaForMultipleChoice,
        camembert.CamembertForMultipleChoice,
    )
    layers = (
        roberta.RobertaLayer,
        xlm_roberta.XLMRobertaLayer,
        camembert.CamembertLayer,
    )
    inner = ("roberta",)


register_host(TransformersRoberta())
