"""Counting by the rules of fvcore, which the BiXT paper (and timm's benchmark) counts with, on any model of ours.

| operation | FLOPs | activations |
|---|---|---|
| linear, convolution, matrix product | one per multiply-add | the elements of the output |
| layer norm | 5 per element (4 without weight and bias) | - |
| batch norm in evaluation | 2 per element (1 without weight and bias) | - |
| softmax, GELU, sums, means | - | - |

Activations are numbers of elements, not bytes. The model is run, no formula evaluated: each operation that reaches torch's
dispatcher is counted with its own shapes. Attention is counted by its equation, whichever kernel would run it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from attngraft.dispatch import reference_backend
from attngraft.timing.macs import evaluating

_aten = torch.ops.aten
_LAYER_NORMS = {_aten.native_layer_norm}
_BATCH_NORMS = {
    _aten.native_batch_norm,
    _aten._native_batch_norm_legit,
    _aten._native_batch_norm_legit_no_training,
    _aten.cudnn_batch_norm,
}


class FvcoreCounts(TorchDispatchMode):
    """What has passed through since it was entered: multiply-adds, FLOPs of norms, and elements of activations."""

    def __init__(self) -> None:
        super().__init__()
        self.macs = 0  #: of linears, convolutions and matrix products
        self.norms = 0  #: FLOPs of norms
        self.activations = 0  #: elements of the outputs of linears, convolutions and matrix products

    @property
    def flops(self) -> int:
        """What fvcore calls FLOPs."""
        return self.macs + self.norms

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        packet = func.overloadpacket
        if packet in _LAYER_NORMS:
            self.norms += args[0].numel() * (4 if args[2] is None else 5)
        elif packet in _BATCH_NORMS:
            self.norms += args[0].numel() * (1 if args[1] is None else 2)
        elif packet in flop_registry:
            self.macs += flop_registry[packet](*args, **kwargs, out_val=out) // 2
            self.activations += out.numel()
        return out


def count_as_fvcore(model: nn.Module, *inputs: Any) -> FvcoreCounts:
    """The counts of one forward pass in evaluation mode.

    Args:
        model: on any device; on "meta" nothing is computed. Its training flags are left as they were.
        *inputs: what it is called with, on its device. The paper counts for a batch of 1.
    """
    with (
        evaluating(model),
        reference_backend(),  # the one path whose products are those of the equation
        torch.inference_mode(False),  # in which linears and attention would arrive whole
        torch.no_grad(),
        sdpa_kernel(SDPBackend.MATH),
        FvcoreCounts() as counts,
    ):
        model(*inputs)
    return counts
