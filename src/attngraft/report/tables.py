"""The main table of a study, for the terminal."""

from rich import box
from rich.table import Table
from rich.text import Text

from attngraft.results import wording
from attngraft.results.power import power_sentences
from attngraft.results.storage import cost_ratios
from attngraft.results.study import Cost, Difference, StudyResult, VariantResult
from attngraft.results.wording import ABSENT, MetricFormat, metric_format, ratio, shown, stopped_text, until_text

VERDICT_STYLES = {
    "better": "bold green",
    "worse": "bold red",
    "inside the noise": "yellow",
    wording.TOO_SHORT: "yellow",
}


def study_table(result: StudyResult) -> Table:
    """Return a table with one block of lines per variant, at most 80 characters wide.

    Costs are absolute for the baseline and ratios for other variants. Cells contain only Latin-1 characters, and user
    text is never parsed as markup.
    """
    style = metric_format(result)
    direction = "" if result.higher_is_better else " Lower is better."
    headline, *reasons = wording.outcome(result)
    caption = Text(f"{headline}{direction}\n", style="not dim bold")
    caption.append("".join(f"{reason}\n" for reason in reasons), style="not dim")
    if could := power_sentences(result):
        caption.append(f"{could}\n", style="not bold")
    seeds = f"{len(result.seeds)} seeds" if result.until is None else "the seeds of a variant"
    rest = f"Mean ± deviation over {seeds}. " if len(result.seeds) > 1 else ""
    if any(variant.difference for variant in result.variants):
        rounds = "" if result.until is None else "rounds and "
        rest += f"p: after Holm's correction over the {rounds}variants. Level at epoch: when each seed first"
        rest += " reaches the baseline's best mean."
    more = (rest.strip(), wording.held_fixed_text(result), wording.chance_text(result), wording.not_measured(result))
    caption.append(" ".join(filter(None, more)), style="dim")
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, caption=caption, caption_justify="left")
    table.add_column("variant", max_width=24, overflow="fold")
    values = [wording.shorten(style.column, 16), wording.judged_column(result)]
    if (chance := wording.chance_value(result)) is not None:
        values.append(f"chance {style.value(chance)}")
    table.add_column("\n".join(values), justify="right")
    table.add_column(f"difference to baseline\n{wording.interval_name(result)}")
    table.add_column("cost\nof baseline", no_wrap=True)
    for index, variant in enumerate(result.variants):
        if index:
            table.add_row()
        spread = variant.last.get(result.metric)
        table.add_row(
            _name(variant, result),
            Text(wording.spread_text(spread.mean, spread.deviation, style) if spread else ABSENT),
            _difference(variant, result, style),
            Text(_cost(variant.cost, absolute=variant.is_baseline)),
        )
    return table


def difference_lines(difference: Difference, style: MetricFormat, *, verdict: str = "") -> Text:
    """Return the difference and verdict (by default the difference's own), followed by a line with the interval."""
    verdict = verdict or difference.verdict
    text = Text(f"{style.change(difference.mean)} ")
    text.append(verdict, style=VERDICT_STYLES[verdict])
    text.append(f"\n{style.bounds(wording.deciding_interval(difference))} {wording.interval_note(difference)}".rstrip())
    return text


def _name(variant: VariantResult, result: StudyResult) -> Text:
    name = Text(shown(variant.name), style="bold")
    if stopped := stopped_text(result, variant.name):
        name.append(f"\n{stopped}", style="dim")
    elif not variant.runs:
        name.append("\nno finished run", style="red")
    elif result.until is not None:
        name.append(f"\n{until_text(result, variant.name)}".rstrip(), style="dim")
    elif len(variant.runs) < len(result.seeds):
        name.append(f"\n{len(variant.runs)} of {wording.plural(len(result.seeds), 'seed')}", style="red")
    if wording.recipe_text(variant.recipe) not in variant.name:
        for field, value in variant.recipe.items():
            name.append(f"\n{shown(wording.recipe_text({field: value}))}", style="dim")
    return name


def _difference(variant: VariantResult, result: StudyResult, style: MetricFormat) -> Text:
    if variant.is_baseline:
        return Text("baseline", style="dim")
    if variant.difference is None:
        return Text("" if stopped_text(result, variant.name) else "not compared", style="dim")
    cell = difference_lines(variant.difference, style, verdict=wording.verdict_text(result, variant))
    cell.append(f"\np {wording.p_value(variant.difference.p_holm)}")
    cell.append(f"\nlevel at epoch {wording.epochs_text(variant, wording.epochs_of(variant, result))}")
    return cell


def _cost(cost: Cost | None, *, absolute: bool) -> str:
    if cost is None:
        return "not measured"
    if absolute:
        values = [
            wording.si(cost.parameters),
            wording.si(cost.macs),
            wording.duration(cost.train_seconds_per_step),
            wording.duration(cost.inference_seconds_per_batch),
            wording.size(cost.peak_memory_bytes),
        ]
    else:
        values = [ratio(n, exact=name in ("parameters", "macs")) for name, n in cost_ratios(cost).items()]
    names = ("params", "MACs", "train", "infer", "memory")
    return "\n".join(f"{name:<6} {value:>8}" for name, value in zip(names, values, strict=True))
