"""Counters that follow each paper's counting rules, in the units that the paper prints.

| counter | params | macs | further counts |
|---|---|---|---|
| `cb` | 10^6 | 10^9, linears, convolutions and attention matmuls | `added_percent`: graft parameters in % of the host's |
| `cb_figure2` | 10^6 | - | `flops_m`, 10^6: linears, attention matmuls twice, and 2 per attention weight |
| `cb_multiplications` | - | `macs_m`, 10^6 | `multiplications`, 10^6: elementwise, in the grafts only |
| `hv` | 2^20, leaf modules only | 2^30, linear and convolution layers only | |
| `bisa` | 10^6 | 10^9, linears, convolutions and matmuls | `flops_m`, 10^6: with norms and softmaxes; `added_percent` |
| `bisa_two_maps` | 10^6 | as `bisa` | as `bisa`, with two more C x C maps in every replaced layer |
| `elsa` | 10^6 | 10^9, linears, convolutions and matmuls, including local attention's | |
| `bixt` | 10^6 | 10^9, fvcore's FLOPs: linears, convolutions, matmuls, norms | `activations`, 10^6; `multiply_adds`, 10^9 |

`count_as_fvcore` counts by the rules of fvcore, which the BiXT paper (and timm's benchmark) uses, on any of our models:

| operation | FLOPs | activations |
|---|---|---|
| linear, convolution, matrix product | one per multiply-add | the elements of the output |
| layer norm | 5 per element (4 without weight and bias) | - |
| batch norm in evaluation | 2 per element (1 without weight and bias) | - |
| softmax, GELU, sums, means | - | - |

Activations are numbers of elements, not bytes. The model is run, and each operation that reaches torch's dispatcher is
counted from its shapes. Attention is counted by its equation, whatever the kernel.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from attngraft.attention import Graft, MixContext
from attngraft.dispatch import reference_backend
from attngraft.mechanisms.bisa.mix import BidirectionalMix
from attngraft.timing.macs import count_macs, count_parameters, evaluating

Inputs = tuple[Any, ...]  #: the model's arguments, for one example
Counter = Callable[[nn.Module, Inputs], Mapping[str, float]]

MI, GI = 2**20, 2**30

#: elementwise multiplications per token and channel, as written in the paper (Eq. 1, B.6)
MULTIPLICATIONS = {"cb": 1, "cb_s": 1, "cb_gate": 1, "cb_hybrid": 2}


def count_cb(model: nn.Module, inputs: Inputs) -> dict[str, float]:
    """Count as the CB paper does: parameters in 10^6, multiply-adds in 10^9, added parameters in percent."""
    total = count_parameters(model)
    added = sum(count_parameters(graft) for graft in _grafts(model).values())
    return {
        "params": total / 1e6,
        "macs": count_macs(model, *inputs) / 1e9,
        "added_percent": 100 * added / (total - added),
    }


def count_cb_multiplications(model: nn.Module, inputs: Inputs) -> dict[str, float]:
    """Count as in the CB paper's Tables 13 and 14: MACs and grafts' elementwise multiplications, in 10^6.

    Grafts are counted as the paper writes them, not as we implement them: N C multiplications for each product of token
    maps and for the halving. Additions, means and operations on a single token are not counted.
    """
    counted: list[int] = []

    def count(graft: nn.Module, _: Any, output: Tensor) -> None:
        counted.append(MULTIPLICATIONS[graft.kind] * output.numel())  # type: ignore[index]

    with ExitStack() as hooks:
        for graft in _grafts(model).values():
            if graft.kind in MULTIPLICATIONS:
                hooks.enter_context(graft.register_forward_hook(count))
        macs = count_macs(model, *inputs)
    return {"macs_m": macs / 1e6, "multiplications": sum(counted) / 1e6}


def count_cb_figure2(model: nn.Module, inputs: Inputs) -> dict[str, float]:
    """Count as for the CB paper's Fig. 2: parameters and FLOPs in 10^6.

    FLOPs are one per multiply-add of linears and convolutions, two per multiply-add of the attention products, and two per
    attention weight. The rule was found by fitting the printed number.
    """
    counts, softmaxes = FvcoreCounts(), _Softmaxes()
    with evaluating(model), torch.no_grad(), sdpa_kernel(SDPBackend.MATH), softmaxes, counts:
        model(*inputs)
    flops = counts.macs + counts.products + 2 * softmaxes.elements
    return {"params": count_parameters(model) / 1e6, "flops_m": flops / 1e6}


def count_hv(model: nn.Module, inputs: Inputs) -> dict[str, float]:
    """Count as the HV paper does: parameters in 2^20; multiply-adds of linears and convolutions in 2^30.

    Outside grafts, only parameters of modules without sub-modules are counted. Grafts are counted completely, because the
    paper's modules consist of linear layers.
    """
    grafts = _grafts(model)
    leaves = {
        p for path, p in model.named_parameters() if _in_leaf(model, path) or any(_below(path, g) for g in grafts)
    }
    return {
        "params": sum(parameter.numel() for parameter in leaves) / MI,
        "macs": _linear_layer_macs(model, inputs) / GI,
    }


def count_bisa(model: nn.Module, inputs: Inputs) -> dict[str, float]:
    """Count as the BiSA paper: parameters in 10^6, multiply-adds in 10^9, added parameters in percent.

    `flops_m`, in 10^6, is LeViT's column: multiply-adds plus one FLOP per output element of each batch norm and softmax.
    A replaced layer counts one softmax per direction of its variant, whatever the kernel. The rule was found by fitting
    five printed numbers.
    """
    return _bisa_numbers(model, inputs, maps=0)


def count_bisa_two_maps(model: nn.Module, inputs: Inputs) -> dict[str, float]:
    """Count as `count_bisa` does, plus two C x C maps with batch norms per replaced layer.

    The sums reproduce the digits printed for LeViT. The paper does not describe the maps, so no graft implements them; they
    are added by formula: 2 (C^2 + 2 C) parameters and 2 N C (C + 1) FLOPs.
    """
    return _bisa_numbers(model, inputs, maps=2)


def count_bixt(model: nn.Module, inputs: Inputs) -> dict[str, float]:
    """Count as the BiXT paper: parameters in 10^6, fvcore's FLOPs in 10^9, activations ("Mem.") in 10^6."""
    counts = count_as_fvcore(model, *inputs)
    return {
        "params": count_parameters(model) / 1e6,
        "macs": counts.flops / 1e9,
        "multiply_adds": counts.macs / 1e9,
        "activations": counts.activations / 1e6,
    }


