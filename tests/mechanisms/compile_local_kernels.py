"""Compile the kernels of local attention for an absent GPU.

`python <this file> 80 [CASE ...]` prints each kernel's name and its bytes of shared memory. Without cases, all are compiled.
"""

from __future__ import annotations

import sys

import torch
from compile_kernels import compile_only  # beside this script

from attngraft.mechanisms.local import triton
from attngraft.mechanisms.local.geometry import Neighborhood

#: case -> dtype, width of a head, size of the neighborhood, multiplier and addend, softmax
CASES = {
    "published": (torch.float16, 32, 7, (False, True), True),
    "both ghosts": (torch.bfloat16, 32, 5, (True, True), True),
    "float32": (torch.float32, 32, 7, (False, True), True),
    "plain filters": (torch.bfloat16, 64, 3, (True, False), False),
    "widest": (torch.float32, 128, 7, (True, True), True),
}


def main(capability: int, cases: list[str]) -> None:
    compile_only(capability)
    for dtype, width, size, ghosts, softmax in (CASES[name] for name in cases):
        shapes = (2, 2 * width, 14, 14), (2, 2 * size**2, 14, 14)
        given = [torch.zeros(shape, dtype=dtype, requires_grad=True) for shape in shapes]
        matrices = [
            torch.zeros(2 * width, size, size, dtype=dtype, requires_grad=True) if there else None for there in ghosts
        ]
        found = triton.local_filter(*given, *matrices, neighborhood=Neighborhood(size), softmax=softmax)
        found.sum().backward()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:] or list(CASES))
