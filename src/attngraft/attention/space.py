"""Replacement of a whole branch by a graft, and storage of the replaced modules until the graft is removed.

A detached module stays an attribute of its parent, since the host's code reads it, but is no longer one of its children: it
is not trained, counted or saved in the state dict. It follows its parent to other devices and precisions, and
`load_state_dict` fills it with the host's weights.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, cast

from torch import Tensor, nn

from attngraft.attention.hook_points import HookPoint
from attngraft.attention.template import GraftedModule


class SpaceSite(GraftedModule):
    """A module with a branch from map to map, both (B, rows, columns, C), that a graft can replace as a whole.

    An adapter lists the children that only this branch uses (`detaches`), calls `stand_in` before the branch, and provides
    the branch as a function (`branch_of`).
    """

    detaches: ClassVar[tuple[str, ...]]  #: names of the children that only this branch uses; all must exist
    #: runs the host's own branch on an unpatched module, for counting MACs
    branch_of: ClassVar[Callable[[Any, Tensor], Tensor]]
    whole: bool = True  #: whether the detached modules have the host's own values

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "parks" in cls.__dict__:  # the former name of `detaches`
            cls.detaches = cls.__dict__["parks"]

    def stand_in(self, x: Tensor) -> Tensor | None:
        """Return the output of the graft at `space` for the map `x`; None if there is no such graft."""
        return self.run("space", x) if self.grafts_at("space") else None

    def between(self, hook_point: HookPoint) -> str | None:
        if hook_point == "attn.end" and self.grafts_at("space"):
            return "another graft replaces the host's attention"
        return super().between(hook_point)

    def detached_modules(self) -> dict[str, nn.Module]:
        """Return the modules that are detached now, by name."""
        return {name: self.__dict__[name] for name in self.detaches if name in self.__dict__}

    def detach_modules(self) -> None:
        """Remove the branch's modules from the module tree; their keys stay, to preserve the order of parameters."""
        module = cast(nn.Module, self)
        for name in self.detaches:
            module.__dict__[name] = module._modules[name]
            module._modules[name] = None

    def reattach_modules(self) -> None:
        """Put the detached modules back into the module tree."""
        module = cast(nn.Module, self)
        for name, original in self.detached_modules().items():
            del module.__dict__[name]
            module._modules[name] = original

    def restore_modules(self) -> None:
        """Reattach the modules permanently, in the parent's training mode, and remove the graft's state."""
        module = cast(nn.Module, self)
        for original in self.detached_modules().values():
            original.train(module.training)
        self.reattach_modules()
        module.__dict__.pop("whole", None)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        if recurse:
            for original in self.detached_modules().values():
                original._apply(fn)
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
        assign = local_metadata.get("assign_to_params_buffers", False)
        complete = bool(self.detached_modules())
        for name, original in self.detached_modules().items():
            start = f"{prefix}{name}."
            values = {key.removeprefix(start): value for key, value in state_dict.items() if key.startswith(start)}
            try:
                found = original.load_state_dict(values, strict=False, assign=assign)
            except RuntimeError as error:  # mismatched shapes
                error_msgs.append(f"{start[:-1]} (detached): {error}")
                complete = False
                continue
            unexpected_keys += [f"{start}{key}" for key in found.unexpected_keys]
            if values:  # the state dict is the host's; a grafted model's has no detached modules
                missing_keys += [f"{start}{key}" for key in found.missing_keys]
            complete &= not found.missing_keys
        if complete:
            self.whole = True


def sites_with_detached(model: nn.Module) -> Iterator[tuple[str, SpaceSite]]:
    """Yield path and module for every module of `model` with detached modules."""
    for path, module in model.named_modules():
        if isinstance(module, SpaceSite) and module.detached_modules():
            yield path, module


def all_modules(model: nn.Module) -> list[nn.Module]:
    """Return all modules of `model`, including detached ones."""
    found = {id(module): module for module in model.modules()}
    for _, site in sites_with_detached(model):
        for original in site.detached_modules().values():
            found |= {id(module): module for module in original.modules()}
    return list(found.values())


@contextmanager
def with_originals(model: nn.Module) -> Iterator[None]:
    """Reattach all detached modules within the `with` block, to read the host's parameters."""
    sites = [site for _, site in sites_with_detached(model)]
    for site in sites:
        site.reattach_modules()
    try:
        yield
    finally:
        for site in sites:
            site.detach_modules()


def detached_state(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers of the detached modules under the host's own names."""
    return {start + key: value for start, own in _detached(model) for key, value in own.state_dict().items()}


def load_detached_state(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load the tensors returned by `detached_state`.

    Raises:
        RuntimeError: a value is missing or has another shape.
    """
    for start, original in _detached(model):
        original.load_state_dict({key[len(start) :]: value for key, value in state.items() if key.startswith(start)})


def _detached(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield every detached module with the prefix of its tensors' names."""
    for path, site in sites_with_detached(model):
        for name, original in site.detached_modules().items():
            yield (f"{path}.{name}." if path else f"{name}."), original
