"""Operations with several implementations, and the explicit choice between them.

An `Op` has a reference (the equation, spelled out) and faster backends. A backend that cannot serve a call gives a reason.
`backend="auto"` uses the first backend that can serve the call; a backend's name uses that backend, or raises
`BackendError` with the reason.
"""

from attngraft.dispatch.op import BACKENDS, ENVIRONMENT, Backend, Explanation, Op, reference_backend, registered_ops
from attngraft.dispatch.shapes import Shapes
from attngraft.dispatch.triton import operands_obstacle, triton_obstacle

__all__ = [
    "BACKENDS",
    "ENVIRONMENT",
    "Backend",
    "Explanation",
    "Op",
    "Shapes",
    "operands_obstacle",
    "reference_backend",
    "registered_ops",
    "triton_obstacle",
]
