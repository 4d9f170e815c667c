"""Contract of Hugging Face's T5 and mT5."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from packaging.version import Version
from torch import nn

from tests.contract.hf.hosts import TransformersContract, transformers
from tests.contract.hf.seq2seq import CAUSAL, SequenceContract

SIZES = {
    "vocab_size": 30,
    "d_model": 24,
    "d_kv": 6,
    "num_heads": 3,
    "d_ff": 40,
    "num_layers": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 10,
    "dropout_rate": 0.0,
    "initializer_factor": 0.5,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}
#: before this release, T5 had a single attention function
HAS_SDPA = Version(transformers.__version__) >= Version("5.15")


class _Chosen(TransformersContract):
    def set_fused(self, host: Any, fused: bool) -> None:
        if HAS_SDPA:
            super().set_fused(host, fused)


class TestT5(_Chosen, SequenceContract):
    """T5: heads narrower than the model, relative positions, pre-norm."""

    def made(self) -> nn.Module:
        return transformers.T5Model(transformers.T5Config(**SIZES))


@pytest.mark.slow
class TestGatedT5(TestT5):
    """T5 1.1, with gated MLPs."""

    specs: ClassVar = [
        "bisa(learned=true, norm=true)",
        "vertical + cb(at=both)",
        "horizontal + toy_scale(start=0.5, stage='mlp.end')",
        *CAUSAL,
    ]

    def made(self) -> nn.Module:
        return transformers.T5Model(transformers.T5Config(**SIZES, feed_forward_proj="gated-gelu"))


@pytest.mark.product
class TestMT5Encoder(_Chosen):
    """mT5's encoder alone."""

    def made(self) -> nn.Module:
        return transformers.MT5EncoderModel(transformers.MT5Config(**SIZES, feed_forward_proj="relu"))
