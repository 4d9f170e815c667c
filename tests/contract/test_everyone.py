"""No adapter without the contract, and no family that is never exported."""

from __future__ import annotations

import pytest

from attngraft.hosts import find_host
from attngraft.hosts.registry import host_adapters, missing_hosts
from tests.contract import timm, torchvision
from tests.contract.everyone import contracts, name_of
from tests.contract.test_compile_export import HOSTS, check_export, grafted
from tests.contract.tester import HostContract
from tests.contract.timm import test_t2t_vit as t2t_vit


def test_every_adapter_is_held_to_the_contract() -> None:
    """Every built-in adapter reads the model of some class in the folder of its package; timm creates our own models."""
    missing_hosts()  # registers all of them
    modules = {name: type(each).__module__ for name, each in host_adapters().items()}
    left = {
        name: "timm" if module.startswith("attngraft.models.") else module.split(".")[2]
        for name, module in modules.items()
        if module.startswith("attngraft.")
    }
    assert set(left.values()) >= {"timm", "torch_nn", "torchvision"}
    for contract in contracts():
        folder = left.pop(find_host(contract().make()).adapter.name, None)
        assert folder is None or folder == contract.__module__.split(".")[2], contract
    assert not left, "these adapters have no class in tests/contract whose model they read"


def families() -> list[type[HostContract]]:
    """The first class of each file of timm's and torchvision's families, but of those that other tests export."""
    exported = {contract.__module__ for contract in (*HOSTS, t2t_vit.TestT2TViT)}
    first: dict[str, type[HostContract]] = {}
    for contract in contracts(timm, torchvision):
        first.setdefault(contract.__module__, contract)
    return [contract for home, contract in first.items() if home not in exported]


@pytest.mark.parametrize(
    "contract",
    [  # every tenth in CI, the others on demand
        pytest.param(each, id=name_of(each), marks=pytest.mark.product if number % 10 else pytest.mark.slow)
        for number, each in enumerate(families())
    ],
)
def test_every_family_exports_with_a_graft(contract: type[HostContract]) -> None:
    spec = next(spec for spec in contract.specs if spec not in contract.refused)
    check_export(grafted(contract, contract.placed(spec)))
