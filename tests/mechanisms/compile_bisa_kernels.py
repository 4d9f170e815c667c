"""Compile the kernels of bi-directional attention for an absent GPU: `python <this file> 80 [CASE ...]`.

Prints each kernel's name and its bytes of shared memory. Without cases, all are compiled, which takes minutes.
"""

from __future__ import annotations

import sys

import torch
from compile_kernels import compile_only  # beside this script

from attngraft.mechanisms.bisa import triton, triton_hyper

#: case -> dtype and width of the operands, and whether there are values (SA beside the inverse branch)
CASES = {
    "narrow": (torch.bfloat16, 32, True),
    "middle": (torch.float16, 64, True),
    "wide": (torch.bfloat16, 128, True),
    "odd-inverse": (torch.bfloat16, 20, False),
    "float32": (torch.float32, 32, True),
    "float32-middle": (torch.float32, 64, True),
    "float32-wide": (torch.float32, 128, True),
}


def main(capability: int, cases: list[str]) -> None:
    compile_only(capability)
    for dtype, width, values in (CASES[name] for name in cases):
        q, k, v, v_hat = (torch.zeros(2, 3, 49, width, dtype=dtype, requires_grad=True) for _ in range(4))
        bias = torch.zeros(2, 3, 49, 49, requires_grad=True)
        visible = torch.ones(49, 49, dtype=torch.bool)
        sa, u = triton.two_way_attention(q, k, v if values else None, v_hat, bias=bias, visible=visible)
        hyper = torch.zeros(width, width, width, dtype=dtype, requires_grad=True)
        out = triton_hyper.hyper_transform(u, q, hyper)
        (out.sum() if sa is None else sa.sum() + out.sum()).backward()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:] or list(CASES))
