"""Generation with grafted Marian, BART and M2M100, with and without a cache."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

import attngraft
from attngraft.hosts import find_host
from tests.contract.hf.hosts import transformers
from tests.contract.hf.test_marian import SIZES
from tests.hosts.hf.generating import IDS, WRITTEN, Generates


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

    def test_a_graft_at_the_end_of_attention_makes_the_layer_leave_its_dropout(self) -> None:
        model, seen = self.model(head=False, dropout=0.5).train(), []
        attngraft.graft(model, "cb(at=attention)@encoder")
        layer = model.encoder.layers[0]
        layer.self_attn.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
        layer.self_attn_layer_norm.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
        model(input_ids=IDS, decoder_input_ids=WRITTEN)
        assert (seen[1] - seen[0] == 0).float().mean() < 0.1  # dropped entries moved to the mean of the others


@pytest.mark.slow
class TestBart(TestMarian):
    def made(self, *, head: bool, **config: Any) -> Any:
        kind = transformers.BartForConditionalGeneration if head else transformers.BartModel
        return kind(transformers.BartConfig(**{**SIZES, **config}))


@pytest.mark.product
class TestM2M100(TestMarian):
    def made(self, *, head: bool, **config: Any) -> Any:
        kind = transformers.M2M100ForConditionalGeneration if head else transformers.M2M100Model
        return kind(transformers.M2M100Config(**{**SIZES, "decoder_start_token_id": 1, **config}))


@pytest.mark.parametrize("head", ["SequenceClassification", "QuestionAnswering"])
def test_models_with_other_heads_are_measured_and_their_heads_are_known(head: str) -> None:
    model = getattr(transformers, f"BartFor{head}")(transformers.BartConfig(**SIZES))
    report = attngraft.plan(model, "horizontal + cb_s(init=1)@encoder", measure=True)
    assert report.change is not None and report.change.max_absolute > 0
    host = find_host(model)
    assert host.adapter.parts(host.core)["head"]
    assert len(host.sites) == 10
