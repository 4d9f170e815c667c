"""Everything that draws a study: `write_report` for the files, `tables` for terminal, README and CSV.

    path = write_report(result, Path("study"))      # study/report.html and study/plots/*.png, *.svg

Importing this costs nothing; matplotlib, Jinja2 and rich are imported when something is drawn.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attngraft.results.study import StudyResult

__all__ = ["write_report"]

REPORT_FILE = "report.html"
PLOTS_FOLDER = "plots"


def write_report(result: StudyResult, folder: Path | str) -> Path:
    """Write `plots/*.png`, `plots/*.svg` and `report.html` into `folder`, each atomically, the page last.

    What analyses found (`folder/analysis/*.json`) stands in the page too. Everything is drawn before the first file is
    written. Plots of an earlier report that this study has no data for are removed. The same result gives the same bytes.

    Returns:
        The path of the page. It needs none of the other files.
    """
    from attngraft.analysis.catalog import FOLDER, load_analyses
    from attngraft.files import write_atomically
    from attngraft.report.figures import FILES, plot_files
    from attngraft.report.page import report_html

    plots, page = plot_files(result), report_html(result, load_analyses(Path(folder) / FOLDER))
    place = Path(folder) / PLOTS_FOLDER
    for name, content in plots.items():
        write_atomically(place / name, content)
    for name in FILES - plots.keys():
        (place / name).unlink(missing_ok=True)
    return write_atomically(Path(folder) / REPORT_FILE, page)
