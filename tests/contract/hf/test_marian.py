"""Contract of Hugging Face's Marian and BART."""

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
