"""Hook points: the tensors of a transformer block that a graft can change."""

from typing import Literal, get_args

HookPoint = Literal[
    "mix",  # the computation from scores to heads; at most one graft per site
    "weights",  # the attention map after softmax (B, H, Nq, Nk); selects the explicit path
    "heads",  # (B, H, Nq, dv), before the output projection
    "tokens",  # (B, Nq, C), after the output projection, before its dropout
    "attn.end",  # the output of the attention branch, after dropout and after windows are merged
    "attn.window",  # the output of attention in each window, before windows are merged; only in hosts with windows
    "mlp.front",  # the input of fc1
    "mlp.mid",  # after the activation, the input of fc2
    "mlp.end",  # after fc2 and its dropout
    "space",  # the attention branch from map to map (B, rows, columns, C), which the graft replaces
]
HOOK_POINTS: tuple[HookPoint, ...] = get_args(HookPoint)
