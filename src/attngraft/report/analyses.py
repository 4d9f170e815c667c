"""Output of analysis results: files, a page, and sections of a study's report."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attngraft._version import __version__
from attngraft.analysis.catalog import load_analyses, save_analysis
from attngraft.drawing.panels import analysis_plots, panel_drawing
from attngraft.drawing.sheet import inline_svg
from attngraft.files import write_atomically
from attngraft.report.sections import table_view
from attngraft.report.templating import render
from attngraft.results.analysis import AnalysisResult
from attngraft.results.storage import table_csv
from attngraft.results.wording import shown

PAGE = "analysis.html"


def write_analyses(results: Sequence[AnalysisResult], folder: Path, *, title: str) -> Path:
    """Write JSON, CSV and plots of each result to `folder`, then a page with all results in the folder.

    Each result's numbers are written before it is drawn, so that they are not lost if drawing fails.

    Returns:
        The path of the self-contained page.

    Raises:
        StorageError: a file cannot be written.
        ConfigError: an older result in the folder is damaged.
    """
    for result in results:
        save_analysis(result, folder)
        write_atomically(folder / f"{result.name}.csv", analysis_csv(result))
        files = analysis_plots(result)
        ours = re.compile(rf"{re.escape(result.name)}(-\d+)?(-dark)?\.(png|svg)")
        for old in folder.glob(f"{result.name}*"):
            if ours.fullmatch(old.name) and old.name not in files:
                old.unlink(missing_ok=True)  # left by an earlier result with more plots
        for name, content in files.items():
            write_atomically(folder / name, content)
    return write_atomically(folder / PAGE, analyses_html(load_analyses(folder), title=title))


def analysis_csv(result: AnalysisResult) -> str:
    """Return the result's table as CSV."""
    return table_csv([column.name for column in result.table.columns], result.table.rows)


def analyses_html(results: Sequence[AnalysisResult], *, title: str) -> str:
    """Return an HTML page of results, without scripts or network access; user strings are escaped."""
    return render("analyses.html.j2", title=shown(title), version=__version__, analyses=analysis_views(results))


def analysis_views(results: Sequence[AnalysisResult]) -> list[dict[str, Any]]:
    """Return the results with their panels drawn, for the page template."""
    return [
        {
            "anchor": f"analysis-{result.name}",
            "title": shown(result.title),
            "source": shown(result.source),
            "note": shown(result.note),
            "drawings": [
                inline_svg(panel_drawing(result, panel, name=f"analysis-{result.name}-{index}"))
                for index, panel in enumerate(result.panels)
            ],
            "numbers": [(shown(name), f"{value:.4g}") for name, value in result.numbers.items()],
            "left_out": [(shown(name), shown(reason)) for name, reason in result.left_out.items()],
            "table": table_view(result.table, file=f"{result.name}.csv"),
            "made": [(shown(name), shown(value)) for name, value in result.made.items()],
        }
        for result in results
    ]