def count_elsa(model: nn.Module, inputs: Inputs) -> dict[str, float]:
    """Count as the ELSA paper does: parameters in 10^6, multiply-adds in 10^9."""
    return {"params": count_parameters(model) / 1e6, "macs": count_macs(model, *inputs) / 1e9}


#: counters by their name in the papers' files
COUNTERS: dict[str, Counter] = {
    "bisa": count_bisa,
    "bisa_two_maps": count_bisa_two_maps,
    "bixt": count_bixt,
    "cb": count_cb,
    "cb_figure2": count_cb_figure2,
    "cb_multiplications": count_cb_multiplications,
    "elsa": count_elsa,
    "hv": count_hv,
}


def _bisa_numbers(model: nn.Module, inputs: Inputs, *, maps: int) -> dict[str, float]:
    """Return the counts of `count_bisa`, with `maps` additional C x C maps in every replaced layer."""
    normalized: list[int] = []  # output elements of batch norms
    weights: list[int] = []  # output elements of the replaced layers' softmaxes
    layers: list[tuple[int, int]] = []  # (rows, C) of the tokens in each replaced layer
    softmaxes = _Softmaxes()

    def normalize(module: nn.Module, _: Any, output: Tensor) -> None:
        normalized.append(output.numel())

    def enter(mix: nn.Module, arguments: tuple[MixContext, ...]) -> None:
        projected = arguments[0].projected
        directions = 1 + cast(BidirectionalMix, mix).variant.attends
        weights.append(directions * projected.q.shape[:-1].numel() * projected.k.shape[-2])
        layers.append((projected.queries.shape[:-1].numel(), projected.queries.shape[-1]))
        softmaxes.paused += 1

    def leave(*_: Any) -> None:
        softmaxes.paused -= 1

    with ExitStack() as hooks:
        for module in model.modules():
            if isinstance(module, _BatchNorm):
                hooks.enter_context(module.register_forward_hook(normalize))
            elif isinstance(module, BidirectionalMix):
                hooks.enter_context(module.register_forward_pre_hook(enter))
                hooks.enter_context(module.register_forward_hook(leave))
        hooks.enter_context(softmaxes)
        macs = count_macs(model, *inputs)
    extra = maps * sum(width * (width + 2) for _, width in layers)
    macs += maps * sum(rows * width * width for rows, width in layers)
    elements = sum(normalized) + maps * sum(rows * width for rows, width in layers) + sum(weights) + softmaxes.elements
    total = count_parameters(model)
    added = sum(count_parameters(graft) for graft in _grafts(model).values())
    return {
        "params": (total + extra) / 1e6,
        "macs": macs / 1e9,
        "flops_m": (macs + elements) / 1e6,
        "added_percent": 100 * (added + extra) / (total - added),
    }


