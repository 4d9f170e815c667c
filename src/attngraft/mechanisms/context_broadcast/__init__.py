"""Context broadcasting (CB): uniform attention, which is hard to learn, added explicitly.

    CB         (x_i + mean_j x_j) / 2            no parameters
    CB_S       x_i + Lambda * mean_j x_j         Lambda (C), per site
    CB_gate    x_i * (x_0 + 1)                   x_0 the class token
    CB_hybrid  x_i * x_0 + (x_i + mean_j x_j) / 2

for every token i, class token included, at the end of the MLP (default), at its front or middle, or after attention, inside
the residual branch. CB is a symmetric linear map with eigenvalues 1 and 1/2: it preserves the mean token and halves
each token's distance from the mean. Its backward applies CB to the gradient.

Source: "Scratching Visual Transformer's Back with Uniform Attention" (ICCV 2023): Eq. 1, Sec. 2.2, Table 10, Appendix B.

| file | contents |
|---|---|
| reference.py | the equations |
| eager.py | optimized PyTorch |
| ops.py | the operations, with their checks and backends |
| layer.py | modules for any network; attention with uniform heads |
| graft.py | the grafts cb, cb_s, cb_gate, cb_hybrid, se, uniform_heads |
"""

from attngraft.mechanisms.context_broadcast.layer import (
    ContextBroadcast,
    ContextGate,
    ContextHybrid,
    ScaledContextBroadcast,
    SqueezeExcitation,
    UniformHeadAttention,
)
from attngraft.mechanisms.context_broadcast.ops import (
    context_broadcast,
    context_gate,
    context_hybrid,
    scaled_context_broadcast,
    squeeze_excitation,
    uniform_weights,
)

__all__ = [
    "ContextBroadcast",
    "ContextGate",
    "ContextHybrid",
    "ScaledContextBroadcast",
    "SqueezeExcitation",
    "UniformHeadAttention",
    "context_broadcast",
    "context_gate",
    "context_hybrid",
    "scaled_context_broadcast",
    "squeeze_excitation",
    "uniform_weights",
]
