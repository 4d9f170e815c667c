"""The footnote that says how far the intervals can be trusted: their measured coverage."""

from __future__ import annotations

from attngraft.results.coverage import Coverage


def coverage_note(coverage: Coverage) -> str:
    """One sentence: how often each interval held the truth, for each number of seeds that was measured."""
    first = coverage.measured[0]
    cells = [f"with {row.seeds} seeds {_share(row.bootstrap)} and {_share(row.t)}" for row in coverage.measured]
    return (
        f"How often the 95% intervals hold the truth, over simulated studies whose truth is known ({first.studies:,} for "
        f"each number of seeds, of {coverage.kinds} kinds), bootstrap interval and t-interval: {', '.join(cells)}."
    )


def _share(share: float) -> str:
    """In percent, rounded down: coverage is not to look better than it is."""
    return f"{int(share * 1000 + 1e-9) / 10:.1f}%"
