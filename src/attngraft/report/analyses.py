"""What analyses found as sections of a page: of a study's report, and of a page of their own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from attngraft._version import __version__
from attngraft.analysis.catalog import load_analyses, save_analysis
from attngraft.drawing.theme import LIGHT
from attngraft.files import write_atomically
from attngraft.report.findings import finding_csv, finding_plots, in_words, panel_drawing
from attngraft.report.inline import inline_svg
from attngraft.report.sections import Shown, shown_table
from attngraft.report.templating import css_themes, environment
from attngraft.results.analysis import AnalysisResult
from attngraft.results.wording import minus, shown

PAGE = "analysis.html"


@dataclass(frozen=True, kw_only=True)
class FindingView:
    """One finding, ready for a template."""

    anchor: str
    title: str
    source: str
    note: str
    drawings: list[Markup]
    numbers: list[tuple[str, str]]
    left_out: list[tuple[str, str]]
    table: Shown
    made: list[tuple[str, str]]


def finding_views(findings: Sequence[AnalysisResult]) -> list[FindingView]:
    """Findings with their panels drawn, colored by the page's own variables."""
    return [_view(finding) for finding in findings]


def _view(finding: AnalysisResult) -> FindingView:
    anchor = f"analysis-{finding.name}"
    return FindingView(
        anchor=anchor,
        title=shown(finding.title),
        source=shown(finding.source),
        note=shown(finding.note),
        drawings=[
            inline_svg(
                panel_drawing(finding, panel, LIGHT),
                name=f"{anchor}-{place}",
                alt=minus(shown(in_words(finding, panel))),
                theme=LIGHT,
            )
            for place, panel in enumerate(finding.panels)
        ],
        numbers=[(shown(name), f"{value:.4g}") for name, value in finding.numbers.items()],
        left_out=[(shown(name), shown(why)) for name, why in finding.left_out.items()],
        table=shown_table(finding.table, file=f"{finding.name}.csv"),
        made=[(shown(name), shown(value)) for name, value in finding.made.items()],
    )


def write_analyses(findings: Sequence[AnalysisResult], folder: Path, *, title: str) -> Path:
    """Write each finding's JSON, CSV and plots into `folder`, then the page of all findings that lie there. Numbers are
    written before anything is drawn, so that an error in drawing loses none.

    Returns:
        The page. It needs none of the other files.

    Raises:
        StorageError: something cannot be written.
        ConfigError: an older finding in the folder is damaged.
    """
    for finding in findings:
        save_analysis(finding, folder)
        write_atomically(folder / f"{finding.name}.csv", finding_csv(finding))
        files = finding_plots(finding)
        ours = re.compile(rf"{re.escape(finding.name)}(-\d+)?(-dark)?\.(png|svg)")
        for old in folder.glob(f"{finding.name}*"):
            if ours.fullmatch(old.name) and old.name not in files:
                old.unlink(missing_ok=True)  # of an earlier finding with more sheets
        for name, content in files.items():
            write_atomically(folder / name, content)
    return write_atomically(folder / PAGE, analyses_html(load_analyses(folder), title=title))


def analyses_html(findings: Sequence[AnalysisResult], *, title: str) -> str:
    """A page of findings: no scripts, nothing from a network, what users wrote escaped."""
    return (
        environment()
        .get_template("analyses.html.j2")
        .render(title=shown(title), version=__version__, findings=finding_views(findings), themes=css_themes())
    )
