"""The measured coverage of the intervals and the footnote that reports it."""

from __future__ import annotations

import re

from attngraft.results.coverage import Coverage, SeedsCoverage, coverage_note, measured_coverage

MADE_UP = Coverage(
    command="measure it",
    kinds=2,
    measured=(
        SeedsCoverage(seeds=3, studies=4000, interval=0.96199, bootstrap=0.98799, t=0.95),
        SeedsCoverage(seeds=10, studies=4000, interval=1.0, bootstrap=1.0, t=0.9496),
    ),
)


def test_sentence() -> None:
    note = coverage_note(MADE_UP)
    assert "(4,000 for each number of seeds, of 2 kinds)" in note
    assert note.endswith("kinds): 96.1% with 3 seeds, 100.0% with 10 seeds.")


def test_shipped_measurement() -> None:
    """3, 5 and 10 seeds, each interval at 95% up to what the number of studies can tell."""
    shipped = measured_coverage()
    assert [row.seeds for row in shipped.measured] == [3, 5, 10]
    for row in shipped.measured:
        slack = 2 * (0.95 * 0.05 / row.studies) ** 0.5
        assert min(row.interval, row.bootstrap, row.t) > 0.95 - slack
    assert re.fullmatch(r"python -m [\w.]+", shipped.command)
