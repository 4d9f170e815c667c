"""Marian and BART: what is written with grafts, with a cache and without."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from tests.contract.hf.hosts import transformers
from tests.contract.hf.test_marian import SIZES
from tests.hosts.hf.generating import Generates


class TestMarian(Generates):
    dropping: ClassVar = {"dropout": 0.5, "attention_dropout": 0.5, "activation_dropout": 0.5}
    paths: ClassVar = {
        "encoder": "encoder.layers.0.self_attn",
        "decoder": "decoder.layers.0.self_attn",
        "cross": "decoder.layers.0.encoder_attn",
    }

    def made(self, *, head: bool, **config: Any) -> Any:
        kind = transformers.MarianMTModel if head else transformers.MarianModel
        return kind(transformers.MarianConfig(**{**SIZES, **config}))


@pytest.mark.slow
class TestBart(TestMarian):
    def made(self, *, head: bool, **config: Any) -> Any:
        kind = transformers.BartForConditionalGeneration if head else transformers.BartModel
        return kind(transformers.BartConfig(**{**SIZES, **config}))
