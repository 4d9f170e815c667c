"""An interrupted program ends at once, but does what must be done at the end."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import attngraft
from attngraft.cli import main

PROGRAM = """
import atexit, os, sys
import attngraft.cli as cli
from attngraft.errors import UsageError

class Torch:
    def __del__(self, write=os.write):
        write(1, b"taken apart\\n")

kept = Torch()
atexit.register(print, "cleared up")

def verb():
    print("at work")
    raise {error}

cli.app.command("verb")(cli._with_exit_codes(verb))
sys.argv = ["attngraft", "verb"]
cli.main()
"""


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        ("KeyboardInterrupt", 130, ["at work", "cleared up"]),
        ("UsageError", 2, ["at work", "cleared up", "taken apart"]),
        ("ImportError('x.so: failed to map segment')", 1, ["at work", "cleared up", "taken apart"]),
        ("OSError(28, 'No space left on device')", 1, ["at work", "cleared up", "taken apart"]),
    ],
)
def test_how_a_program_ends(error: str, code: int, said: list[str]) -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM.format(error=error)], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout.split("\n")[:-1]) == (code, said), ended.stderr
    assert ended.stderr.startswith("attngraft: ")


def test_called_with_arguments_it_returns_to_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    import attngraft.cli as cli

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.app, "registered_commands", [*cli.app.registered_commands])
    monkeypatch.setattr(typer.main, "get_command", inspect.unwrap(typer.main.get_command))  # with the new command
    cli.app.command("verb")(cli._with_exit_codes(interrupted))
    with pytest.raises(SystemExit) as ended:
        main(["verb"])
    assert ended.value.code == 130


def test_closed_streams() -> None:
    """A command runs without standard streams; otherwise the first file that it opens would get its output."""
    program = "import sys; from attngraft.cli import main; main(sys.argv[1:] or None)"
    for closed in ("<&- >&-", "<&- >&- 2>&-"):
        command = f'"$0" -c "$1" --help {closed}'
        ended = subprocess.run(["sh", "-c", command, sys.executable, program], capture_output=True, text=True)
        assert (ended.returncode, ended.stderr) == (0, "")


def test_a_deleted_folder(tmp_path: Path) -> None:
    program = (
        "import os, shutil; from attngraft.cli import main; shutil.rmtree(os.getcwd()); main(['data', 'check', 'x'])"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(attngraft.__file__).parents[1])}  # not relative to the folder
    folder = tmp_path / "deleted"
    folder.mkdir()
    ended = subprocess.run([sys.executable, "-c", program], cwd=folder, env=env, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (
        2,
        "attngraft: the current folder was deleted; change to another one with cd\n",
    )


def test_the_backend_of_matplotlib_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "nonsense")
    with pytest.raises(SystemExit):
        main(["--help"])
    assert os.environ["MPLBACKEND"] == "agg"
