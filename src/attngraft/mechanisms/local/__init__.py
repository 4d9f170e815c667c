"""Local attention (ELSA and its family): every pixel weights the values of its neighborhood.

    out_i[c] = sum_o (mul[c, o]^lam * weights_i[head of c, o] + gamma * add[c, o]) v_(i + o)[c]      over k x k offsets o

The weights are a softmax of the filters over the offsets, one map per head. The ghost head turns these few maps into one
map per channel, with two small matrices, `mul` and `add`, that do not depend on the input.

Source: "ELSA: Enhanced Local Self-Attention for Vision Transformer", Eq. 5 and 8.

| file | contents |
|---|---|
| reference.py | the equation |
| geometry.py | neighborhoods and windows |
| eager.py | optimized PyTorch: custom operations for filters and scores; a depthwise convolution for the addend |
| banded.py | weights as bands of matrices, for matrix products; small images stacked into one |
| shifted.py | multipliers per channel, and strides: a few channels and rows, or one offset, at a time |
| triton.py, triton_kernels.py | Triton kernels: one sweep over the offsets completes the softmax, forward and backward |
| ops.py | the operations, with their shape checks and backends |
| hadamard.py | Hadamard attention, both forms, with the ghost head |
| ghost.py | the ghost head on attention maps of a whole grid |
| unified.py | the family in one module: terms of the scores, windows or neighborhoods, norm |
| counterparts.py | the filters to which the paper compares Hadamard attention |
| graft.py | all of these as grafts |
"""

from attngraft.mechanisms.local.ops import local_filter, local_scores

__all__ = ["local_filter", "local_scores"]
