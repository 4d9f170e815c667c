"""Three ways to test Triton kernels: in the interpreter, compiled without a GPU, and on a GPU."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from attngraft.dispatch.triton import INSTALLED, INTERPRETING, RECENT

#: the interpreter must be selected before Triton is imported, so tests marked `inside` run in a separate process
inside = pytest.mark.skipif(not INTERPRETING, reason="runs inside Triton's interpreter")
outside = pytest.mark.skipif(INTERPRETING, reason="runs outside of Triton's interpreter")
installed = pytest.mark.skipif(not (INSTALLED and RECENT), reason="Triton 3.6 or later is not installed")
gpu = pytest.mark.skipif(INTERPRETING or not torch.cuda.is_available(), reason="needs a CUDA device")


#: selects an op's tests that reach the kernels, which reject float64, and that the kernels' own tests do not repeat
IN_THEIR_PRECISION = "(agree or half_precision or autocast)"


def _assembler_is_there() -> bool:
    found = importlib.util.find_spec("triton")
    return found is not None and (Path(str(found.origin)).parent / "backends" / "nvidia" / "bin" / "ptxas").exists()


compiler = pytest.mark.skipif(
    not (RECENT and _assembler_is_there()), reason="Triton 3.6 or later for NVIDIA GPUs is not installed"
)


def run_inside(*tests: Path | str, only: str = "") -> None:
    """Run test files or single tests, without slow ones, in Triton's interpreter; `only` is pytest's -k."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", only]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    result = subprocess.run([*command, *map(str, tests)], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-3000:]
    assert "passed" in result.stdout


def compiled_kernels(script: Path, capability: int, cases: Sequence[str], cache: Path) -> set[str]:
    """Return the names of the kernels that a script compiles, and check that they fit the shared memory of Ampere GPUs."""
    command = [sys.executable, str(script), str(capability), *cases]
    result = subprocess.run(command, env={**os.environ, "TRITON_CACHE_DIR": str(cache)}, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    compiled = [line.split() for line in result.stdout.splitlines()]
    assert max(int(shared) for _, shared in compiled) <= 99 * 1024
    return {name for name, _ in compiled}
