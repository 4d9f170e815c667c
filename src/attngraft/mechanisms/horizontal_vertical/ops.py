"""The operations of horizontal and vertical attention and their backends."""

from attngraft.dispatch import Op
from attngraft.mechanisms.horizontal_vertical import eager, reference

horizontal_attention = Op(
    reference.horizontal_attention,
    "heads weighted per token by alpha = softmax over heads of relu(heads W^A1 + x W^A2) W^B + b^B",
    eager=eager.horizontal_attention,
)
vertical_attention = Op(
    reference.vertical_attention,
    "channels gated per token by beta = sigmoid(relu(x W^U1 + Y W^U2) W^U + b^U)",
    eager=eager.vertical_attention,
)
