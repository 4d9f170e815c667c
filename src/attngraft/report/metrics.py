"""Differences in metrics other than the primary metric, for the page and the terminal."""

from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from attngraft.drawing.theme import VERDICT_SIGNS
from attngraft.report.tables import VERDICT_STYLES
from attngraft.results import wording
from attngraft.results.study import StudyResult
from attngraft.results.wording import metric_format, shown

NOT_CORRECTED = (
    "Better and worse are defined as for the primary metric: the 95% interval excludes zero. There is no correction for "
    "the number of metrics: among many, some differ by chance. The outcome is based on the primary metric alone."
)
_COLUMNS = 4  #: maximum number of metrics on the terminal


def other_metrics(result: StudyResult) -> list[str]:
    """Return the names of the non-primary metrics that have differences."""
    return list(dict.fromkeys(name for variant in result.variants for name in variant.other_differences))


def metric_views(result: StudyResult) -> list[dict[str, Any]]:
    """Return the rows of the page's table: one per compared variant and non-primary metric."""
    styles = {name: metric_format(result, name) for name in other_metrics(result)}
    rows = []
    for index, variant in enumerate(result.variants):
        compared = [name for name in styles if name in variant.other_differences]
        for name in compared:
            style, difference = styles[name], variant.other_differences[name]
            better = [] if wording.is_higher_better(result, name) else ["lower is better"]
            unit = ", ".join([*([style.points] if style.points else []), *better])
            rows.append(
                {
                    "index": index,
                    "first": name == compared[0],
                    "label": f"{style.label} ({unit})" if unit else style.label,
                    "style": style,
                    "difference": difference,
                    "interval": wording.deciding_interval(difference),
                    "verdict": difference.verdict,
                    "sign": VERDICT_SIGNS[difference.verdict],
                }
            )
    return rows


def other_metrics_table(result: StudyResult) -> Table | None:
    """Return a terminal table of variants by non-primary metrics; None if no metric has differences.

    The table is at most 80 characters wide, and only the first four metrics are shown.
    """
    names = other_metrics(result)
    if not names:
        return None
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column("variant", max_width=24, overflow="fold")
    styles = {name: metric_format(result, name) for name in names[:_COLUMNS]}
    for name, style in styles.items():
        direction = "" if wording.is_higher_better(result, name) else "\nlower is better"
        table.add_column(f"{wording.shorten(style.column, 15)}{direction}", max_width=15)
    for variant in result.variants:
        if not variant.other_differences:
            continue
        cells = []
        for name, style in styles.items():
            difference = variant.other_differences.get(name)
            cell = Text("" if difference is None else f"{style.change(difference.mean)} ")
            if difference is not None and difference.verdict != "inside the noise":
                cell.append(difference.verdict, style=VERDICT_STYLES[difference.verdict])
            cells.append(cell)
        table.add_row(Text(shown(variant.name), style="bold"), *cells)
    return table
