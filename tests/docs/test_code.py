"""The Python on the pages runs, page by page, each page as one program."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.docs.pages import DOCS, ROOT, blocks, written_pages

PAGES = [page for page in written_pages() if page.is_relative_to(DOCS) and any(b.runs for b in blocks(page, "python"))]

#: pages that need a package of the extra dev
NEEDS = {"guide/lightning.md": "lightning", "guide/peft.md": "peft"}

#: runs programs in one process, each as a main module in a folder of its own; a page's lines stand in its tracebacks
RUNNER = """
import json, os, sys, traceback, types
outcomes = {}
for name, parts in json.load(sys.stdin).items():
    folder = os.path.join(sys.argv[1], name.replace("/", "-"))
    os.makedirs(folder)
    os.chdir(folder)
    page = sys.modules["__main__"] = types.ModuleType("__main__")
    outcomes[name] = None
    try:
        for line, code in parts:
            exec(compile("\\n" * line + code, name, "exec"), page.__dict__)
    except BaseException:
        outcomes[name] = traceback.format_exc()
with open(sys.argv[2], "w") as file:
    json.dump(outcomes, file)
"""


def name(page: Path) -> str:
    return page.relative_to(DOCS).as_posix()


def outcomes(*pages: Path) -> dict[str, str | None]:
    """The traceback, or None, of each page. In a process of their own: pages register grafts and hosts."""
    programs = {name(page): [(b.line, b.code) for b in blocks(page, "python") if b.runs] for page in pages}
    with TemporaryDirectory() as kept:
        return run(programs, Path(kept))


def run(programs: dict[str, list[tuple[int, str]]], folder: Path) -> dict[str, str | None]:
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, str(folder), str(folder / "outcomes.json")],
        input=json.dumps(programs),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(["src", *sys.path])},
        timeout=480,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str | None] = json.loads((folder / "outcomes.json").read_text())
    return found


@pytest.mark.slow
def test_pages_run() -> None:
    pages = [page for page in PAGES if importlib.util.find_spec(NEEDS.get(name(page), "torch"))]
    extending = [page for page in pages if page.parent.name == "extend"]  # they register classes of their main module
    found = outcomes(*extending) | outcomes(*(page for page in pages if page not in extending))
    failures = {page: failure for page, failure in found.items() if failure is not None}
    assert len(found) == len(pages) > 10
    assert not failures, "\n".join(failures.values())
