"""Tables of suite results: of a study (page and terminal) and of a single run (terminal)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from rich import box
from rich.table import Table
from rich.text import Text

from attngraft.drawing.theme import VERDICT_SIGNS
from attngraft.report.tables import difference_lines
from attngraft.results import wording
from attngraft.results.sections import Metric
from attngraft.results.study import ConditionResult, ConditionVariant, Interval, StudyResult, SuiteResult
from attngraft.results.wording import ABSENT, MetricFormat, metric_format, minus, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from attngraft.evaluation.suites.result import GroupResult, SuiteRun

    ConditionT = TypeVar("ConditionT", ConditionResult, GroupResult)

NOT_CORRECTED = (
    "A variant is called better or worse under a condition if the 95% interval of its difference, over seeds and examples, "
    "excludes zero. There is no correction for the number of conditions: among many, some differ by chance."
)
#: metrics defined by suites rather than by tasks
METRICS = {
    "real": Metric(label="accuracy by any label of ReaL", column="ReaL", share=True),
    "ece": Metric(label="expected calibration error", column="ECE", share=True),
    "images_per_second": Metric(label="images per second", column="images/s"),
    "peak_memory_bytes": Metric(label="peak memory", column="peak memory"),
}
_COLUMNS = 4  #: maximum number of metrics in one table


# --- all variants of a study ------------------------------------------------------------------------------------------


def suite_views(result: StudyResult) -> list[dict[str, Any]]:
    """Return one table per suite for the page template, with a row per condition and a cell per variant."""
    views = []
    for suite in result.suites:
        style = suite_format(result, suite)
        rows = [
            {
                "label": shown(condition.label),
                "mean": bool(condition.kind) and condition.severity is None,
                "cells": [_cell(each, style) for each in condition.variants],
            }
            for condition in suite.conditions
        ]
        views.append(
            {
                "anchor": f"suite-{suite.name}",
                "title": suite.title,
                "about": about(suite, style),
                "rows": rows,
                "notes": [shown(note) for note in suite.notes],
            }
        )
    return views


def suite_format(result: StudyResult, suite: SuiteResult) -> MetricFormat:
    """Return the format of a suite's metric."""
    return metric_format(replace(result, metrics={**METRICS, **result.metrics}), suite.metric)


def about(suite: SuiteResult, style: MetricFormat) -> str:
    """Describe a suite's numbers: metric, number of examples, and data."""
    better = "" if suite.higher_is_better else "; lower is better"
    return f"{style.title} of {wording.plural(suite.examples, 'example')}, {shown(suite.data)}{better}"


def _cell(each: ConditionVariant, style: MetricFormat) -> dict[str, str]:
    value = ABSENT if each.value is None else wording.spread_text(each.value.mean, each.value.deviation, style)
    difference = each.difference
    if difference is None:
        return {"value": value, "verdict": "", "reason": shown(each.reason)}
    note = wording.interval_note(difference)
    return {
        "value": value,
        "change": minus(style.change(difference.mean)),
        "interval": minus(style.interval(wording.deciding_interval(difference)) + (f", {note}" if note else "")),
        "verdict": difference.verdict,
        "sign": VERDICT_SIGNS[difference.verdict],
        "reason": "",
    }


def suite_comparison(result: StudyResult, suite: SuiteResult) -> Table:
    """Return a terminal table of conditions by variants: means over seeds, differences with intervals."""
    style = suite_format(result, suite)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("condition", max_width=28, overflow="fold")
    for variant in result.variants:
        table.add_column(Text(shown(variant.name)), max_width=28, overflow="fold")
    for condition in summary_conditions(suite.conditions):
        cells = []
        for each in condition.variants:
            if each.value is None:
                cells.append(Text(shown(each.reason) or ABSENT, style="dim"))
                continue
            cell = Text(wording.spread_text(each.value.mean, each.value.deviation, style))
            if each.difference is not None:
                cell.append("\n").append_text(difference_lines(each.difference, style))
            cells.append(cell)
        table.add_row(Text(shown(condition.label)), *cells)
    return table


def summary_conditions(conditions: Sequence[ConditionT]) -> list[ConditionT]:
    """Return a suite's conditions, omitting single severities where their mean is present."""
    means = {condition.kind for condition in conditions if condition.kind and condition.severity is None}
    return [each for each in conditions if each.severity is None or each.kind not in means]


# --- one run ----------------------------------------------------------------------------------------------------------


def suite_heading(run: SuiteRun) -> str:
    """Return the heading of `suite_table`."""
    of = f"{wording.plural(run.examples, 'example')} of {shown(run.data)}, {run.weights} weights"
    return f"{run.title} ({of})"


def suite_table(run: SuiteRun, of_task: Mapping[str, Metric]) -> Table:
    """Return a terminal table: a row per group of conditions, with metrics averaged over noise seeds and severities.

    The primary metric is followed by its 95% interval. User text is never parsed as markup.

    Args:
        run: the results.
        of_task: `Task.metrics` of the model's task.
    """
    groups = summary_conditions(run.groups)
    names = list(dict.fromkeys(name for group in groups for name in group.metrics))
    names = sorted(names, key=lambda name: name != run.metric)[:_COLUMNS]
    known = {**of_task, **METRICS}
    metrics = {name: known.get(name, Metric(label=name.replace("_", " "))) for name in names}
    seeds = max((len(group.noise_seeds) for group in groups), default=0)
    intervals = {
        index: interval
        for index, group in enumerate(groups)
        if run.metric in group.metrics and (interval := group.metrics[run.metric].interval) is not None
    }
    with_intervals = bool(intervals) or seeds > 0
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        caption=f"Rows with an interval: mean over {seeds} noise seeds and Student's t interval." if seeds > 1 else "",
        caption_justify="left",
    )
    table.add_column("condition", overflow="fold")
    for name, metric in metrics.items():
        table.add_column(f"{metric.column or metric.label}{' %' if metric.share else ''}", justify="right")
        if with_intervals and name == run.metric:
            table.add_column("95% interval")

    def number(name: str, value: float) -> str:
        if name == "peak_memory_bytes":
            return wording.size(int(value))
        return f"{100 * value:.2f}" if metrics[name].share else f"{value:.4g}"

    def bounds(interval: Interval | None) -> str:
        return "" if interval is None else f"{number(run.metric, interval.low)} to {number(run.metric, interval.high)}"

    for index, group in enumerate(groups):
        cells = []
        for name in metrics:
            cells.append(number(name, group.metrics[name].mean) if name in group.metrics else ABSENT)
            if with_intervals and name == run.metric:
                cells.append(bounds(intervals.get(index)))
        table.add_row(Text(shown(group.label)), *cells)
    return table
