"""Horizontal and vertical attention (HV): weight the heads, gate the channels, token by token.

    horizontal  alpha = softmax over heads of (relu(H_m W^A1 + x W^A2) W^B + b^B);  H_m -> alpha_m H_m
    vertical    beta  = sigmoid(relu(x W^U1 + Y W^U2) W^U + b^U);                   Y -> beta * Y

Horizontal attention acts between the heads and the output projection, vertical attention between the projection and its
dropout; x is the query input of the attention module. Tokens are not mixed, so causal and padded hosts are supported. In the
paper's form neither starts as the identity; with `identity=True` both do, because they multiply by H alpha and 2 beta, and
their last weights are initialized to zero.

Source: Yu and Zhang, "Horizontal and Vertical Attention in Transformers", Eqs. 5-8.

| file | contents |
|---|---|
| reference.py | the equations |
| eager.py | optimized PyTorch with an explicit backward |
| ops.py | the operations, with their backends |
| layer.py | the two mechanisms as modules |
| graft.py | the grafts horizontal, vertical |
"""

from attngraft.mechanisms.horizontal_vertical.layer import HorizontalAttention, VerticalAttention
from attngraft.mechanisms.horizontal_vertical.ops import horizontal_attention, vertical_attention

__all__ = ["HorizontalAttention", "VerticalAttention", "horizontal_attention", "vertical_attention"]
