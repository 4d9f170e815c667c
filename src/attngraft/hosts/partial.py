"""Other packages' models in which torch's own attention is only a part of what attends."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from attngraft.attention import is_graft, plain_class
from attngraft.hosts.unread import UNREAD

_MODELS = ("timm.models.", "torchvision.models.", "transformers.models.")


def rest_of(model: nn.Module, taken: Iterable[str]) -> tuple[str, str] | None:
    """The first of the `taken` paths that lies in another package's model with other attention, and what that is.

    A module belongs to such a model where its class, or one that it comes from, does; what a model of one's own has beside
    such a model is one's own. Attention is told by its name, or is known to be unread. None: there is no such path.
    """
    taken = tuple(taken)
    for path in taken:
        parts = path.split(".") if path else []
        around = (".".join(parts[:i]) for i in range(len(parts)))
        outer = next((each for each in around if _belongs(model.get_submodule(each))), None)
        if outer is None:
            continue
        inner = [each[len(outer) :].strip(".") for each in taken if not outer or each.startswith(f"{outer}.")]
        other = _other(model.get_submodule(outer), inner)
        if other is not None:
            where, kind = other
            return path, f"{kind} at {f'{outer}.{where}' if outer else where}"
    return None


def _belongs(module: nn.Module) -> bool:
    return any(base.__module__.startswith(_MODELS) for base in type(module).__mro__)


def _other(model: nn.Module, taken: list[str]) -> tuple[str, str] | None:
    """Path and class of attention in `model` that is not `taken`, holds nothing taken, and lies in nothing taken."""
    for path, module in model.named_modules():
        kind = plain_class(module)
        if not path or is_graft(path) or any(_within(path, each) or _within(each, path) for each in taken):
            continue
        name = kind.__qualname__
        if "attention" in name.lower() or "attn" in name.lower() or f"{kind.__module__}.{name}" in UNREAD:
            return path, name
    return None


def _within(path: str, outer: str) -> bool:
    return path == outer or path.startswith(f"{outer}.")
