"""FLOP formulas of custom ops, for torch.utils.flop_counter. One multiply-add is 2 FLOPs there, and 1 MAC with us."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.flop_counter import flop_registry, register_flop_formula


def register_flops(op: Any, formula: Callable[..., int]) -> None:
    """Tell torch's counter what `op` costs.

    Args:
        op: an overload packet, `torch.ops.attngraft.<name>`.
        formula: from the op's arguments, tensors given by their shapes, and `out_shape`, to FLOPs. Linears,
            convolutions and matrix products count; elementwise work does not.
    """
    if op not in flop_registry:
        register_flop_formula(op)(formula)
