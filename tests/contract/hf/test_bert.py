"""Contract of Hugging Face's BERT and related text models."""

from __future__ import annotations

from typing import ClassVar

import pytest
from torch import nn

from tests.contract.hf.hosts import TINY_TEXT, TransformersContract
from tests.contract.tester import GRAFTS
from tests.contract.timm.test_eva import NO_MIDDLE

#: configuration of DistilBERT, which uses other names
DISTIL = {
    "vocab_size": 40,
    "max_position_embeddings": 20,
    "dim": 24,
    "n_layers": 2,
    "n_heads": 3,
    "hidden_dim": 48,
    "dropout": 0.0,
    "attention_dropout": 0.0,
}
#: configuration of ModernBERT: the first layer has global attention, the second local
MODERN = {
    **{name: size for name, size in TINY_TEXT.items() if "dropout" not in name and name != "max_position_embeddings"},
    "max_position_embeddings": 32,
    "local_attention": 8,
    "global_attn_every_n_layers": 2,
    **dict.fromkeys(("pad_token_id", "bos_token_id", "cls_token_id"), 0),
    **dict.fromkeys(("eos_token_id", "sep_token_id"), 1),
}
#: grafts that causal sites refuse
CAUSAL = {
    "bisa": "must not see later ones, but the softmax over queries does",
    "cb": "must not see later ones, but this graft averages over all",
    "cb(at=attention)": "must not see later ones, but this graft averages over all",
}
#: grafts that causal sites accept
FOR_DECODERS = [
    "toy_flatten + toy_scale(start=0.5, stage=heads)",
    "horizontal + vertical",
    "toy_scale(start=0.5, stage='mlp.mid') + identity(stage='attn.end')",
]


class TestBert(TransformersContract):
    """BERT, whose attention and MLP are spread over two modules each."""

    def made(self) -> nn.Module:
        from transformers import BertConfig, BertModel

        return BertModel(BertConfig(**TINY_TEXT), add_pooling_layer=False)


@pytest.mark.product
class TestBertWithEveryGraft(TestBert):
    specs: ClassVar = GRAFTS
    refused: ClassVar = {**TestBert.refused, "ghost": "are not on a grid"}


@pytest.mark.slow
class TestBertAsDecoder(TransformersContract):
    """BERT as a causal decoder."""

    specs: ClassVar = [*FOR_DECODERS, *CAUSAL]
    refused: ClassVar = CAUSAL

    def made(self) -> nn.Module:
        from transformers import BertConfig, BertModel

        return BertModel(BertConfig(**TINY_TEXT, is_decoder=True, use_cache=False), add_pooling_layer=False)


@pytest.mark.product
class TestRoberta(TransformersContract):
    """RoBERTa, whose positions start after the padding index."""

    def made(self) -> nn.Module:
        from transformers import RobertaConfig, RobertaModel

        return RobertaModel(RobertaConfig(**TINY_TEXT), add_pooling_layer=False)


@pytest.mark.product
class TestXLMRoberta(TransformersContract):
    """RoBERTa's layout with separate classes."""

    def made(self) -> nn.Module:
        from transformers import XLMRobertaConfig, XLMRobertaModel

        return XLMRobertaModel(XLMRobertaConfig(**TINY_TEXT), add_pooling_layer=False)


@pytest.mark.product
class TestCamembert(TransformersContract):
    """RoBERTa's layout with separate classes."""

    def made(self) -> nn.Module:
        from transformers import CamembertConfig, CamembertModel

        return CamembertModel(CamembertConfig(**TINY_TEXT), add_pooling_layer=False)


@pytest.mark.product
class TestElectra(TransformersContract):
    """ELECTRA, whose embeddings have another width."""

    def made(self) -> nn.Module:
        from transformers import ElectraConfig, ElectraModel

        return ElectraModel(ElectraConfig(**TINY_TEXT, embedding_size=16))


class TestDistilBert(TransformersContract):
    """DistilBERT, with one module for each branch."""

    def made(self) -> nn.Module:
        from transformers import DistilBertConfig, DistilBertModel

        return DistilBertModel(DistilBertConfig(**DISTIL))


@pytest.mark.slow
class TestModernBert(TransformersContract):
    """Fused qkv projection, rotary positions, gated MLPs, one layer with local attention."""

    specs: ClassVar = NO_MIDDLE

    def made(self) -> nn.Module:
        from transformers import ModernBertConfig, ModernBertModel

        return ModernBertModel(ModernBertConfig(**MODERN))
