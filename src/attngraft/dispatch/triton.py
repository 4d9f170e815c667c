"""Reasons why Triton kernels cannot run; the only module that handles Triton's guarded import and its interpreter."""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor

#: dtypes that our kernels read and write; they accumulate in float32
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
#: whether Triton is installed (never on macOS, rarely on Windows); found without importing it
INSTALLED = importlib.util.find_spec("triton") is not None
#: whether torch's Triton is 3.6 or later; older Triton cannot compile the kernels
RECENT = torch.__version__ >= "2.10"
#: whether kernels run in Triton's interpreter (slow, but works on the CPU, for tests); read once, as in Triton itself
INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"

ON_CPU = "the tensors are on cpu, and Triton kernels need cuda"


def triton_obstacle(tensor: Tensor) -> str | None:
    """Return why a Triton kernel cannot take `tensor`, or None."""
    if tensor.is_cpu and not INTERPRETING:  # checked first because it is cheap and runs on every CPU call
        return ON_CPU
    if not (tensor.is_cuda or tensor.is_cpu):
        return f"the tensors are on {tensor.device.type}, and Triton kernels need cuda"
    if not INSTALLED:
        return "triton is not installed (pip install triton)"
    if not RECENT:
        return f"the kernels require torch 2.10 or later, and this is torch {torch.__version__}"
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        return "a function transform (torch.func: vmap, grad) cannot trace through a kernel"
    if tensor.dtype not in DTYPES:
        return f"the kernels take float32, float16 and bfloat16, not {str(tensor.dtype).removeprefix('torch.')}"
    return None


def operands_obstacle(*operands: Tensor, widest: int) -> str | None:
    """Return why a kernel with tiles of up to `widest` channels cannot take these operands together, or None."""
    for tensor in operands:
        obstacle = triton_obstacle(tensor)
        if obstacle is not None:
            return obstacle
    first, width = operands[0], max(tensor.shape[-1] for tensor in operands)
    cast = torch.is_autocast_enabled(first.device.type)
    if not cast and any(tensor.dtype != first.dtype for tensor in operands):
        return "the kernels take operands of one dtype"
    if width > widest:
        return f"the kernels take heads of up to {widest} channels, but these have {width}"
    return None
