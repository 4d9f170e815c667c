"""Every host with every graft through torch.compile(fullgraph=True) and torch.export: on demand, by `make product`.

The slow tests take every graft on a ViT and every host with a few grafts (`test_compile_export.py`).
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator

import pytest

from tests.contract import timm as families
from tests.contract.test_compile_export import check_compile, check_export, grafted
from tests.contract.tester import GRAFTS, HostContract


def hosts() -> Iterator[type[HostContract]]:
    """Every host that is held to the contract."""
    for module in pkgutil.iter_modules(families.__path__, f"{families.__name__}."):
        for name, found in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            own = found.__module__ == module.name
            if own and name.startswith("Test") and issubclass(found, HostContract):
                yield found


#: all that the contract has for a host, also where its own tests take a few
PAIRS = [
    pytest.param(contract, contract.placed(spec), id=f"{contract.__name__}-{spec}")
    for contract in hosts()
    for spec in dict.fromkeys([*GRAFTS, *contract.specs])
    if spec not in contract.refused
]


def test_the_product_is_whole() -> None:
    taken = {pair.values[0] for pair in PAIRS}  # type: ignore[union-attr]
    assert taken == set(hosts())
    assert len(PAIRS) > 20 * len(taken)


@pytest.mark.product
@pytest.mark.parametrize(("contract", "spec"), PAIRS)
def test_compiles(contract: type[HostContract], spec: str) -> None:
    check_compile(grafted(contract, spec))


@pytest.mark.product
@pytest.mark.parametrize(("contract", "spec"), PAIRS)
def test_exports(contract: type[HostContract], spec: str) -> None:
    check_export(grafted(contract, spec))
