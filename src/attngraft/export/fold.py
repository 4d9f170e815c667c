"""Folding of constant parts of grafts and of the host into linear layers, for inference only.

There are three steps. First, the host's batch norms are folded into adjacent linear layers (`HostAdapter.fuse`). Then each
graft folds its constants into itself or into an adjacent linear layer (`Graft.fold`); the host provides these layers
(`linear_before`, `linear_after`), some of which are adjacent only after the first step. Finally, the host's scales after
these layers are folded (`HostAdapter.fold`).
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
    """Result of folding: entries and the changed arguments of the host's factory.

    There is an entry for each graft and for each folding step of the host that applies, or a single entry if no adapter
    supports the host.
    """

    entries: tuple[FoldEntry, ...]
    arguments: Mapping[str, Any]  #: arguments of the host's factory that changed
    fused: bool = False  #: whether a host created by the factory must be fused with `HostAdapter.fuse` to match


@dataclass(frozen=True, kw_only=True)
class FoldSummary:
    """Outcome shared by several modules with the same graft, for display."""

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
    """Fold in place all constants that can be folded exactly up to rounding, and report on each graft.

    Outputs change by at most 1e-5. Folding cannot be undone (`ungraft` raises an error), and a folded model should not be
    trained, because constants of a graft have become factors of the host's weights. A host without an adapter has no grafts
    and is not changed; the only entry gives this reason.
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
    """Return the folded graft, the reason why it cannot be folded, or None if nothing remains of it.

    A linear layer is adjacent to a graft if no other graft at the same hook point is between them.
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