class _Softmaxes(TorchDispatchMode):
    """Count output elements of softmaxes, except inside layers that are counted by formula."""

    def __init__(self) -> None:
        super().__init__()
        self.elements, self.paused = 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if not self.paused and func.overloadpacket in _SOFTMAXES:
            self.elements += out.numel()
        return out


_SOFTMAXES = {torch.ops.aten._softmax, torch.ops.aten._safe_softmax}


def _grafts(model: nn.Module) -> dict[str, Graft]:
    return {path: module for path, module in model.named_modules() if isinstance(module, Graft)}


def _below(path: str, parent: str) -> bool:
    return path == parent or path.startswith(f"{parent}.")


def _in_leaf(model: nn.Module, parameter: str) -> bool:
    """Return whether the module that owns the parameter has no sub-modules."""
    return not any(model.get_submodule(parameter.rpartition(".")[0]).children())


def _linear_layer_macs(model: nn.Module, inputs: Inputs) -> int:
    """Count multiply-adds of the host's linear and convolution layers, and of everything inside grafts."""
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

    with ExitStack() as hooks, evaluating(model), counter:
        for path, module in model.named_modules():
            if path in grafts:
                hooks.enter_context(module.register_forward_pre_hook(enter))
                hooks.enter_context(module.register_forward_hook(leave))
            elif isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d) and not any(
                _below(path, each) for each in grafts
            ):
                hooks.enter_context(module.register_forward_hook(layer))
        model(*inputs)
    return sum(counted)


# --- fvcore -------------------------------------------------------------------------------------------------------

_aten = torch.ops.aten
_LAYER_NORMS = {_aten.native_layer_norm}
_BATCH_NORMS = {
    _aten.native_batch_norm,
    _aten._native_batch_norm_legit,
    _aten._native_batch_norm_legit_no_training,
    _aten.cudnn_batch_norm,
}


class FvcoreCounts(TorchDispatchMode):
    """Count multiply-adds, FLOPs of norms, and elements of activations inside its `with` block."""

    def __init__(self) -> None:
        super().__init__()
        self.macs = 0  #: multiply-adds of linears, convolutions and matrix products
        self.products = 0  #: those of batched matrix products alone
        self.norms = 0  #: FLOPs of norms
        self.activations = 0  #: elements of the outputs of linears, convolutions and matrix products

    @property
    def flops(self) -> int:
        """FLOPs as defined by fvcore."""
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
            macs = flop_registry[packet](*args, **kwargs, out_val=out) // 2
            self.macs += macs
            self.products += macs * (packet is _aten.bmm)
            self.activations += out.numel()
        return out


def count_as_fvcore(model: nn.Module, *inputs: Any) -> FvcoreCounts:
    """Count one forward pass in evaluation mode.

    Args:
        model: a model on any device (on "meta" nothing is computed). Its training flags are restored.
        *inputs: arguments of the model, on its device. The paper counts for a batch of 1.
    """
    with (
        evaluating(model),
        reference_backend(),  # the only backend that computes exactly the products of the equation
        torch.inference_mode(False),  # otherwise linears and attention would not be decomposed
        torch.no_grad(),
        sdpa_kernel(SDPBackend.MATH),
        FvcoreCounts() as counts,
    ):
        model(*inputs)
    return counts
