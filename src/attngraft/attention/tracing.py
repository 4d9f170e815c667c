"""Modules that `torch.fx` records as one call instead of tracing through them."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import fx


def fx_leaf(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate the `forward` of a module, so that every tracer of `torch.fx` treats the module as a leaf."""

    @wraps(forward)
    def leaf(self: Any, *args: Any, **kwargs: Any) -> Any:
        for value in (*args, *kwargs.values()):
            tracer = value.tracer if isinstance(value, fx.Proxy) else None
            if isinstance(tracer, fx.Tracer) and tracer.root is not self:  # not the traced module itself
                return tracer.create_proxy("call_module", tracer.path_of_module(self), args, kwargs)
        return forward(self, *args, **kwargs)

    leaf.is_leaf = True  # type: ignore[attr-defined]
    return leaf


def is_fx_leaf(forward: Callable[..., Any]) -> bool:
    """Return whether `forward` was decorated with `fx_leaf`."""
    return getattr(forward, "is_leaf", False)
