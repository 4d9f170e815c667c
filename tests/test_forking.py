"""Workers are forked from one process that has imported everything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from attngraft.forking import worker_context

def found(pipe):
    pipe.send({"torch", "attngraft.study.runner"} <= sys.modules.keys())

if __name__ == "__main__":
    fork = sys.argv[1] == "fork"
    print("written once")
    context = worker_context(fork=fork)
    assert ("torch" in sys.modules) is fork
    ours, theirs = context.Pipe()
    process = context.Process(target=found, args=(theirs,))
    process.start()
    print(ours.recv())
    process.join()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")
@pytest.mark.parametrize("start", ["fork", "new process"])
def test_a_worker_has_imported_everything(start: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    command = [sys.executable, str(script), start]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "written once\nTrue\n"
    assert done.stderr == ""
