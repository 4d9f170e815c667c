"""The study's main table: for the terminal, for a README, and as rows for results.csv."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from attngraft.report.epochs import ratio_text
from attngraft.report.halving import fate
from attngraft.results import wording
from attngraft.results.csv_tables import cost_ratios
from attngraft.results.study import Cost, Interval, StudyResult, VariantResult
from attngraft.results.wording import ABSENT, MetricFormat, metric_format, ratio, shown

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

Row = dict[str, str | int | float | bool | None]

_STYLES = {"better": "bold green", "worse": "bold red", "inside the noise": "yellow"}


# --- terminal -----------------------------------------------------------------------------------------------------


def study_table(result: StudyResult) -> Table:
    """One block of lines per variant, made to fit 80 columns; costs are ratios, and absolute in the baseline's block.

    The cells hold Latin-1 characters only, and user text is never read as markup.
    """
    from rich import box
    from rich.table import Table

    style = metric_format(result)
    table = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1),
        pad_edge=False,
        caption=_caption(result),
        caption_justify="left",
    )
    metric = wording.shorten(style.column, 16)
    table.add_column("variant", max_width=24, overflow="fold")
    table.add_column(f"{metric}\nepoch {result.epochs}", justify="right")
    table.add_column("difference to baseline\n95% intervals")
    table.add_column("cost\nof baseline", no_wrap=True)
    last = len(result.variants) - 1
    for index, variant in enumerate(result.variants):
        table.add_row(*_cells(variant, result, style))
        if index != last:
            table.add_row()
    return table


def table_text(result: StudyResult, *, width: int = 88) -> str:
    """`study_table` as plain text without control codes, for logs and files."""
    from rich.console import Console

    sheet = io.StringIO()
    Console(file=sheet, width=width, color_system=None, force_terminal=False, legacy_windows=False).print(
        study_table(result)
    )
    return "\n".join(line.rstrip() for line in sheet.getvalue().splitlines()) + "\n"


def _caption(result: StudyResult) -> Text:
    from rich.text import Text

    direction = "" if result.higher_is_better else " Lower is better."
    caption = Text(f"{wording.headline(result)}{direction}\n", style="not dim bold")
    rest = ""
    if wording.seed_deviation_known(result):
        rest = f"Mean ± deviation over {len(result.seeds)} seeds. "
    if any(variant.difference for variant in result.variants):
        rest += "p: after Holm's correction over the variants. Level at epoch: when each seed first"
        rest += " reaches the baseline's best mean."
    caption.append(rest, style="dim")
    return caption


def _cells(variant: VariantResult, result: StudyResult, style: MetricFormat) -> list[Text]:
    from rich.text import Text

    name = Text(shown(variant.name), style="bold")
    if stopped := fate(result, variant.name):
        name.append(f"\n{stopped}", style="dim")
    elif not variant.runs:
        name.append("\nno finished run", style="red")
    elif len(variant.runs) < len(result.seeds):
        name.append(f"\n{len(variant.runs)} of {wording.plural(len(result.seeds), 'seed')}", style="red")
    spread = variant.last.get(result.metric)
    value = wording.spread_text(spread.mean, spread.deviation, style) if spread else ABSENT
    cost = _absolute_cost(variant.cost) if variant.is_baseline else _relative_cost(variant.cost)
    return [name, Text(value), _difference(variant, result, style), Text(cost)]


def _difference(variant: VariantResult, result: StudyResult, style: MetricFormat) -> Text:
    from rich.text import Text

    if variant.is_baseline:
        return Text("baseline", style="dim")
    found = variant.difference
    if found is None:
        return Text("" if fate(result, variant.name) else "not compared", style="dim")
    cell = Text(f"{style.change(found.mean)} ")
    cell.append(found.verdict, style=_STYLES[found.verdict])
    cell.append(f"\n{_bounds(found.bootstrap, style)} bootstrap")
    cell.append(f"\n{_bounds(found.t, style)} t" if found.t else "\nno t-interval")
    cell.append(f"\np {wording.p_value(found.p_holm)}")
    cell.append(f"\nlevel at epoch {wording.epochs_text(variant, result.epochs)}")
    return cell


def _bounds(interval: Interval, style: MetricFormat) -> str:
    return f"[{style.change(interval.low)}, {style.change(interval.high)}]"


def _relative_cost(cost: Cost | None) -> str:
    if cost is None:
        return "not measured"
    train, infer = cost.train_time_ratio, cost.inference_time_ratio
    return _lines(
        params=ratio(cost.parameters_ratio, exact=True),
        MACs=ratio(cost.macs_ratio, exact=True),
        train=ratio(train.point if train else None),
        infer=ratio(infer.point if infer else None),
        memory=ratio(cost.memory_ratio),
    )


def _absolute_cost(cost: Cost | None) -> str:
    if cost is None:
        return "not measured"
    return _lines(
        params=wording.si(cost.parameters),
        MACs=wording.si(cost.macs),
        train=wording.duration(cost.train_seconds_per_step),
        infer=wording.duration(cost.inference_seconds_per_batch),
        memory=wording.size(cost.peak_memory_bytes),
    )


def _lines(**values: str) -> str:
    return "\n".join(f"{name:<6} {value:>8}" for name, value in values.items())


# --- Markdown -----------------------------------------------------------------------------------------------------


def markdown_table(result: StudyResult) -> str:
    """The main table as GitHub Markdown, one line per variant."""
    style = metric_format(result)
    head = [
        "variant",
        f"{style.title}, epoch {result.epochs}",
        "difference",
        "bootstrap 95%",
        "t 95%",
        "p (Holm)",
        "verdict",
        *("parameters", "MACs", "training step", "inference", "memory"),
        "epochs to baseline",
        "over the baseline's",
    ]
    rows = [head, ["---", *["---:"] * 5, "---", *["---:"] * 5, "---", "---:"]]
    rows += [_markdown_cells(variant, result, style) for variant in result.variants]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def _markdown_cells(variant: VariantResult, result: StudyResult, style: MetricFormat) -> list[str]:
    spread = variant.last.get(result.metric)
    found, cost = variant.difference, variant.cost
    cells = [
        _markdown_text(variant.name),
        wording.spread_text(spread.mean, spread.deviation, style) if spread else ABSENT,
    ]
    if found is None:
        cells += ["", "", "", "", "baseline" if variant.is_baseline else "not compared"]
    else:
        cells += [style.change(found.mean), _bounds(found.bootstrap, style)]
        cells += [_bounds(found.t, style) if found.t else ABSENT, wording.p_value(found.p_holm), found.verdict]
    cells += (
        [ABSENT] * 5
        if cost is None
        else [ratio(number, exact=name in ("parameters", "macs")) for name, number in cost_ratios(cost).items()]
    )
    if variant.is_baseline:
        return [*cells, "", ""]
    reached = variant.epochs_to_baseline
    share = ABSENT if reached is None or reached.baseline_epoch is None else ratio_text(reached, result.epochs)
    return [*cells, wording.epochs_text(variant, result.epochs), share]


def _markdown_text(text: str) -> str:
    """User text as inert Markdown: no cell, code, link, emphasis or HTML starts in it."""
    return "".join(f"\\{c}" if c in "\\`*_[]|~$#" else {"<": "&lt;", "&": "&amp;"}.get(c, c) for c in shown(text))
