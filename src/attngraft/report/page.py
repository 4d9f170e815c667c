"""The report of a study: a self-contained HTML file without network access, which runs only its own script."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import yaml

from attngraft.drawing.sheet import inline_svg
from attngraft.drawing.theme import VERDICT_SIGNS, VariantStyle, variant_styles
from attngraft.report.analyses import analysis_views
from attngraft.report.curves import curve_figures
from attngraft.report.differences import IntervalBar, interval_bar
from attngraft.report.examples import example_view
from attngraft.report.figures import curve_unit, drawn_text, study_figures
from attngraft.report.metrics import NOT_CORRECTED as METRICS_NOT_CORRECTED
from attngraft.report.metrics import metric_views
from attngraft.report.rounds import margin_text, round_views
from attngraft.report.sections import section_views
from attngraft.report.suites import NOT_CORRECTED, suite_views
from attngraft.report.templating import render, script
from attngraft.results import wording
from attngraft.results.analysis import AnalysisResult
from attngraft.results.coverage import coverage_note, measured_coverage
from attngraft.results.examples import ExampleImages
from attngraft.results.facts import facts
from attngraft.results.halving import rank_at
from attngraft.results.outlook import next_steps
from attngraft.results.power import power_sentences
from attngraft.results.storage import csv_text
from attngraft.results.study import StudyResult, VariantResult
from attngraft.results.wording import MetricFormat, metric_format, shown, stopped_text


def report_html(
    result: StudyResult, analyses: Sequence[AnalysisResult] = (), examples: ExampleImages | None = None
) -> str:
    """Return the HTML report of a study, including the analyses of its models and images from its data."""
    style, one_seed = metric_format(result), len(result.seeds) == 1
    styles = variant_styles(result)
    rows = [_row(variant, look, result, style) for variant, look in zip(result.variants, styles, strict=True)]
    differences = [row.variant.difference for row in rows if row.variant.difference is not None]
    return render(
        "report.html.j2",
        **script("report.js"),
        result=result,
        style=style,
        styles={name: metric_format(result, name) for name in wording.metric_names(result)},
        rows=rows,
        grafts=[row for row in rows if not row.variant.is_baseline],
        compared=[row for row in rows if row.variant.difference is not None],
        headline=wording.headline(result),
        too_short=result.too_short,
        chance=wording.chance_text(result),
        chance_value=wording.chance_value(result),
        not_measured=wording.not_measured(result),
        next_steps=next_steps(result),
        compared_things=wording.compared_things(result),
        one_seed=one_seed,
        created=_date(result.created),
        figures={
            name: [inline_svg(panel) for panel in panels]
            for name, panels in study_figures(result).items()
            if name != "curves"  # drawn as small multiples
        },
        drawn=drawn_text(result),
        curves=curve_figures(result),
        curve_unit=curve_unit(result),
        results_csv="\n".join(shown(line) for line in csv_text(result).splitlines()) + "\n",
        examples=example_view(result, examples),
        epochs_rows=[
            {
                "row": rows[index],
                "reached": reached,
                "text": wording.epochs_ratio_text(reached, wording.epochs_of(variant, result)),
                "added": wording.added_parameters(variant),
            }
            for index, variant, reached in wording.epochs_compared(result)
        ],
        other_metrics=metric_views(result),
        metrics_not_corrected=METRICS_NOT_CORRECTED,
        halving=halving_rows(result),
        rounds=round_views(result),
        margin=margin_text(result),
        most_runs=len(rows) * (0 if result.until is None else result.until.most_seeds),
        duration=wording.duration,
        sections=section_views(result),
        analyses=analysis_views(analyses),
        suites=suite_views(result),
        suites_not_corrected=NOT_CORRECTED,
        spread=wording.spread_text,
        judged=wording.judged_text(result),
        held_fixed=wording.held_fixed_text(result),
        others_held_fixed=wording.held_fixed_text(result, other=True),
        plural=wording.plural,
        sentence=partial(wording.difference_sentence, named=wording.interval_name(result)),
        interval_name=wording.interval_name(result),
        reason=wording.reason,
        deciding_interval=wording.deciding_interval,
        power=power_sentences(result),
        notes=[
            note for note in result.notes if not (one_seed and note.startswith("One seed:"))
        ],  # the template already warns about a single seed
        p_sources=sorted({difference.p_source for difference in differences if difference.p_value is not None}),
        mcnemar_seeds=sorted({test.seed for difference in differences for test in difference.mcnemar}),
        host=facts(result.host),
        model=wording.study_model(result),
        last_epoch=wording.last_epoch(result),
        untrained=wording.is_untrained(result),
        stopped_early=wording.stopped_early(result),
        other_hosts=[(row, facts(row.variant.host)) for row in rows if row.variant.host is not None],
        data=facts(result.data, counts=True),
        environment=facts(result.environment),
        coverage=measured_coverage(),
        coverage_note=coverage_note(measured_coverage()),
        # via JSON, to convert values that YAML cannot represent to strings
        recipe=yaml.safe_dump(
            json.loads(json.dumps(result.recipe, default=str)), sort_keys=False, allow_unicode=True, width=100
        ),
    )


@dataclass(frozen=True, kw_only=True)
class VariantRow:
    """A variant with its formatted values."""

    variant: VariantResult
    look: VariantStyle
    value: str  #: primary metric, as compared by the study
    epochs: str  #: epochs until each seed reaches the baseline's best mean
    last_epoch: int
    recipe: list[tuple[str, str, str]]  #: changed recipe fields: (name, the variant's value, the study's value)
    bar: IntervalBar | None
    verdict: str  #: from `wording.verdict_text`
    sign: str
    stopped: str  #: epoch at which successive halving stopped the variant, or empty
    decided: str  #: number of seeds after which the variant was decided, with `--until decided`, or empty
    details: str  #: specification, host and changed recipe fields; empty if equal to the name
    loss: str  #: difference in the loss, its interval and verdict; empty if the loss is primary or there is none


def _row(variant: VariantResult, look: VariantStyle, result: StudyResult, style: MetricFormat) -> VariantRow:
    difference, spread = variant.difference, variant.last.get(result.metric)
    stopped = stopped_text(result, variant.name)
    verdict = wording.verdict_text(result, variant)
    return VariantRow(
        variant=variant,
        look=look,
        value=wording.spread_text(spread.mean, spread.deviation, style) if spread else wording.ABSENT,
        epochs="" if variant.is_baseline else wording.epochs_text(variant, wording.epochs_of(variant, result)),
        last_epoch=wording.epochs_of(variant, result),
        recipe=wording.recipe_rows(result, variant),
        bar=interval_bar(difference, result, style) if difference else None,
        verdict=verdict,
        sign=VERDICT_SIGNS.get(verdict, ""),
        stopped=stopped,
        decided=wording.until_text(result, variant.name),
        details=wording.variant_details(variant),
        loss=wording.loss_sentence(result, variant),
    )


def halving_rows(result: StudyResult) -> list[dict[str, Any]]:
    """Return one row per variant for the table of successive halving, longest-trained variants first.

    A row is a dict of the variant's `index`, its `rungs` (score, rank, promoted; None if not reached) and its `outcome`.
    """
    halving, style = result.halving, metric_format(result)
    rows = []
    for index, variant in enumerate(result.variants):
        if halving is None or variant.is_baseline:
            continue
        standings = {each.epoch: each for each in halving.standings if each.variant == variant.name}
        ranks = {epoch: rank_at(halving, variant.name, epoch) for epoch in standings}
        rungs = [
            {
                "score": style.value(standings[epoch].score),
                "rank": "{} of {}".format(*ranks[epoch]),
                "promoted": standings[epoch].promoted,
            }
            if epoch in standings
            else None
            for epoch in halving.rungs
        ]
        outcome = stopped_text(result, variant.name) or ("completed" if variant.runs else "no finished run")
        last = max(standings, default=0)
        order = (not variant.runs, -last, ranks[last][0] if last else 0)
        rows.append((order, {"index": index, "rungs": rungs, "outcome": outcome}))
    return [row for _, row in sorted(rows, key=lambda each: each[0])]


def _date(created: str) -> str:
    """Format an ISO 8601 time in UTC; return any other text unchanged."""
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        return shown(created)
    moment = moment.astimezone(UTC) if moment.tzinfo else moment
    return f"{moment.day} {moment:%B %Y, %H:%M} UTC"
