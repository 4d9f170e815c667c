"""Rounds of a study with `--until decided`: decisions, runs and the error probability that was spent."""

from dataclasses import dataclass

from rich import box
from rich.table import Table
from rich.text import Text

from attngraft.results.sequential import ALPHA
from attngraft.results.study import RoundVariant, StudyResult
from attngraft.results.wording import ABSENT, MetricFormat, metric_format, shown


@dataclass(frozen=True, kw_only=True)
class RoundRow:
    """A variant in a round: decided, or undecided in the last round."""

    variant: str
    interval: str
    level: str
    decision: str


@dataclass(frozen=True, kw_only=True)
class RoundView:
    """A round with formatted numbers."""

    seeds: int
    runs: int
    spent: str  #: of `ALPHA`, in percent
    rows: list[RoundRow]
    undecided: int  #: number of variants that the next round tests


def round_views(result: StudyResult) -> list[RoundView]:
    """Return the rounds; empty if the study had a fixed number of seeds."""
    if result.until is None:
        return []
    style, views = metric_format(result), []
    for each in result.until.rounds:
        last = each is result.until.rounds[-1]
        undecided = sum(test.decision == "undecided" for test in each.variants)
        views.append(
            RoundView(
                seeds=each.seeds,
                runs=each.runs,
                spent=f"{100 * each.spent:.3f}",
                rows=[_row(test, result, style) for test in each.variants if last or test.decision != "undecided"],
                undecided=undecided,
            )
        )
    return views


def margin_text(result: StudyResult) -> str:
    """Return the margin with its unit, or an empty string."""
    if result.until is None or result.until.margin is None:
        return ""
    style = metric_format(result)
    return f"±{style.scale * result.until.margin:g}{f' {style.points}' if style.points else ''}"


def rounds_table(result: StudyResult) -> Table | None:
    """Return the table for the terminal; None if the study had a fixed number of seeds."""
    views = round_views(result)
    if not views:
        return None
    caption = Text(
        f"Intervals have the level of their round, corrected for rounds and variants; of {100 * ALPHA:g}%, the share in "
        "the table was spent.",
        style="dim",
    )
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, caption=caption, caption_justify="left")
    for name in ("seeds", "runs", "spent %"):
        table.add_column(name, justify="right")
    table.add_column("decisions")
    for view in views:
        cell = Text("\n").join(
            Text.assemble((shown(row.variant), "bold"), f" {row.decision}  {row.interval} at level {row.level}")
            for row in view.rows
        )
        if not view.rows:
            cell = Text(f"{view.undecided} undecided", style="dim")
        table.add_row(str(view.seeds), str(view.runs), view.spent, cell)
    return table


def _row(test: RoundVariant, result: StudyResult, style: MetricFormat) -> RoundRow:
    margin = margin_text(result)
    return RoundRow(
        variant=test.variant,
        interval=ABSENT if test.interval is None else style.bounds(test.interval),
        level=f"{test.level:.2g}",
        decision=f"within {margin}" if test.decision == "within the margin" else test.decision,
    )
