"""Attention masks of `transformers`, in calls and in exported programs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot


def visible_in(mask: Tensor) -> Tensor:
    """Convert a boolean or additive mask to boolean, True for visible keys."""
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2


def hides_tokens(mask: Tensor | None) -> bool:
    """Return whether the call has a mask that hides a token.

    Outside of export, transformers makes no mask that hides nothing. Exported programs have such masks too: there, only a
    mask that depends on an input counts. A trace with `strict=True` cannot tell the two apart and is not refused.
    """
    if mask is None:
        return False
    return _depends_on_input(mask) if torch.compiler.is_exporting() else True


def _depends_on_input(tensor: Tensor) -> bool:
    """Return whether the values of `tensor` depend on an input of the program that is being exported.

    False if unknown: with `strict=True`, Dynamo does not let a model read its own graph.
    """
    if torch.compiler.is_dynamo_compiling():
        return False
    mode = get_proxy_mode()
    slot = None if mode is None else get_proxy_slot(tensor, mode.tracer, None)
    if slot is None:
        return False
    seen: set[Node] = set()
    pending: list[Node] = [slot.proxy.node]
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op == "placeholder":
            return True
        # a node that reads only sizes and dtypes does not count: a mask of ones is as long as the batch
        name = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
        if not (name.startswith(("sym_", "new_")) or name.endswith("_like")):
            pending += node.all_input_nodes
    return False
