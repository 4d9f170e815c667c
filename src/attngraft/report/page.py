"""The self-contained report: one HTML file without scripts, without anything from the network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from attngraft.drawing.theme import LIGHT, VERDICT_SIGNS, Look, looks
from attngraft.report.analyses import finding_views
from attngraft.report.coverage import coverage_note
from attngraft.report.epochs import added_parameters, compared
from attngraft.report.figures import panel_svg, study_figures
from attngraft.report.forest import difference_range
from attngraft.report.halving import fate, halving_view
from attngraft.report.inline import inline_svg
from attngraft.report.sections import section_views
from attngraft.report.suites import NOT_CORRECTED, suite_views
from attngraft.report.templating import css_themes, environment
from attngraft.results import wording
from attngraft.results.analysis import AnalysisResult
from attngraft.results.coverage import measured_coverage
from attngraft.results.facts import facts
from attngraft.results.study import Difference, Interval, StudyResult, VariantResult
from attngraft.results.wording import MetricFormat, metric_format, shown


def report_html(result: StudyResult, findings: Sequence[AnalysisResult] = ()) -> str:
    """The whole page for `result`, with what analyses found in its models. User strings are escaped by the template engine,
    numbers formatted here."""
    templates = environment()
    templates.filters.update(
        minus=wording.minus,
        ratio=wording.ratio,
        count=lambda number: wording.ratio(number, exact=True),
        p=wording.p_value,
        si=wording.si,
        size=wording.size,
        duration=wording.duration,
        shown=shown,
        shorten=wording.shorten,
        sentence_case=lambda text: text[:1].upper() + text[1:],
    )
    return templates.get_template("report.html.j2").render(_context(result) | {"findings": finding_views(findings)})


@dataclass(frozen=True, kw_only=True)
class Row:
    """A variant with what the page shows beside its numbers."""

    variant: VariantResult
    look: Look
    style: MetricFormat
    value: str  #: the primary metric at the last epoch
    epochs: str  #: epochs to the baseline, by seed
    bar: Bar | None
    standing: str  #: "baseline", the verdict, "stopped early", or "not compared"
    sign: str
    kind: str  #: the standing as a CSS class
    fate: str  #: where it was stopped early, or nothing
    made_of: str  #: specification and host, or nothing where its name says it


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A difference as a small drawing: positions in percent of the range that all rows share."""

    zero: float
    point: float
    bootstrap: tuple[float, float]
    t: tuple[float, float] | None
    alt: str


def _context(result: StudyResult) -> dict[str, Any]:
    style = metric_format(result)
    rows = [_row(variant, look, result, style) for variant, look in zip(result.variants, looks(result), strict=True)]
    return {
        "result": result,
        "style": style,
        "styles": {name: metric_format(result, name) for name in wording.metric_names(result)},
        "rows": rows,
        "grafts": [row for row in rows if not row.variant.is_baseline],
        "compared": [row for row in rows if row.variant.difference is not None],
        "baseline": next((row for row in rows if row.variant.is_baseline), None),
        "headline": wording.headline(result),
        "compared_things": wording.compared_things(result),
        "one_seed": not wording.seed_deviation_known(result),
        "created": _date(result.created),
        "figures": _inline_figures(result),
        "paces": [
            {"row": rows[place], "reached": reached, "added": added_parameters(variant)}
            for place, variant, reached in compared(result)
        ],
        "halving": halving_view(result),
        "sections": section_views(result),
        "suites": suite_views(result),
        "suites_not_corrected": NOT_CORRECTED,
        "themes": css_themes(),
        "spread": wording.spread_text,
        "plural": wording.plural,
        "sentence": wording.difference_sentence,
        "reason": wording.reason,
        "notes": _notes(result),
        "p_sources": sorted({d.p_source for row in rows if (d := row.variant.difference) and d.p_value is not None}),
        "mcnemar_seeds": sorted({t.seed for row in rows for t in _mcnemar(row.variant.difference)}),
        "host": facts(result.host),
        "other_hosts": [(row, facts(row.variant.host)) for row in rows if row.variant.host is not None],
        "data": facts(result.data, counts=True),
        "environment": facts(result.environment),
        "coverage": measured_coverage(),
        "coverage_note": coverage_note(measured_coverage()),
        "recipe": _yaml(result.recipe),
    }


def _row(variant: VariantResult, look: Look, result: StudyResult, style: MetricFormat) -> Row:
    found = variant.difference
    spread = variant.last.get(result.metric)
    ended = fate(result, variant.name)
    absent = "stopped early" if ended else "not compared"
    standing = "baseline" if variant.is_baseline else found.verdict if found else absent
    return Row(
        variant=variant,
        look=look,
        style=style,
        value=wording.spread_text(spread.mean, spread.deviation, style) if spread else wording.ABSENT,
        epochs="" if variant.is_baseline else wording.epochs_text(variant, result.epochs),
        bar=_bar(found, result, style) if found else None,
        standing=standing,
        sign=VERDICT_SIGNS.get(standing, ""),
        kind=standing.replace(" ", "-"),
        fate=ended,
        made_of=wording.made_of(variant),
    )


def _bar(found: Difference, result: StudyResult, style: MetricFormat) -> Bar:
    low, high = difference_range(result)

    def place(value: float) -> float:
        return round(100 * (min(max(value, low), high) - low) / (high - low), 2)

    def ends(interval: Interval) -> tuple[float, float]:
        return place(interval.low), place(interval.high)

    return Bar(
        zero=place(0.0),
        point=place(found.mean),
        bootstrap=ends(found.bootstrap),
        t=ends(found.t) if found.t else None,
        alt=wording.minus(wording.difference_sentence(found, style)),
    )


def _notes(result: StudyResult) -> list[str]:
    """The study's notes; that there is one seed, the page says by itself."""
    return [note for note in result.notes if wording.seed_deviation_known(result) or not note.startswith("One seed:")]


def _mcnemar(found: Difference | None) -> list[Any]:
    return list(found.mcnemar) if found else []


def _inline_figures(result: StudyResult) -> dict[str, list[Any]]:
    """Per figure its panels as inline SVG, drawn once: the page's variables color them for light and dark."""
    return {
        figure.name: [
            inline_svg(panel_svg(result, panel, LIGHT), name=panel.name, alt=wording.minus(panel.alt), theme=LIGHT)
            for panel in figure.drawings
        ]
        for figure in study_figures(result)
    }


def _date(created: str) -> str:
    """ISO 8601 as a reader says it, in UTC; anything else as it stands."""
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        return shown(created)
    moment = moment.astimezone(UTC) if moment.tzinfo else moment
    return f"{moment.day} {moment:%B %Y, %H:%M} UTC"


def _yaml(recipe: Mapping[str, Any]) -> str:
    """The recipe as YAML; values that YAML has no word for as their text."""
    import yaml

    plain = json.loads(json.dumps(recipe, default=str))
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100)
