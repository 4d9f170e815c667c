"""A branch that a graft can stand in for as a whole, and where the host's own waits until it is taken out again.

What is detached stays an attribute of its module, as readers of the host know it, but is none of its children: it is neither
trained, nor counted, nor in the state dict. It follows its module to other devices and precisions, and takes the host's
weights when they are loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, cast

from torch import Tensor, nn

from attngraft.attention.hook_points import HookPoint
from attngraft.attention.template import GraftedModule


class SpaceSite(GraftedModule):
    """A module with a branch from a map to a map, (B, rows, columns, C) both, that nothing else of it needs.

    An adapter says which children the branch is made of, calls `stand_in` before it, and gives the branch by itself.
    """

    detaches: ClassVar[tuple[str, ...]]  #: names of those children; all of them are there
    branch_of: ClassVar[Callable[[Any, Tensor], Tensor]]  #: the host's own branch of a plain module, for counting
    whole: bool = True  #: whether what is detached holds the host's own values

    def stand_in(self, x: Tensor) -> Tensor | None:
        """What the graft at `space` makes of the map; None: there is none."""
        return self.run("space", x) if self.grafts_at("space") else None

    def between(self, hook_point: HookPoint) -> str | None:
        if hook_point == "attn.end" and self.grafts_at("space"):
            return "another graft stands in for the host's attention"
        return super().between(hook_point)

    def detached_modules(self) -> dict[str, nn.Module]:
        """Name and module of what is detached now."""
        return {name: self.__dict__[name] for name in self.detaches if name in self.__dict__}

    def detach_modules(self) -> None:
        """Take the branch's modules out of the tree; their places stay, so that order is kept."""
        module = cast(nn.Module, self)
        for name in self.detaches:
            module.__dict__[name] = module._modules[name]
            module._modules[name] = None

    def reattach_modules(self) -> None:
        """Put them back into their places."""
        module = cast(nn.Module, self)
        for name, own in self.detached_modules().items():
            del module.__dict__[name]
            module._modules[name] = own

    def restore_modules(self) -> None:
        """`reattach` for good: what was away is in its module's mode, and nothing is kept of it."""
        module = cast(nn.Module, self)
        for own in self.detached_modules().values():
            own.train(module.training)
        self.reattach_modules()
        module.__dict__.pop("whole", None)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        if recurse:
            for own in self.detached_modules().values():
                own._apply(fn)
        return super()._apply(fn, recurse)  # type: ignore[misc]

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        super()._load_from_state_dict(  # type: ignore[misc]
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        complete = bool(self.detached_modules())
        for name, own in self.detached_modules().items():
            start = f"{prefix}{name}."
            values = {key.removeprefix(start): value for key, value in state_dict.items() if key.startswith(start)}
            try:
                found = own.load_state_dict(
                    values, strict=False, assign=local_metadata.get("assign_to_params_buffers", False)
                )
            except RuntimeError as error:  # shapes
                error_msgs.append(f"{start[:-1]} (detached): {error}")
                complete = False
                continue
            unexpected_keys += [f"{start}{key}" for key in found.unexpected_keys]
            if values:  # a host's own weights hold all of it; a grafted model's hold none
                missing_keys += [f"{start}{key}" for key in found.missing_keys]
            complete &= not found.missing_keys
        if complete:
            self.whole = True


def sites_with_detached(model: nn.Module) -> Iterator[tuple[str, SpaceSite]]:
    """Every module of `model` that holds something detached, with its path."""
    for path, module in model.named_modules():
        if isinstance(module, SpaceSite) and module.detached_modules():
            yield path, module


@contextmanager
def with_originals(model: nn.Module) -> Iterator[None]:
    """Within the block the host's modules are all in their places: for reading its parameters."""
    sites = [site for _, site in sites_with_detached(model)]
    for site in sites:
        site.reattach_modules()
    try:
        yield
    finally:
        for site in sites:
            site.detach_modules()


def detached_state(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of what is detached, by the host's own names."""
    return {start + key: value for start, own in _away(model) for key, value in own.state_dict().items()}


def load_detached_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Give what is detached the values that `detached_state` gave.

    Raises:
        RuntimeError: a value is missing, or has another shape.
    """
    for start, own in _away(model):
        own.load_state_dict({key[len(start) :]: value for key, value in state.items() if key.startswith(start)})


def _away(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every detached module, with what the host's names of its tensors begin with."""
    for path, site in sites_with_detached(model):
        for name, own in site.detached_modules().items():
            yield (f"{path}.{name}." if path else f"{name}."), own
