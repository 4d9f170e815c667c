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
    context = worker_context()
    assert "torch" not in sys.modules
    ours, theirs = context.Pipe()
    process = context.Process(target=found, args=(theirs,))
    process.start()
    print(ours.recv())
    process.join()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")
def test_a_worker_has_imported_everything(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "True\n"
    assert done.stderr == ""
