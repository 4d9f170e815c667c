"""Run the notebooks from top to bottom, each in a folder of its own; what they put out goes to build/notebooks/.

A cell that fails, or hangs, fails the command. The notebooks themselves stay as they are, without outputs. The
documentation shows outputs where copies that were run are at hand.

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
CELL_LIMIT = 600  #: seconds; a cell that hangs, not one on a slow machine


def run(path: Path, out: Path) -> float:
    """Run the notebook, write the copy with outputs to `out`; seconds that it took.

    Raises:
        CellExecutionError: a cell raised; the message holds the cell and the traceback.
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
            record_timing=False,  # so that the copies differ only where the outputs do
        )
        client.execute()
    out.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, out / path.name)
    return time.monotonic() - start


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 where a notebook failed."""
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
