"""`torch.fx`: grafted modules are leaves of a traced graph."""

from __future__ import annotations

import pytest
import torch
from timm.models import create_feature_extractor as timm_extractor
from timm.models import get_graph_node_names
from torch import Tensor, fx, nn
from torchvision.models.feature_extraction import create_feature_extractor

import attngraft
from attngraft.attention.tracing import fx_leaf
from attngraft.hosts import find_host
from tests.contract import timm as timm_contracts
from tests.contract.everyone import contracts, name_of
from tests.contract.tester import HostContract
from tests.contract.timm import test_swin as swin
from tests.contract.timm import test_vit as vit
from tests.contract.torchvision import test_swin as torchvision_swin
from tests.contract.torchvision import test_vit as torchvision_vit

#: models whose forward depends on values of its arguments, such as masks, and cannot be traced
UNTRACEABLE = ("TestBixtPoints", "TestGemma4", "TestHiera", "TestM2Transformer", "TestMtTransformer")


def make(contract: type[HostContract], spec: str) -> tuple[nn.Module, Tensor]:
    model = contract().make().eval()
    attngraft.graft(model, spec)
    host = find_host(model)
    return model, host.adapter.example_inputs(host.core, batch=1)[0]


def gradients(model: nn.Module, output: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    output.square().sum().backward()
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


@pytest.mark.parametrize(
    ("contract", "spec", "head"),
    [
        (vit.TestViT, "bisa(learned=true)@blocks.0 + horizontal + cb_s(init=1)", "head"),
        (swin.TestSwin, "bisa@layers.0 + vertical + cb(at=both)", "head"),
        (torchvision_vit.TestViT, "bisa + horizontal + cb", "heads"),
        (torchvision_swin.TestSwin, "bisa + horizontal + cb(at=both)", "head"),
    ],
)
def test_grafted_models_are_traced(contract: type[HostContract], spec: str, head: str) -> None:
    model, images = make(contract, spec)
    extract = timm_extractor if "timm" in contract.__module__ else create_feature_extractor
    expected, (found,) = model(images), extract(model, [head])(images).values()
    assert torch.equal(found, expected)
    for (name, a), b in zip(gradients(model, expected).items(), gradients(model, found).values(), strict=True):
        torch.testing.assert_close(a, b, msg=name)


def test_grafted_modules_are_leaves() -> None:
    model, images = make(vit.TestViT, "horizontal@blocks.1")
    _, names = get_graph_node_names(model)
    assert {"blocks.0.attn.qkv", "blocks.1.attn", "blocks.1.mlp.fc1"} <= set(names)
    assert not any(name.startswith("blocks.1.attn.") for name in names)
    extractor = timm_extractor(model, ["blocks.1.attn", "head"])
    with attngraft.record(model, "weights", sites="blocks.1") as recording:  # also of what the graph computes
        attention, logits = extractor(images).values()
    assert attention.shape[-1] == model.embed_dim and torch.equal(logits, model(images))
    assert list(recording) == ["blocks.1.attn"]


def test_a_traced_module_itself_is_no_leaf() -> None:
    class Doubled(nn.Module):
        @fx_leaf
        def forward(self, x: Tensor) -> Tensor:
            return 2 * x

    assert [node.op for node in fx.symbolic_trace(Doubled()).graph.nodes] == ["placeholder", "call_function", "output"]
    graph = fx.symbolic_trace(nn.Sequential(Doubled())).graph
    assert [node.op for node in graph.nodes] == ["placeholder", "call_module", "output"]


def families() -> list[type[HostContract]]:
    """The first class of each file of timm's families."""
    first: dict[str, type[HostContract]] = {}
    for contract in contracts(timm_contracts):
        first.setdefault(contract.__module__, contract)
    return [contract for contract in first.values() if contract.__name__ not in UNTRACEABLE]


@pytest.mark.slow
@pytest.mark.parametrize("contract", families(), ids=name_of)
def test_every_family_is_traced(contract: type[HostContract]) -> None:
    spec = next(spec for spec in contract.specs if spec not in contract.refused)
    model, images = make(contract, contract.placed(spec))
    _, names = get_graph_node_names(model)
    expected, (found,) = model(images), timm_extractor(model, names[-1:])(images).values()
    assert torch.equal(found, expected)
