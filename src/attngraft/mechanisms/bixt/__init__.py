"""Bi-directional cross-attention (BiXT): M latents and N tokens attend to each other through one similarity.

    A        scale r_latents r_tokens^T, once, M x N
    latents  softmax over tokens(A) v_tokens
    tokens   softmax over latents(A) v_latents

One set of references per side serves as queries and as keys. The work grows linearly with N.

Source: "Perceiving Longer Sequences With Bi-Directional Cross-Attention Transformers".

| file | contents |
|---|---|
| reference.py | the equations |
| formula.py | the equation as plain operations, softmaxes in float32; shapes and costs of the custom operations |
| eager.py, pieces.py | optimized PyTorch: tokens piece by piece, without a map of all tokens |
| folded.py | optimized PyTorch: the tokens' projections folded into the latents |
| triton.py, triton_kernels.py | Triton kernels: one sweep over the tokens, forward and backward |
| ops.py | the operations, with their shape checks and backends |
| layer.py | the whole layers, bi-directional and one-sided |
"""

from attngraft.mechanisms.bixt.layer import BidirectionalCrossAttention, OneSidedCrossAttention
from attngraft.mechanisms.bixt.ops import bidirectional_attention, projected_attention

__all__ = ["BidirectionalCrossAttention", "OneSidedCrossAttention", "bidirectional_attention", "projected_attention"]
