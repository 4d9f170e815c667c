"""T5 and mT5: what is written with grafts, with a cache and without."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

import attngraft
from attngraft.hosts import find_host
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


@pytest.mark.parametrize(
    ("head", "sites"),
    [
        ("EncoderModel", 4),
        ("ForQuestionAnswering", 10),
        ("ForSequenceClassification", 10),
        ("ForTokenClassification", 4),
    ],
)
@pytest.mark.parametrize("name", ["T5", "MT5"])
def test_models_with_other_heads_are_measured_and_their_heads_are_known(name: str, head: str, sites: int) -> None:
    model = getattr(transformers, f"{name}{head}")(getattr(transformers, f"{name}Config")(**SIZES))
    report = attngraft.plan(model, "horizontal + cb_s(init=1)@encoder", measure=True)
    assert report.change is not None and report.change.max_absolute > 0
    host = find_host(model)
    assert bool(host.adapter.parts(host.core)["head"]) == (head != "EncoderModel")
    assert len(host.sites) == sites
