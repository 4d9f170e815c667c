"""Every host with every graft through torch.compile(fullgraph=True) and torch.export: on demand, by `make product`.

The slow tests take every graft on a ViT and every host with a few grafts (`test_compile_export.py`).
"""

from __future__ import annotations

import pytest
from torch import nn

from attngraft.errors import GraftSpecError, HostError, UsageError
from tests.contract.everyone import contracts, name_of
from tests.contract.test_compile_export import check_compile, check_export, grafted
from tests.contract.tester import GRAFTS, HostContract

#: all that the contract has for a host, also where its own tests take a few
PAIRS = [
    pytest.param(contract, contract.placed(spec), id=f"{name_of(contract)}-{spec}")
    for contract in contracts()
    for spec in dict.fromkeys([*GRAFTS, *contract.specs, *contract.space])
    if spec not in contract.refused
]


def test_the_product_is_whole() -> None:
    taken = {pair.values[0] for pair in PAIRS}  # type: ignore[union-attr]
    assert taken == set(contracts())
    assert len(PAIRS) > 20 * len(taken)


def taken(contract: type[HostContract], spec: str) -> nn.Module:
    """The host with this graft; where its contract does not name the graft, the host may refuse it."""
    try:
        return grafted(contract, spec)
    except (GraftSpecError, HostError) as refusal:
        if spec in map(contract.placed, contract.specs):
            raise
        pytest.skip(f"refused: {refusal}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """All pairs where they are asked for: to collect thousands of tests takes others' time."""
    if "contract" in metafunc.fixturenames:
        asked = "product" in metafunc.config.option.markexpr.replace("not product", "")
        metafunc.parametrize(("contract", "spec"), PAIRS if asked else PAIRS[:1])


@pytest.mark.product
def test_compiles(contract: type[HostContract], spec: str) -> None:
    model = taken(contract, spec)
    check_compile(model, contract().given(model))


@pytest.mark.product
def test_exports(contract: type[HostContract], spec: str) -> None:
    model = taken(contract, spec)
    try:
        check_export(model, contract().given(model), batch_axis=contract.batch_axis)
    except UsageError as refusal:
        if not (contract.masks_programs and "with a padding mask" in str(refusal)):
            raise
        pytest.skip(f"refused: {refusal}")
