"""Folding: moves constant parts of grafts and of the host into linear layers. For inference only.

It has three steps, in this order. The host's batch norms go into adjacent linear layers (`HostAdapter.fuse`). Then each
graft moves its constants into itself or into an adjacent linear layer (`Graft.fold`); the host names these layers
(`linear_before`, `linear_after`), some of which only the first step exposes. Last, the host's own scales after them
(`HostAdapter.fold`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from attngraft.attention import Graft, GraftedModule
from attngraft.errors import HostError
from attngraft.grafting.apply import grafted, restore
from attngraft.hosts import find_host
from attngraft.saved.manifest import FoldEntry

_NO_ADAPTER = "no adapter supports this host, so nothing can be folded"


@dataclass(frozen=True, kw_only=True)
class Folded:
    """Result of folding: an entry per graft and per step of the host that folded something (or one if no adapter supports
    the host), and the factory's arguments."""

    entries: tuple[FoldEntry, ...]
    arguments: Mapping[str, Any]  #: arguments of the host's factory that folding changed
    fused: bool = False  #: whether the factory's host must go through `HostAdapter.fuse` to become this one


@dataclass(frozen=True, kw_only=True)
class FoldSummary:
    """The outcome that several modules with the same graft share, for readers."""

    graft: str
    modules: tuple[str, ...]
    outcome: str


def summary(entries: Sequence[FoldEntry]) -> list[FoldSummary]:
    """Group modules with the same graft and outcome."""
    groups: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        outcome = f"folded: {entry.folded}" if entry.folded else f"not folded: {entry.stayed}"
        groups.setdefault((entry.graft or "the host", outcome), []).append(entry.module or "all")
    return [
        FoldSummary(graft=graft, modules=tuple(modules), outcome=outcome)
        for (graft, outcome), modules in groups.items()
    ]


def fold(model: nn.Module) -> Folded:
    """Fold in place everything that is exact to rounding, and report on every graft.

    Outputs change by at most 1e-5. Folding cannot be undone (`ungraft` refuses), and a folded model is not for training:
    a former single factor is now spread over the host's weights. A host without an adapter has no grafts and is not
    changed; its only entry says so.
    """
    try:
        host = find_host(model)
    except HostError:
        return Folded(entries=(FoldEntry(module="", stayed=_NO_ADAPTER),), arguments={})
    fused = host.adapter.fuse(host.core)
    entries = [FoldEntry(module="", folded=fused)] if fused else []
    for path, module, name, graft in list(grafted(host.core)):
        result = _fold_graft(module, graft)
        if isinstance(result, Graft):
            result.hook_point, result.unused, result.frozen = graft.hook_point, graft.unused, graft.frozen
            result.refuses = graft.refuses
            cast(Any, module.grafts)[name] = result.train(graft.training)
            folded = result.folded
        else:
            folded = "it does nothing, and was removed" if result is None else None
        if result is None:
            del cast(Any, module.grafts)[name]
            if not module.in_use:
                restore(module)
        entries.append(
            FoldEntry(
                module=host.adapter.canonical(path),
                instance=name,
                graft=graft.kind,
                folded=folded,
                stayed=result if isinstance(result, str) else None,
                removed=result is None,
            )
        )
    own = host.adapter.fold(host.core)
    if own.folded or own.stayed:
        entries.append(FoldEntry(module="", folded=own.folded, stayed=own.stayed))
    return Folded(entries=tuple(entries), arguments=own.arguments, fused=fused is not None)


def _fold_graft(module: GraftedModule, graft: Graft) -> Graft | str | None:
    """Return the folded graft, why it cannot be folded, or None if nothing is left of it.

    A linear layer is adjacent to a graft if no other graft of the hook point is between them.
    """
    if graft.folded:
        return "it was folded before"
    row = cast(list[Graft], module.grafts_at(graft.hook_point))
    before = module.linear_before(graft.hook_point) if row[0] is graft else None
    after = module.linear_after(graft.hook_point) if row[-1] is graft else None
    result = graft.fold(before=before, after=after)
    if isinstance(result, str) and before is after is None:
        same = "another graft of the same hook point is between" if len(row) > 1 else None
        reason = module.between(graft.hook_point) or same
        return f"{result} ({reason})" if reason else result
    return result
