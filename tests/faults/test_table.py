"""The committed page of faults is what its command makes of the committed measurements, and lists every case."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from proof.faults.__main__ import MEASURED
from proof.faults.cases import CASES
from proof.faults.table import page

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def measured() -> dict[str, str]:
    found: dict[str, str] = json.loads((ROOT / MEASURED).read_text(encoding="utf-8"))["measured"]
    return found


def test_the_committed_page_is_what_the_command_writes(measured: dict[str, str]) -> None:
    assert (ROOT / "docs" / "faults.md").read_text(encoding="utf-8") == page(measured)


def test_every_case_was_measured_and_held(measured: dict[str, str]) -> None:
    assert list(measured) == [case.name for cases in CASES.values() for case in cases]
    assert not [words for words in measured.values() if re.search("BROKEN|not made", words)]


def test_every_line_has_its_five_cells(measured: dict[str, str]) -> None:
    rows = [line for line in page(measured).splitlines() if line.startswith("| ") and "---" not in line]
    assert len(rows) == len(measured) + len(CASES)
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {6}


def test_a_case_that_was_not_measured_is_no_page(measured: dict[str, str]) -> None:
    with pytest.raises(KeyError):
        page({name: words for name, words in measured.items() if name != "nan"})
