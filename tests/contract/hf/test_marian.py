"""Contract of Hugging Face's Marian, BART, mBART and M2M100."""

from __future__ import annotations

import pytest
from torch import nn

from tests.contract.hf.seq2seq import SequenceContract

SIZES = {
    "vocab_size": 30,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 16,
    "dropout": 0.0,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
    "forced_eos_token_id": None,
}


class TestMarian(SequenceContract):
    """Marian, with post-norm layers."""

    def made(self) -> nn.Module:
        from transformers import MarianConfig, MarianModel

        return MarianModel(MarianConfig(**SIZES))


@pytest.mark.slow
class TestBart(SequenceContract):
    """BART, with learned positions and a norm after the embeddings."""

    def made(self) -> nn.Module:
        from transformers import BartConfig, BartModel

        return BartModel(BartConfig(**SIZES))


@pytest.mark.product
class TestM2M100(SequenceContract):
    """M2M100 and NLLB, with pre-norm layers and scaled embeddings; a start token other than padding has a position."""

    def made(self) -> nn.Module:
        from transformers import M2M100Config, M2M100Model

        return M2M100Model(M2M100Config(**{**SIZES, "decoder_start_token_id": 1}))


@pytest.mark.product
class TestMBart(SequenceContract):
    """mBART, with pre-norm layers and a norm after each stack."""

    def made(self) -> nn.Module:
        from transformers import MBartConfig, MBartModel

        return MBartModel(MBartConfig(**SIZES))
