"""What suites say of a study's variants: for the page, the terminal, and as rows for suites.csv."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from attngraft.drawing.theme import VERDICT_SIGNS
from attngraft.report.suite_tables import METRICS
from attngraft.results import wording
from attngraft.results.study import ConditionResult, ConditionVariant, Interval, StudyResult, SuiteResult
from attngraft.results.wording import MetricFormat, metric_format, shown

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

NOT_CORRECTED = (
    "A variant is called better or worse under a condition if both 95% intervals of its difference, the crossed bootstrap "
    "over seeds and examples and the t-interval over seeds, exclude zero. Nothing is corrected for the number of "
    "conditions: of many, some differ by chance."
)
_STYLES = {"better": "bold green", "worse": "bold red", "inside the noise": "yellow"}


@dataclass(frozen=True, kw_only=True)
class CellView:
    """A variant under a condition, as the page shows it."""

    value: str
    change: str = ""
    intervals: str = ""
    standing: str = ""
    sign: str = ""
    kind: str = ""  #: the standing as a CSS class
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class RowView:
    """A condition."""

    label: str
    mean: bool  #: over severities
    cells: list[CellView]


@dataclass(frozen=True, kw_only=True)
class SuiteView:
    """A suite's table: conditions down, variants across."""

    anchor: str
    title: str
    about: str  #: metric, data and how many examples
    rows: list[RowView]
    notes: list[str]


def suite_views(result: StudyResult) -> list[SuiteView]:
    """For the page; user strings are escaped there."""
    return [
        SuiteView(
            anchor=f"suite-{suite.name}",
            title=suite.title,
            about=about(suite, suite_format(result, suite)),
            rows=[
                RowView(
                    label=shown(condition.label),
                    mean=bool(condition.kind) and condition.severity is None,
                    cells=[_cell(each, suite_format(result, suite)) for each in condition.variants],
                )
                for condition in suite.conditions
            ],
            notes=[shown(note) for note in suite.notes],
        )
        for suite in result.suites
    ]


def suite_format(result: StudyResult, suite: SuiteResult) -> MetricFormat:
    """How the suite's metric is written."""
    return metric_format(replace(result, metrics={**METRICS, **result.metrics}), suite.metric)


def about(suite: SuiteResult, style: MetricFormat) -> str:
    """What the numbers are."""
    better = "" if suite.higher_is_better else "; lower is better"
    return f"{style.title} of {wording.plural(suite.examples, 'example')}, {shown(suite.data)}{better}"


def _cell(each: ConditionVariant, style: MetricFormat) -> CellView:
    value = wording.ABSENT if each.value is None else wording.spread_text(each.value.mean, each.value.deviation, style)
    found = each.difference
    if found is None:
        return CellView(value=value, reason=shown(each.reason))
    t = f", t {style.interval(found.t)}" if found.t else ""
    return CellView(
        value=value,
        change=wording.minus(style.change(found.mean)),
        intervals=wording.minus(f"bootstrap {style.interval(found.bootstrap)}{t}"),
        standing=found.verdict,
        sign=VERDICT_SIGNS[found.verdict],
        kind=found.verdict.replace(" ", "-"),
    )


# --- terminal -----------------------------------------------------------------------------------------------------


def suite_comparison(result: StudyResult, suite: SuiteResult) -> Table:
    """Conditions down, variants across: the mean over seeds, and below it the difference with both 95% intervals."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    style = suite_format(result, suite)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("condition", max_width=28, overflow="fold")
    for variant in result.variants:
        table.add_column(Text(shown(variant.name)), max_width=28, overflow="fold")
    for condition in terse(suite):
        table.add_row(Text(shown(condition.label)), *(_text(each, style) for each in condition.variants))
    return table


def terse(suite: SuiteResult) -> list[ConditionResult]:
    """The conditions without those that a mean over severities stands for."""
    means = {condition.kind for condition in suite.conditions if condition.kind and condition.severity is None}
    return [each for each in suite.conditions if each.severity is None or each.kind not in means]


def _text(each: ConditionVariant, style: MetricFormat) -> Text:
    from rich.text import Text

    if each.value is None:
        return Text(shown(each.reason) or wording.ABSENT, style="dim")
    cell = Text(wording.spread_text(each.value.mean, each.value.deviation, style))
    found = each.difference
    if found is not None:
        cell.append(f"\n{style.change(found.mean)} ")
        cell.append(found.verdict, style=_STYLES[found.verdict])
        cell.append(f"\n{_bounds(found.bootstrap, style)} bootstrap")
        cell.append(f"\n{_bounds(found.t, style)} t" if found.t else "\nno t-interval")
    return cell


def _bounds(interval: Interval, style: MetricFormat) -> str:
    return f"[{style.change(interval.low)}, {style.change(interval.high)}]"
