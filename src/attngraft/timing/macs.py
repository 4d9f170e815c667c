"""What a model costs: multiply-adds, parameters, and the bytes that a backward pass needs kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def count_macs(model: nn.Module, *inputs: Any, **keywords: Any) -> int:
    """Multiply-adds of one forward pass in evaluation mode: linears, convolutions and matmuls; one multiply-add is 1.

    Torch's flop counter over 2. Attention is counted as its two matmuls, whichever kernel would run it. Parameters,
    running statistics and training flags are left as they were.

    Args:
        model: on any device; on "meta" nothing is computed.
        *inputs, **keywords: what the model is called with, on the model's device.
    """
    # Gradients stay on: under no_grad the counter's module tracker refuses modules that are handed a bare parameter.
    with (
        evaluating(model),
        torch.enable_grad(),
        FlopCounterMode(display=False) as counter,
        sdpa_kernel(SDPBackend.MATH),
    ):
        model(*inputs, **keywords)
    return int(counter.get_total_flops()) // 2


def count_parameters(model: nn.Module, *, trainable_only: bool = False) -> int:
    """Numbers in the model's parameters, shared ones once; with `trainable_only` those that get a gradient."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad or not trainable_only)


def activation_bytes(model: nn.Module, *inputs: Any, **keywords: Any) -> int:
    """Bytes that autograd keeps between forward and backward, in the model's present mode; each storage counts once.

    Parameters and buffers are not activations and do not count; the inputs do, where a layer saves them. Running
    statistics and the random state move as in any forward pass. Works on the "meta" device too, where attention is
    kept as the meta kernel would keep it.
    """
    own = {_storage_key(tensor) for tensor in [*model.parameters(), *model.buffers()]}
    kept: dict[int, torch.UntypedStorage] = {}  # the storages themselves, lest an address be used twice

    def pack(tensor: Tensor) -> Tensor:
        kept.setdefault(_storage_key(tensor), tensor.untyped_storage())
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(*inputs, **keywords)
    return sum(storage.nbytes() for key, storage in kept.items() if key not in own)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards every module's own training flag is what it was."""
    training = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, flag in training:
            module.training = flag


def _storage_key(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata
