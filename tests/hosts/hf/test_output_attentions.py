"""`output_attentions=True` returns the host's maps, for every supported family of transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attngraft
from attngraft.grafting.apply import patch
from attngraft.hosts import find_host
from tests.contract import hf
from tests.contract.everyone import contracts
from tests.contract.hf import test_swin as swin
from tests.contract.hf.hosts import TransformersContract

#: one contract per model class, slow ones included; the other contracts differ only in their grafts
FAMILIES = [
    pytest.param(contract, marks=[mark for mark in getattr(contract, "pytestmark", []) if mark.name == "skipif"])
    for contract in contracts(hf)
    if "made" in vars(contract)
]
#: models that return only the last map of each stage
SHOWN = {swin.TestSwin: 2}
KINDS = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")


def eager(contract: type[TransformersContract]) -> tuple[Any, tuple[Tensor, ...]]:
    """Return the model with eager attention, and its inputs."""
    host: Any = contract().make_again()
    host.model.set_attn_implementation("eager")
    return host.model, contract().given(host)


@torch.no_grad()
def maps(model: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, dict[str, tuple[Tensor, ...]]]:
    """Return the output tokens, or the logits, and the maps by kind."""
    outputs = model(*inputs, output_attentions=True)
    return outputs.get("last_hidden_state", outputs.get("logits")), {
        kind: outputs[kind] for kind in KINDS if outputs.get(kind)
    }


def assert_same(found: dict[str, tuple[Tensor, ...]], expected: dict[str, tuple[Tensor, ...]]) -> None:
    assert found.keys() == expected.keys()
    for kind, layers in expected.items():
        assert all(torch.equal(a, b) for a, b in zip(found[kind], layers, strict=True)), kind


@pytest.mark.parametrize("contract", FAMILIES)
def test_maps_are_the_hosts(contract: type[TransformersContract]) -> None:
    """The maps match bit for bit, with patched classes alone and with a graft that starts as the identity."""
    model, inputs = eager(contract)
    _, expected = maps(model, inputs)
    layers = [layer for kind in expected.values() for layer in kind]
    assert len(layers) == SHOWN.get(contract, contract.layers)
    assert all(torch.allclose(layer.sum(-1), torch.ones(())) for layer in layers)
    host = find_host(model)
    for path in {path for site in host.sites for path in site.targets.values()}:
        patch(host.module(path))
    assert_same(maps(model, inputs)[1], expected)

    model, inputs = eager(contract)
    attngraft.graft(model, "horizontal(identity=true)")
    assert_same(maps(model, inputs)[1], expected)


@pytest.mark.parametrize("contract", FAMILIES)
def test_a_graft_behind_the_maps_changes_none(contract: type[TransformersContract]) -> None:
    """A graft at the heads of the last attention changes the tokens but no map."""
    model, inputs = eager(contract)
    tokens, expected = maps(model, inputs)
    attngraft.graft(model, "horizontal@last:1")
    found, shown = maps(model, inputs)
    assert not torch.equal(found, tokens)
    assert_same(shown, expected)
