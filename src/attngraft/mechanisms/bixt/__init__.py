"""Bi-directional cross-attention (BiXT): M latents and N tokens attend to each other through one similarity.

    A        scale r_latents r_tokens^T, once, M x N
    latents  softmax over tokens(A) v_tokens
    tokens   softmax over latents(A) v_latents

Where latents look is where tokens look back: one set of references per side serves as queries and as keys. The work grows
linearly with N.

Source: "Perceiving Longer Sequences With Bi-Directional Cross-Attention Transformers".

| file | what |
|---|---|
| reference.py | the equation |
| eager.py | lean PyTorch |
| ops.py | the public operation and its backends |
"""

from attngraft.mechanisms.bixt.ops import bidirectional_attention

__all__ = ["bidirectional_attention"]
