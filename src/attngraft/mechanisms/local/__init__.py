"""Local attention (ELSA and its family): every pixel weighs the values of its neighborhood.

    out_i[c] = sum_o (mul[c, o]^lam * weights_i[head of c, o] + gamma * add[c, o]) v_(i + o)[c]      over k x k offsets o

The weights are a map per head, a softmax over the offsets of what made them; the ghost head, `mul` and `add`, turns the few
maps of the heads into one for every channel, at the price of two small matrices that no input moves.

Source: "ELSA: Enhanced Local Self-Attention for Vision Transformer", Eq. 5 and 8.

| file | what |
|---|---|
| reference.py | the equation |
| offsets.py | the geometry: sizes, and where a neighborhood lies in memory |
| banded.py | lean PyTorch: weights as the bands of matrices, products with them |
| shifted.py | lean PyTorch: for multipliers by channel and for strides, a few channels and rows or one offset at a time |
| stack.py | small images one under another, as one |
| lean.py | the custom operation over these, forward and backward |
| scores.py | the custom operation of queries and keys, forward and backward |
| eager.py | which way a call goes; the addend as a depthwise convolution |
| triton.py, triton_kernels.py | the GPU: one sweep over the offsets closes the softmax, forward and backward |
| ops.py | the public operations and their backends |
| hadamard.py | Hadamard attention, both forms, with the ghost head |
| ghost.py | the ghost head on attention maps of a whole grid |
| counterparts.py | what the paper compares Hadamard attention with |
| graft.py | all of these as grafts |
| unified.py, windows.py | the family in one module: which scores, in windows or neighborhoods, by which norm |
"""

from attngraft.mechanisms.local.ops import local_filter, local_scores

__all__ = ["local_filter", "local_scores"]
