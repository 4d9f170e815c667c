"""What a tensor comes from while `torch.export` traces: the inputs of the program, or the model alone."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot


def follows_input(tensor: Tensor) -> bool:
    """Whether the values of `tensor` depend on those of an input of the program that is being exported.

    False where there is no telling: with `strict=True`, Dynamo does not let a model look at its own graph.
    """
    if torch.compiler.is_dynamo_compiling():
        return False
    mode = get_proxy_mode()
    slot = None if mode is None else get_proxy_slot(tensor, mode.tracer, None)
    if slot is None:
        return False
    seen: set[Node] = set()
    ahead: list[Node] = [slot.proxy.node]
    while ahead:
        node = ahead.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op == "placeholder":
            return True
        if not _takes_shape_only(node):
            ahead += node.all_input_nodes
    return False


def _takes_shape_only(node: Node) -> bool:
    """Whether a node asks its inputs for sizes and types: a mask of ones is as long as the batch."""
    name = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
    return name.startswith(("sym_", "new_")) or name.endswith("_like")
