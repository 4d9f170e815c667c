"""Local attention (ELSA and its family): every pixel weights the values of its neighborhood.

    out_i[c] = sum_o (mul[c, o]^lam * weights_i[head of c, o] + gamma * add[c, o]) v_(i + o)[c]      over k x k offsets o

The weights are a map per head, a softmax over the offsets of the filters; the ghost head, `mul` and `add`, turns the few
maps of the heads into one for every channel, by two small matrices that do not depend on the input.

Source: "ELSA: Enhanced Local Self-Attention for Vision Transformer", Eq. 5 and 8.

| file | contents |
|---|---|
| reference.py | the equation |
| geometry.py | neighborhoods and windows |
| eager.py | lean PyTorch: custom operations for filters and for scores; the addend as a depthwise convolution |
| banded.py | weights as the bands of matrices, products with them; small images stacked as one |
| shifted.py | multipliers by channel and strides: a few channels and rows, or one offset, at a time |
| triton.py, triton_kernels.py | the GPU: one sweep over the offsets completes the softmax, forward and backward |
| ops.py | the operations, their shape checks and backends |
| hadamard.py | Hadamard attention, both forms, with the ghost head |
| ghost.py | the ghost head on attention maps of a whole grid |
| unified.py | the family in one module: scores, windows or neighborhoods, norm |
| counterparts.py | the filters that the paper compares Hadamard attention with |
| graft.py | all of these as grafts |
"""

from attngraft.mechanisms.local.ops import local_filter, local_scores

__all__ = ["local_filter", "local_scores"]
