"""What a host learns only when it is called (masks, keys of other tokens), held against the grafts that stand in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from attngraft.attention import Circumstance, Graft, GraftedModule, HookPoint
from attngraft.errors import UsageError

_GIVEN: Mapping[Circumstance, str] = {
    "causal": "a mask over pairs of tokens, taken for a causal one",
    "padded": "a mask of padding",
    "cross": "keys or values of other tokens than the queries",
}


def check_call(
    module: GraftedModule,
    *,
    causal: bool = False,
    padded: bool = False,
    cross: bool = False,
    told: tuple[HookPoint, ...] = (),
) -> None:
    """Refuse a call that a graft of `module` could not stand in, had the geometry said so.

    Args:
        told: hook points whose grafts learn of it by other means and need not refuse.

    Raises:
        UsageError: one of the grafts refuses what the call gives, with its own reason.
    """
    given: tuple[tuple[Circumstance, bool], ...] = (("causal", causal), ("padded", padded), ("cross", cross))
    for name, graft in module.grafts.items():
        if graft.hook_point in told:
            continue
        for circumstance, holds in given:
            reason = cast(Graft, graft).refuses.get(circumstance) if holds else None
            if reason:
                raise UsageError(
                    f"the graft {name!r} ({cast(Graft, graft).hook_point}) cannot work in this call, which gives "
                    f"{_GIVEN[circumstance]}: {reason}"
                )


def one_sided(seen: Tensor) -> bool:
    """Whether of two tokens, both of which somebody sees, one sees the other and is not seen by it, as under a causal mask.

    Read from the values, which a compiler and the meta device do not have: there nothing is called one-sided.

    Args:
        seen: boolean, (Nq or 1, N) or with axes in front.
    """
    if seen.is_meta or torch.compiler.is_compiling() or seen.shape[-2] != seen.shape[-1]:
        return False
    seen = seen.view(*(1,) * (3 - seen.ndim), *seen.shape)
    anyone = seen.flatten(1, -2).any(dim=1)
    present = anyone.view(-1, *(1,) * (seen.ndim - 2), seen.shape[-1])
    among = seen & present & present.mT
    return not torch.equal(among, among.mT)
