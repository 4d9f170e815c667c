"""Horizontal and vertical attention (HV): weigh the heads, gate the channels, token by token.

    horizontal  alpha = softmax over heads of (relu(H_m W^A1 + x W^A2) W^B + b^B);  H_m -> alpha_m H_m
    vertical    beta  = sigmoid(relu(x W^U1 + Y W^U2) W^U + b^U);                   Y -> beta * Y

Horizontal stands between the heads and the output projection, vertical between the projection and its dropout; x is what
the attention module received as queries. Nothing mixes tokens, so causal and padded hosts are fine. Neither is the
identity in the paper's form; `identity=True` uses H alpha and 2 beta with zero last weights, which is.

Source: Yu and Zhang, "Horizontal and Vertical Attention in Transformers", Eqs. 5-8.

| file | what |
|---|---|
| reference.py | the equations |
| eager.py | lean PyTorch with the backward written out |
| ops.py | the public operations and their backends |
| layer.py | the two mechanisms as modules |
| attention.py, translation.py | attention and Transformer layers that hold them |
| graft.py | the grafts horizontal, vertical |
"""

from attngraft.mechanisms.horizontal_vertical.attention import Attention, key_padding
from attngraft.mechanisms.horizontal_vertical.layer import HorizontalAttention, VerticalAttention
from attngraft.mechanisms.horizontal_vertical.ops import horizontal_attention, vertical_attention
from attngraft.mechanisms.horizontal_vertical.translation import TranslationLayer

__all__ = [
    "Attention",
    "HorizontalAttention",
    "TranslationLayer",
    "VerticalAttention",
    "horizontal_attention",
    "key_padding",
    "vertical_attention",
]
