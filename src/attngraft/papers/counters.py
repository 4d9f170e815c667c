"""Each paper's own way of counting, by name. A counter gives numbers in the units that its paper prints.

| counter | params | macs | more |
|---|---|---|---|
| `cb` | 10^6 | 10^9, linears, convolutions and attention matmuls | `added_percent`: graft parameters over the host's |
| `cb_multiplications` | - | `macs_m`, 10^6 | `multiplications`, 10^6: elementwise, of the grafts alone |
| `hv` | 2^20, leaf modules only | 2^30, linear and convolution layers only | |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.hooks import RemovableHandle

from attngraft.anatomy import Graft
from attngraft.bench.macs import count_macs, count_parameters, evaluating

Inputs = tuple[Any, ...]  #: what the model is called with, one example
Counter = Callable[[nn.Module, Inputs], Mapping[str, float]]

MI, GI = 2**20, 2**30

#: elementwise multiplications per token and channel, in the form in which the paper writes each (Eq. 1, B.6)
MULTIPLICATIONS = {"cb": 1, "cb_s": 1, "cb_gate": 1, "cb_hybrid": 2}


def count_cb(model: nn.Module, inputs: Inputs) -> dict[str, float]:
    """CB paper: parameters in 10^6, multiply-adds in 10^9, and the grafts' share of the host's parameters in percent."""
    total = count_parameters(model)
    added = sum(count_parameters(graft) for graft in _grafts(model).values())
    return {
        "params": total / 1e6,
        "macs": count_macs(model, *inputs) / 1e9,
        "added_percent": 100 * added / (total - added),
    }


def count_cb_multiplications(model: nn.Module, inputs: Inputs) -> dict[str, float]:
    """CB paper, Tables 13 and 14: elementwise multiplications of the grafts, N C each, in 10^6; the host in 10^6 MACs.

    Counted on the paper's form of each graft, whatever path runs it here: one per output element of a product of token
    maps or of the halving; additions, means and what has one token only count nothing.
    """
    counted: list[int] = []

    def count(graft: nn.Module, _: Any, output: Tensor) -> None:
        counted.append(MULTIPLICATIONS[graft.kind] * output.numel())  # type: ignore[index]

    hooks = [graft.register_forward_hook(count) for graft in _grafts(model).values() if graft.kind in MULTIPLICATIONS]
    with _removed_after(hooks):
        macs = count_macs(model, *inputs)
    return {"macs_m": macs / 1e6, "multiplications": sum(counted) / 1e6}


def count_hv(model: nn.Module, inputs: Inputs) -> dict[str, float]:
    """HV paper: parameters of leaf modules in 2^20; multiply-adds of linear and convolution layers in 2^30.

    Grafts are counted whole, since the paper's own modules were made of linear layers.
    """
    grafts = _grafts(model)
    leaves = {
        p for path, p in model.named_parameters() if _in_leaf(model, path) or any(_below(path, g) for g in grafts)
    }
    return {
        "params": sum(parameter.numel() for parameter in leaves) / MI,
        "macs": _linear_layer_macs(model, inputs) / GI,
    }


#: name -> counter; a paper's file names one
COUNTERS: dict[str, Counter] = {
    "cb": count_cb,
    "cb_multiplications": count_cb_multiplications,
    "hv": count_hv,
}


def _grafts(model: nn.Module) -> dict[str, Graft]:
    return {path: module for path, module in model.named_modules() if isinstance(module, Graft)}


def _below(path: str, parent: str) -> bool:
    return path == parent or path.startswith(f"{parent}.")


def _in_leaf(model: nn.Module, parameter: str) -> bool:
    """Whether a parameter's module has no sub-modules."""
    return not any(model.get_submodule(parameter.rpartition(".")[0]).children())


def _linear_layer_macs(model: nn.Module, inputs: Inputs) -> int:
    """Multiply-adds of the host's linear and convolution layers, and of everything inside grafts."""
    grafts = _grafts(model)
    counter = FlopCounterMode(display=False)
    counted: list[int] = []
    entered: list[int] = []

    def layer(module: nn.Module, _: Any, output: Tensor) -> None:
        weight = cast(Tensor, module.weight)
        counted.append(output.numel() * math.prod(weight.shape[1:]))

    def enter(*_: Any) -> None:
        entered.append(counter.get_total_flops())

    def leave(*_: Any) -> None:
        counted.append((counter.get_total_flops() - entered.pop()) // 2)

    hooks = [
        module.register_forward_hook(layer)
        for path, module in model.named_modules()
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d) and not any(_below(path, graft) for graft in grafts)
    ]
    for graft in grafts.values():
        hooks += [graft.register_forward_pre_hook(enter), graft.register_forward_hook(leave)]
    with _removed_after(hooks), evaluating(model), counter:
        model(*inputs)
    return sum(counted)


@contextmanager
def _removed_after(hooks: list[RemovableHandle]) -> Iterator[None]:
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
