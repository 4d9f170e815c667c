"""T5 and mT5: what is written with grafts, with a cache and without."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from tests.contract.hf.hosts import transformers
from tests.contract.hf.test_t5 import HAS_SDPA, SIZES
from tests.hosts.hf.generating import Generates


class TestT5(Generates):
    implementations: ClassVar = ("sdpa", "eager") if HAS_SDPA else ()
    dropping: ClassVar = {"dropout_rate": 0.5}
    paths: ClassVar = {
        "encoder": "encoder.block.0.layer.0.SelfAttention",
        "decoder": "decoder.block.0.layer.0.SelfAttention",
        "cross": "decoder.block.0.layer.1.EncDecAttention",
    }

    def made(self, *, head: bool, **config: Any) -> Any:
        kind = transformers.T5ForConditionalGeneration if head else transformers.T5Model
        return kind(transformers.T5Config(**{**SIZES, **config}))


@pytest.mark.slow
class TestGatedMT5(TestT5):
    def made(self, *, head: bool, **config: Any) -> Any:
        kind = transformers.MT5ForConditionalGeneration if head else transformers.MT5Model
        return kind(
            transformers.MT5Config(**{**SIZES, **config}, feed_forward_proj="gated-gelu", tie_word_embeddings=False)
        )
