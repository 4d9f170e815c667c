"""How an operation finds its implementation: explicitly, never silently.

An `Op` has a reference (the equation, spelled out) and faster backends. Each backend says why it cannot serve a call;
`backend="auto"` takes the first that can, a name takes that one or raises `BackendError` with the reason.
"""

from attngraft.dispatch.backend import BACKENDS, ENVIRONMENT, Backend, reference_backend
from attngraft.dispatch.flops import register_flops
from attngraft.dispatch.op import Explanation, Op, registered_ops
from attngraft.dispatch.triton import operands_obstacle, triton_obstacle

__all__ = [
    "BACKENDS",
    "ENVIRONMENT",
    "Backend",
    "Explanation",
    "Op",
    "operands_obstacle",
    "reference_backend",
    "register_flops",
    "registered_ops",
    "triton_obstacle",
]
