"""Reports: HTML pages, figures, and tables for the terminal.

path = write_report(result, Path("study"))      # study/report.html and study/plots/*.png, *.svg
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from attngraft.results.study import REPORT_FILE

if TYPE_CHECKING:
    from attngraft.results.study import StudyResult

__all__ = ["write_report"]

PLOTS_FOLDER = "plots"


def write_report(result: StudyResult, folder: Path | str) -> Path:
    """Write `plots/*.png`, `plots/*.svg` and, last, `report.html` to `folder`, each atomically.

    The page includes the analyses in `folder/analysis/*.json` and the images in `folder/examples.json`. Everything is drawn
    before the first file is written.
    Plots of an earlier report are removed if the study no longer has their data. The files are reproducible byte for byte.

    Returns:
        The path of the self-contained page.

    Raises:
        FolderError: `plots` is a link, through which files elsewhere would be replaced and removed.
    """
    # local imports: matplotlib, Jinja2 and rich are slow to import
    from attngraft.analysis.catalog import FOLDER, load_analyses
    from attngraft.errors import FolderError
    from attngraft.files import write_atomically
    from attngraft.report.figures import FILES, plot_files
    from attngraft.report.page import report_html
    from attngraft.results.examples import load_examples

    folder = Path(folder)
    if (folder / PLOTS_FOLDER).is_symlink():
        raise FolderError(f"{folder / PLOTS_FOLDER}: is a link, through which nothing is written; delete it")
    plots, page = plot_files(result), report_html(result, load_analyses(folder / FOLDER), load_examples(folder))
    for name, content in plots.items():
        write_atomically(folder / PLOTS_FOLDER / name, content)
    for name in FILES - plots.keys():
        (folder / PLOTS_FOLDER / name).unlink(missing_ok=True)
    return write_atomically(folder / REPORT_FILE, page)
