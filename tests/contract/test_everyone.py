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
    """A new one without a class of its own fails here: some class's model must be read by it, in its own package."""
    missing_hosts()  # registers those for other packages, too
    adapters = {name: type(each).__module__ for name, each in host_adapters().items()}
    left = {name: home for name, home in adapters.items() if home.startswith("attngraft.")}
    assert {home.split(".")[2] for home in left.values()} >= {"timm", "torch_nn", "torchvision"}
    for contract in contracts():
        home = left.pop(find_host(contract().make()).adapter.name, None)
        assert home is None or home.split(".")[2] == contract.__module__.split(".")[2], contract
    assert not left, "these adapters have no class in tests/contract whose model they read"


def families() -> list[type[HostContract]]:
    """The first class of each file of timm's and torchvision's families, but of those that other tests export."""
    exported = {contract.__module__ for contract in (*HOSTS, t2t_vit.TestT2TViT)}
    first: dict[str, type[HostContract]] = {}
    for contract in contracts(timm, torchvision):
        first.setdefault(contract.__module__, contract)
    return [contract for home, contract in first.items() if home not in exported]


@pytest.mark.slow
@pytest.mark.parametrize("contract", [pytest.param(each, id=name_of(each)) for each in families()])
def test_every_family_exports_with_a_graft(contract: type[HostContract]) -> None:
    spec = next(spec for spec in contract.specs if spec not in contract.refused)
    check_export(grafted(contract, contract.placed(spec)))
