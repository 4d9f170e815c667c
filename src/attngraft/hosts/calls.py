"""What a host learns only when it is called (masks, keys of other tokens), held against the grafts that stand in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from attngraft.anatomy import Circumstance, Graft, GraftedModule, Stage
from attngraft.errors import UsageError

_GIVEN: Mapping[Circumstance, str] = {
    "causal": "a mask over pairs of tokens",
    "padded": "a mask of padding",
    "cross": "keys or values of other tokens than the queries",
}


def check_call(
    module: GraftedModule,
    *,
    causal: bool = False,
    padded: bool = False,
    cross: bool = False,
    told: tuple[Stage, ...] = (),
) -> None:
    """Refuse a call that a graft of `module` could not stand in, had the geometry said so.

    Args:
        told: stages whose grafts learn of it by other means and need not refuse.

    Raises:
        UsageError: one of the grafts refuses what the call gives, with its own reason.
    """
    given: tuple[tuple[Circumstance, bool], ...] = (("causal", causal), ("padded", padded), ("cross", cross))
    for name, graft in module.grafts.items():
        if graft.stage in told:
            continue
        for circumstance, holds in given:
            reason = cast(Graft, graft).refuses.get(circumstance) if holds else None
            if reason:
                raise UsageError(
                    f"the graft {name!r} ({cast(Graft, graft).stage}) cannot work in this call, which gives "
                    f"{_GIVEN[circumstance]}: {reason}"
                )
