"""Check conformance vectors: `python tests/conformance/run.py DIR_OR_FILE...`.

Prints a line per failing vector and finally `N passed, N failed`; exits with 1 if any failed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

if __package__ in (None, ""):  # run as a file, without the repository on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.conformance.check import problems


def vectors(arguments: Sequence[str]) -> list[Path]:
    """Return the given files, and all `.json` files below the given folders."""
    found: list[Path] = []
    for argument in arguments:
        path = Path(argument)
        found += sorted(path.rglob("*.json")) if path.is_dir() else [path]
    return found


def main(arguments: Sequence[str]) -> int:
    """Check all vectors, print the results, and return the exit code."""
    if not arguments:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    failed, paths = 0, vectors(arguments)
    for path in paths:
        wrong = problems(path)
        if wrong:
            failed += 1
            print(f"FAILED {path}: {'; '.join(wrong)}", flush=True)
    print(f"{len(paths) - failed} passed, {failed} failed")
    return 1 if failed or not paths else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
