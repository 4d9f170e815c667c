"""Folding: what of a graft, or of the host, is constant moves into linear layers. For inference only.

Three steps, in this order. The host's batch norms go into the linear maps next to them (`HostAdapter.fuse`). Then every
graft moves what it can into itself or into the linear layer next to it: each mechanism knows what (`Graft.fold`), each
host which layer that is (`linear_before`, `linear_after`), which behind a batch norm only the first step lays bare. Last,
scales of the host's own behind them (`HostAdapter.fold`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from attngraft.attention import Graft, GraftedModule
from attngraft.errors import HostError
from attngraft.grafting.apply import grafted, restore
from attngraft.hosts import find_host
from attngraft.saved.manifest import FoldEntry

_UNREAD = "no adapter reads it, so what of it could move where is not known"


@dataclass(frozen=True, kw_only=True)
class Folded:
    """What was done, and what makes the model now: one entry per graft and one for each step of the host that had something,
    or a single one for a host that no adapter reads."""

    entries: tuple[FoldEntry, ...]
    arguments: Mapping[str, Any]  #: of the host's factory, where folding changed them
    fused: bool = False  #: whether the factory's host must go through `HostAdapter.fuse` to be this one


@dataclass(frozen=True, kw_only=True)
class FoldLine:
    """The same thing done to the same graft in several modules, for readers."""

    what: str
    modules: tuple[str, ...]
    happened: str


def summary(entries: Sequence[FoldEntry]) -> list[FoldLine]:
    """What folding did, said once for all modules of which the same is true."""
    found: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        happened = f"folded: {entry.folded}" if entry.folded else f"stays as it is: {entry.stayed}"
        found.setdefault((entry.graft or "the host", happened), []).append(entry.module or "all")
    return [
        FoldLine(what=what, modules=tuple(modules), happened=happened) for (what, happened), modules in found.items()
    ]


def fold(model: nn.Module) -> Folded:
    """Fold what is exact to rounding, in place, and say of every graft what was done.

    Outputs stay what they were to 1e-5. What was folded cannot be taken out again (`ungraft` refuses), and a folded model
    is not for training: what was one factor is now spread over the host's weights. A host that no adapter reads has no
    grafts, and stays as it is, which its one entry says.
    """
    try:
        host = find_host(model)
    except HostError:
        return Folded(entries=(FoldEntry(module="", stayed=_UNREAD),), arguments={})
    fused = host.adapter.fuse(host.core)
    entries = [FoldEntry(module="", folded=fused)] if fused else []
    for path, module, name, made in list(grafted(host.core)):
        result = _fold_one(module, made)
        _replace(module, name, made, result)
        entries.append(
            FoldEntry(
                module=host.adapter.canonical(path),
                instance=name,
                graft=made.kind,
                folded=_what(result),
                stayed=result if isinstance(result, str) else None,
                removed=result is None,
            )
        )
    own = host.adapter.fold(host.core)
    if own.folded or own.stayed:
        entries.append(FoldEntry(module="", folded=own.folded, stayed=own.stayed))
    return Folded(entries=tuple(entries), arguments=own.arguments, fused=fused is not None)


def _fold_one(module: GraftedModule, made: Graft) -> Graft | str | None:
    """A layer is next to a graft where no other graft of the hook point stands between them."""
    if made.folded:
        return "it was folded before"
    row = cast(list[Graft], module.grafts_at(made.hook_point))
    before = module.linear_before(made.hook_point) if row[0] is made else None
    after = module.linear_after(made.hook_point) if row[-1] is made else None
    result = made.fold(before=before, after=after)
    if isinstance(result, str) and before is after is None:
        same = "another graft of the same hook point stands between" if len(row) > 1 else None
        reason = module.between(made.hook_point) or same
        return f"{result} ({reason})" if reason else result
    return result


def _replace(module: Any, name: str, made: Graft, result: Graft | str | None) -> None:
    if isinstance(result, Graft):
        result.hook_point, result.unused, result.frozen = made.hook_point, made.unused, made.frozen
        result.refuses = made.refuses
        module.grafts[name] = result.train(made.training)
    elif result is None:
        del module.grafts[name]
        if not module.in_use:
            restore(module)


def _what(result: Graft | str | None) -> str | None:
    if result is None:
        return "it does nothing, and was taken out"
    return result.folded if isinstance(result, Graft) else None
