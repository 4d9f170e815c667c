"""Compile Triton kernels for an absent GPU.

A script calls `compile_only`, then an operation, forward and backward: its kernels are compiled with the arguments, layouts
and options of real use, but not launched. The name and the bytes of shared memory of each kernel are printed.
"""

from __future__ import annotations

import sys
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction


class Absent:
    """Driver of an absent GPU of the given compute capability."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_only(capability: int) -> None:
    """Make this process compile kernels for a GPU of the given compute capability instead of launching them."""
    compile_and_launch = JITFunction.run

    def run(kernel: JITFunction, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        compiled = compile_and_launch(kernel, *args, grid=grid, warmup=True, **options)
        sys.stdout.write(f"{kernel.__name__} {compiled.metadata.shared}\n")
        return compiled

    driver.set_active(Absent(capability))
    JITFunction.run = run
