"""Bi-directional self-attention (BiSA): self-attention and its inverse, from one score matrix.

    self-attention    sa_i  = sum_j softmax over keys(S)_ij v_j
    inverse           isa_i = sum_j softmax over queries(S)_ij (q_hat_i W_j),   W_j = v_hat_j G
    BiSA              lambda * sa + (1 - lambda) * isa, heads merged, then the output projection

In the inverse direction every key distributes itself over the queries, and each query is transformed by the values that it
receives. The softmax over queries depends on the whole set of queries, so causal hosts are refused.

Source: "Bi-Directional Self-Attention for Vision Transformers", Eqs. 1-3, Alg. 1.

| file | contents |
|---|---|
| reference.py | the equations |
| eager.py, scores.py | optimized PyTorch: both softmaxes of one score matrix, whole or tile by tile |
| hyper.py, mlp.py | optimized PyTorch: the hypernetwork, and the ablation's MLP |
| triton.py, triton_hyper.py, triton_kernels.py | Triton kernels |
| ops.py | the operations, with their shape checks and backends |
| branch.py | the inverse branch: its projections, and the transform of a query by a value |
| mix.py, layer.py | the paper's variants, which combine both branches; the whole attention layer |
| graft.py | the grafts bisa, misa |
"""

from attngraft.mechanisms.bisa.layer import BidirectionalAttention
from attngraft.mechanisms.bisa.mix import MixVariant
from attngraft.mechanisms.bisa.ops import hyper_transform, inverse_attention, inverse_attention_mlp, two_way_attention

Variant = MixVariant  #: earlier name

__all__ = [
    "BidirectionalAttention",
    "MixVariant",
    "Variant",
    "hyper_transform",
    "inverse_attention",
    "inverse_attention_mlp",
    "two_way_attention",
]
