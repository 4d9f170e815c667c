"""Base classes and call-time checks shared by the patched classes of several packages."""

import sys
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from attngraft.attention import Circumstance, Graft, GraftedModule, HookPoint, LinearLayer, MlpSite
from attngraft.errors import UsageError

_GIVEN: Mapping[Circumstance, str] = {
    "causal": "a mask over pairs of tokens, treated as causal",
    "padded": "a padding mask",
    "cross": "keys or values from tokens other than the queries",
}


def patch_classes(
    template: type[GraftedModule], *hosts: type[nn.Module], module: str
) -> dict[type[nn.Module], type[GraftedModule]]:
    """Return host class -> patched class `Grafted<Host>(template, <Host>)` for each host class.

    The classes become attributes of `module`, where pickle can find them. A second call returns the same classes.
    """
    created: dict[type[nn.Module], type[GraftedModule]] = {}
    members = vars(sys.modules[module])
    for host in hosts:
        name = f"Grafted{host.__name__}"
        if name not in members:
            members[name] = type(
                name, (template, host), {"__module__": module, "__doc__": f"`{host.__module__}.{host.__qualname__}`."}
            )
        created[host] = members[name]
    return created


def has_grafts(module: nn.Module) -> bool:
    """Return whether `module`, or a module in it, has grafts."""
    return any(isinstance(each, GraftedModule) and bool(each.grafts) for each in module.modules())


class TwoLinearEnds(GraftedModule):
    """An MLP with linear layers after `mlp.front` and after `mlp.mid`, and only dropout before `mlp.end`."""

    linear_names: ClassVar[tuple[str, str]] = ("fc1", "fc2")

    def linear_before(self, hook_point: HookPoint) -> LinearLayer | None:
        return as_linear(getattr(self, self.linear_names[1])) if hook_point == "mlp.end" else None

    def linear_after(self, hook_point: HookPoint) -> LinearLayer | None:
        number = {"mlp.front": 0, "mlp.mid": 1}.get(hook_point)
        return None if number is None else as_linear(getattr(self, self.linear_names[number]))


class StepMlp(MlpSite):
    """An MLP whose children run one after another."""

    before_mid: ClassVar[tuple[str, ...]] = (
        "fc1",
        "act",
        "drop1",
    )  #: names of the children before hook point `mlp.mid`
    after_mid: ClassVar[tuple[str, ...]] = ("fc2", "drop2")  #: names of the children after `mlp.mid`

    def hidden(self, x: Tensor) -> Tensor:
        for name in self.before_mid:
            x = getattr(self, name)(x)
        return x

    def out(self, x: Tensor) -> Tensor:
        for name in self.after_mid:
            x = getattr(self, name)(x)
        return x


def as_linear(layer: Any) -> LinearLayer | None:
    """Return `layer` if it is a linear layer or a convolution, otherwise None."""
    return layer if isinstance(layer, nn.Linear | nn.Conv2d) else None


def check_call(
    module: GraftedModule,
    *,
    causal: bool = False,
    padded: bool = False,
    cross: bool = False,
    exempt: tuple[HookPoint, ...] = (),
) -> None:
    """Refuse a call whose masks or keys a graft of `module` does not support.

    Args:
        exempt: hook points whose grafts receive and apply the mask.

    Raises:
        UsageError: a graft does not support the call; the message contains the reason.
    """
    given: tuple[tuple[Circumstance, bool], ...] = (("causal", causal), ("padded", padded), ("cross", cross))
    for name, graft in module.grafts.items():
        if graft.hook_point in exempt:
            continue
        for circumstance, holds in given:
            reason = cast(Graft, graft).refuses.get(circumstance) if holds else None
            if reason:
                raise UsageError(
                    f"graft {name!r} ({cast(Graft, graft).hook_point}) does not support this call with "
                    f"{_GIVEN[circumstance]}: {reason}"
                )


class MaskedParts(GraftedModule):
    """A block or layer that checks its mask for the grafts of child modules that do not receive the mask."""

    unmasked: ClassVar[tuple[str, ...]] = ("mlp",)  #: names of these child modules

    @property
    def in_use(self) -> bool:
        return super().in_use or any(part.in_use for part in self.grafted_parts())

    def grafted_parts(self) -> list[GraftedModule]:
        """Return the patched modules among `unmasked`."""
        parts = [getattr(self, name) for name in self.unmasked]  # Dynamo cannot read names bound within a comprehension
        return [part for part in parts if isinstance(part, GraftedModule)]

    def check_parts(self, *, causal: bool = False, padded: bool = False) -> None:
        """Run `check_call` for each module in `grafted_parts`."""
        for part in self.grafted_parts():
            check_call(part, causal=causal, padded=padded)


def present_in(visible: Tensor) -> Tensor:
    """Return (b, N), False for tokens hidden from all queries, of a boolean mask (b, ..., Nq or 1, N) or (Nq or 1, N)."""
    return visible.view(*(1,) * (3 - visible.ndim), *visible.shape).flatten(1, -2).any(dim=1)


def is_one_directional(visible: Tensor) -> bool:
    """Return whether some pair of visible tokens attends in one direction only, as under a causal mask.

    Returns False while compiling and on the meta device, where values cannot be read.

    Args:
        visible: boolean mask (Nq or 1, N), with any leading axes.
    """
    if visible.is_meta or torch.compiler.is_compiling() or visible.shape[-2] != visible.shape[-1]:
        return False
    visible = visible.view(*(1,) * (3 - visible.ndim), *visible.shape)
    present = present_in(visible).view(-1, *(1,) * (visible.ndim - 2), visible.shape[-1])
    among = visible & present & present.mT
    return not torch.equal(among, among.mT)
