"""Compile the kernels of bi-directional cross-attention for an absent GPU.

`python <this file> 80 [CASE ...]` prints each kernel's name and its bytes of shared memory. Without cases, all are
compiled, which takes minutes.
"""

from __future__ import annotations

import sys

import torch
from compile_kernels import compile_only  # beside this script

from attngraft.mechanisms.bixt import triton

#: case -> dtype of the operands, number of latents, and widths of references, latents' and tokens' values
CASES = {
    "published": (torch.float16, 64, (32, 32, 32)),
    "paper": (torch.bfloat16, 64, (64, 64, 64)),
    "few": (torch.bfloat16, 32, (32, 32, 32)),
    "odd": (torch.bfloat16, 20, (20, 100, 36)),
    "many": (torch.float16, 128, (32, 32, 32)),
    "many-middle": (torch.float16, 128, (64, 64, 64)),
    "wide": (torch.bfloat16, 64, (128, 128, 128)),
    "most": (torch.bfloat16, 128, (128, 128, 128)),
    "float32": (torch.float32, 64, (32, 32, 32)),
    "float32-middle": (torch.float32, 64, (64, 64, 64)),
    "float32-many": (torch.float32, 128, (64, 64, 64)),
    "float32-most": (torch.float32, 128, (128, 128, 128)),
}


def main(capability: int, cases: list[str]) -> None:
    compile_only(capability)
    for dtype, latents, (d, dl, dt) in (CASES[name] for name in cases):
        shapes = ((1, 3, latents, d), (2, 3, 49, d), (1, 3, latents, dl), (2, 3, 49, dt))
        given = [torch.zeros(shape, dtype=dtype, requires_grad=True) for shape in shapes]
        found = triton.bidirectional_attention(*given, scale=0.5)
        (found[0].sum() + found[1].sum()).backward()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:] or list(CASES))
