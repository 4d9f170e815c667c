"""The Python on the pages runs, page by page, each page as one program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import DOCS, ROOT, blocks, written_pages

PAGES = [page for page in written_pages() if page.is_relative_to(DOCS) and any(b.runs for b in blocks(page, "python"))]

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


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    """The traceback, or None, of every page. In a process of its own: pages register grafts and hosts."""
    folder = tmp_path_factory.mktemp("pages")
    programs = {name(page): [(b.line, b.code) for b in blocks(page, "python") if b.runs] for page in PAGES}
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, str(folder), str(folder / "outcomes.json")],
        input=json.dumps(programs),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(["src", *sys.path])},
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str | None] = json.loads((folder / "outcomes.json").read_text())
    return found


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_page_runs(page: Path, outcomes: dict[str, str | None]) -> None:
    failure = outcomes[name(page)]
    assert failure is None, failure


def test_the_pages_that_teach_are_among_them() -> None:
    assert {"extend/graft.md", "extend/host.md", "extend/task.md", "start.md"} <= {name(page) for page in PAGES}
