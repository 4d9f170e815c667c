"""Generation with grafted T5 and mT5, with and without a cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import attngraft
from attngraft.hosts import find_host
from tests.contract.hf.hosts import transformers
from tests.contract.hf.test_t5 import HAS_SDPA, SIZES
from tests.contract.tester import randomize
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

    def test_of_half_precision_with_one_layer_that_is_not(self, tmp_path: Path) -> None:
        model = self.model()
        attngraft.graft(model, "cb_s(init=1, at=both)@encoder + se(reduction=2)@encoder + bisa@encoder + horizontal")
        randomize(model, only_grafts=True)
        attngraft.save_pretrained(model, tmp_path)
        half = attngraft.from_pretrained(tmp_path, dtype=torch.float16)
        last = half.get_submodule("encoder.block.0.layer.1")
        assert {each.dtype for each in last.DenseReluDense.parameters()} == {torch.float16, torch.float32}
        assert {each.dtype for each in last.grafts.parameters()} == {torch.float16}
        torch.testing.assert_close(self.states(half).float(), self.states(model), rtol=0.05, atol=0.05)
        last.DenseReluDense.wo.weight.data.mul_(1e8)  # exceeds the range of half precision
        seen = []
        last.register_forward_hook(lambda module, inputs, output: seen.append(output))
        self.states(half)
        assert seen[0].abs().max() > 65504 and torch.isfinite(seen[0]).all()


@pytest.mark.product
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
