"""Every fault of the table, made for real: one of each kind with the slow tests, all on demand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from proof.faults.bench import Bench
from proof.faults.case import Case, NotHere
from proof.faults.cases import CASES

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals and limits as here are POSIX's")

#: faults of which another one of the same kind is tested
ALIKE = {
    *("sigterm-before", "sigterm-program", "sigterm-slow-evaluation", "sighup", "ctrl-c", "killed-in-scan"),
    *("killed-in-loading", "killed-before-rename", "killed-before-checkpoint", "killed-at-the-end", "killed-in-a-run"),
    *("killed-in-results", "limit-checkpoint", "limit-predictions", "full-metrics", "full-predictions", "full-report"),
    *("killed-in-step", "killed-in-report", "killed-in-evaluation", "full-results", "memory-evaluation", "two-studies"),
    *(
        "sigterm-slow-data",
        "memory-real",
        "auto-batch-evaluation",
        "auto-batch-study",
        "moved-run",
        "sigterm-jobs",
        "nan-in-a-study",
    ),
}


ALL = [
    pytest.param(case, id=case.name, marks=pytest.mark.product if case.name in ALIKE else pytest.mark.slow)
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
