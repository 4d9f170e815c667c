"""What a suite found of one run, for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngraft.results.sections import Metric
from attngraft.results.wording import ABSENT, plural, shown, size

if TYPE_CHECKING:
    from rich.table import Table

    from attngraft.evaluation.suites.result import GroupResult, Measured, SuiteRun

#: metrics that suites bring, beside those of tasks
METRICS = {
    "real": Metric(label="accuracy by any label of ReaL", column="ReaL", share=True),
    "ece": Metric(label="expected calibration error", column="ECE", share=True),
    "images_per_second": Metric(label="images per second", column="images/s"),
    "peak_memory_bytes": Metric(label="peak memory", column="peak memory"),
}
_SHOWN = 4  #: metrics in one table


def suite_heading(found: SuiteRun) -> str:
    """What stands above the table."""
    of = f"{plural(found.examples, 'example')} of {shown(found.data)}, {found.weights} weights"
    return f"{found.title} ({of})"


def suite_table(found: SuiteRun) -> Table:
    """A row per group of conditions: each metric's mean over noise seeds, and the primary one's 95% interval. User text is
    never read as markup."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    metrics = list(dict.fromkeys(name for group in found.groups for name in group.metrics))
    metrics = sorted(metrics, key=lambda name: name != found.metric)[:_SHOWN]
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        caption=_caption(found),
        caption_justify="left",
    )
    table.add_column("condition", overflow="fold")
    intervals = any(group.noise_seeds or _interval(group, found) for group in found.groups)
    for name in metrics:
        table.add_column(_title(found, name), justify="right")
        if intervals and name == found.metric:
            table.add_column("95% interval")
    for group in found.groups:
        cells = []
        for name in metrics:
            each = group.metrics.get(name)
            cells.append(_value(found, name, each))
            if intervals and name == found.metric:
                cells.append(_bounds(found, name, each))
        table.add_row(Text(shown(group.label)), *cells)
    return table


def _caption(found: SuiteRun) -> str:
    seeds = max((len(group.noise_seeds) for group in found.groups), default=0)
    if seeds > 1:
        return f"Means over {seeds} noise seeds where there is an interval, which is Student's over them."
    return ""


def _interval(group: GroupResult, found: SuiteRun) -> bool:
    each = group.metrics.get(found.metric)
    return each is not None and each.interval is not None


def _said(found: SuiteRun, name: str) -> Metric:
    from attngraft.tasks.classification import Classification
    from attngraft.tasks.multilabel import MultiLabel

    return {**MultiLabel.metrics, **Classification.metrics, **METRICS}.get(name, Metric(label=name.replace("_", " ")))


def _title(found: SuiteRun, name: str) -> str:
    said = _said(found, name)
    return f"{said.column or said.label}{' %' if said.share else ''}"


def _value(found: SuiteRun, name: str, each: Measured | None) -> str:
    return ABSENT if each is None else _number(found, name, each.mean)


def _bounds(found: SuiteRun, name: str, each: Measured | None) -> str:
    if each is None or each.interval is None:
        return ""
    return f"{_number(found, name, each.interval.low)} to {_number(found, name, each.interval.high)}"


def _number(found: SuiteRun, name: str, value: float) -> str:
    if name == "peak_memory_bytes":
        return size(int(value))
    return f"{100 * value:.2f}" if _said(found, name).share else f"{value:.4g}"
