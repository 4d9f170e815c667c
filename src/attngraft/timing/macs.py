"""Costs of a model: multiply-adds, parameters, and bytes of stored activations."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def count_macs(model: nn.Module, *inputs: Any, **keywords: Any) -> int:
    """Count multiply-adds of one forward pass in evaluation mode: linear layers, convolutions, matmuls.

    Each multiply-add is 1 MAC: the count is half of torch's flop counter. Attention is counted as its two matmuls,
    independent of the kernel. Parameters, running statistics and training flags are not changed.

    Args:
        model: on any device; on "meta" nothing is computed.
        *inputs, **keywords: arguments of the model, on its device.
    """
    # Gradients stay enabled: under no_grad, the counter's module tracker fails for modules whose input is a bare parameter.
    with (
        evaluating(model),
        torch.enable_grad(),
        FlopCounterMode(display=False) as counter,
        sdpa_kernel(SDPBackend.MATH),
    ):
        model(*inputs, **keywords)
    return int(counter.get_total_flops()) // 2


def count_parameters(model: nn.Module, *, trainable_only: bool = False) -> int:
    """Count the values of all (or only trainable) parameters of a model; shared parameters count once."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad or not trainable_only)


def activation_bytes(model: nn.Module, *inputs: Any, **keywords: Any) -> int:
    """Count the bytes that autograd stores between forward and backward; each storage counts once.

    The model runs in its current mode. Parameters and buffers do not count; inputs do, if a layer saves them. Running
    statistics and the random state change as in any forward pass. This also works on the "meta" device, but counts
    the tensors that the attention kernel of that device saves.
    """
    own = {storage_key(tensor) for tensor in [*model.parameters(), *model.buffers()]}
    kept: dict[int, torch.UntypedStorage] = {}  # references to the storages keep addresses from being reused

    def pack(tensor: Tensor) -> Tensor:
        kept.setdefault(storage_key(tensor), tensor.untyped_storage())
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(*inputs, **keywords)
    return sum(storage.nbytes() for key, storage in kept.items() if key not in own)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Run the block in evaluation mode, then restore the training flag of every module."""
    training = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, flag in training:
            module.training = flag


def storage_key(tensor: Tensor) -> int:
    """Return a number that identifies a tensor's storage while it is alive."""
    return tensor.untyped_storage()._cdata
