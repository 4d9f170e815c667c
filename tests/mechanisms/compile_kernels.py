"""Compiles Triton kernels for a GPU that need not be there.

A script calls `compile_only`, then an operation itself, forward and backward: kernels are compiled with the very arguments,
layouts and options of use, and not launched. Each one's name and its bytes of shared memory are printed.
"""

from __future__ import annotations

import sys
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction


class Absent:
    """A driver of a GPU of this compute capability."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_only(capability: int) -> None:
    """From now on in this process, for a GPU of this compute capability."""
    compile_and_launch = JITFunction.run

    def run(kernel: JITFunction, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        compiled = compile_and_launch(kernel, *args, grid=grid, warmup=True, **options)
        sys.stdout.write(f"{kernel.__name__} {compiled.metadata.shared}\n")
        return compiled

    driver.set_active(Absent(capability))
    JITFunction.run = run
