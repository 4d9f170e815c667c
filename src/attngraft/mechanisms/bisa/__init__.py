"""Bi-directional self-attention (BiSA): self-attention and its inverse, from one score matrix.

    self-attention    sa_i  = sum_j softmax over keys(S)_ij v_j
    inverse           isa_i = sum_j softmax over queries(S)_ij (q_hat_i W_j),   W_j = v_hat_j G
    BiSA              lambda * sa + (1 - lambda) * isa, heads merged, then the output projection

A value is worth what all queries together give it: every key shares itself out among the queries, and each query is
transformed by what it receives. The softmax over queries sees the whole set of queries, so causal hosts are refused.

Source: "Bi-Directional Self-Attention for Vision Transformers", Eqs. 1-3, Alg. 1.

| file | what |
|---|---|
| reference.py | the equations |
| eager.py, tiles.py, groups.py | lean PyTorch: both softmaxes of one score matrix, whole or tile by tile |
| hyper.py, mlp.py | lean PyTorch: the hypernetwork, and the ablation's MLP |
| layout.py | heads in memory as tokens want them |
| ops.py, operands.py | the public operations and their backends, and what they ask of their operands |
| variant.py | the paper's variants, and which go together |
| maps.py, transform.py, inverse.py | the inverse branch: its maps, and what a value makes of a query |
| mix.py, layer.py | how the branches join, and the whole attention |
| graft.py | the grafts bisa, misa |
"""

from attngraft.mechanisms.bisa.layer import BidirectionalAttention
from attngraft.mechanisms.bisa.ops import (
    hyper_transform,
    inverse_attention,
    inverse_attention_mlp,
    two_way_attention,
)
from attngraft.mechanisms.bisa.variant import Variant

__all__ = [
    "BidirectionalAttention",
    "Variant",
    "hyper_transform",
    "inverse_attention",
    "inverse_attention_mlp",
    "two_way_attention",
]
