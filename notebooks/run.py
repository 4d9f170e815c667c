"""Run the notebooks from top to bottom, each in its own folder, and write copies with outputs to build/notebooks/.

If a cell fails or hangs, the command fails. The notebooks in this folder have no outputs; the documentation shows those of
the copies if they exist.

    python notebooks/run.py [NOTEBOOK...]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError

HERE = Path(__file__).parent
OUT = HERE.parent / "build" / "notebooks"
CELL_LIMIT = 600  #: seconds; long enough for slow machines


def run(path: Path, out: Path) -> float:
    """Run the notebook, write a copy with outputs to `out`, and return the seconds it took.

    Raises:
        CellExecutionError: a cell raised an error; the message contains the cell and the traceback.
        CellTimeoutError: a cell took longer than CELL_LIMIT.
    """
    notebook = nbformat.read(path, as_version=4)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=CELL_LIMIT,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
            record_timing=False,  # so that copies differ only in outputs
        )
        client.execute()
    out.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, out / path.name)
    return time.monotonic() - start


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 1 if a notebook failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    failed = 0
    for path in options.notebooks or sorted(HERE.glob("*.ipynb")):
        try:
            seconds = run(path, options.out)
        except (CellExecutionError, CellTimeoutError) as error:
            sys.stderr.write(f"{path.name} failed:\n{error}\n")
            failed += 1
        else:
            sys.stdout.write(f"{path.name}: {seconds:.0f} s\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
