"""Every fault of the table, made for real; the quick ones by default, the others with the slow tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from proof.faults.bench import Bench
from proof.faults.case import Case, NotHere
from proof.faults.cases import CASES

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals and limits as here are POSIX's")

ALL = [
    pytest.param(case, id=case.name, marks=[] if case.quick else [pytest.mark.slow])
    for cases in CASES.values()
    for case in cases
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(tmp_path_factory.mktemp("faults"))


@pytest.mark.parametrize("case", ALL)
def test_what_is_promised_of_a_fault_holds(bench: Bench, case: Case) -> None:
    try:
        measured = case.run(bench)
    except NotHere as reason:
        pytest.skip(str(reason))
    assert measured


def test_names_tell_cases_apart(tmp_path: Path) -> None:
    names = [case.name for cases in CASES.values() for case in cases]
    assert len(names) == len(set(names))
