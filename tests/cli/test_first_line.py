"""Slow commands print a line before PyTorch is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from attngraft.cli import main, output

def show(text, **_):
    print(text, "torch" in sys.modules)
    sys.exit()

output.typer.echo = show
main(sys.argv[1:])
"""


@pytest.mark.parametrize("command", ["compare --graft cb", "data check x"])
def test_the_first_line(command: str) -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM, *command.split()], capture_output=True, text=True)
    assert ended.stdout == "Loading PyTorch ... False\n", ended.stderr
