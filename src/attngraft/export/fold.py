"""Folding: what of a graft is a constant factor moves into the host's linear layers. For inference only.

Each mechanism knows what of it can move (`Graft.fold`), each host which linear layer stands next to a stage
(`linear_before`, `linear_after`); this joins the two.
"""

from __future__ import annotations

from typing import cast

from torch import nn

from attngraft.anatomy import Graft, GraftedModule
from attngraft.export.manifest import FoldEntry
from attngraft.grafting.apply import grafted
from attngraft.hosts import find_host


def fold(model: nn.Module) -> tuple[FoldEntry, ...]:
    """Fold what is exact to rounding, in place, and say of every graft what was done.

    Outputs stay what they were to 1e-5. What was folded cannot be taken out again (`ungraft` refuses), and a folded model
    is not for training: what was one factor is now spread over the host's weights.

    Raises:
        HostError: the model holds no host that is known.
    """
    host = find_host(model)
    entries = []
    for path, module, name, made in list(grafted(host.core)):
        result = _fold_one(module, made)
        reason = result if isinstance(result, str) else None
        if isinstance(result, Graft):
            result.stage, result.unused, result.frozen = made.stage, made.unused, made.frozen
            module.grafts[name] = result.train(made.training)
        entries.append(
            FoldEntry(
                module=host.adapter.canonical(path),
                instance=name,
                graft=made.kind,
                folded=result.folded if isinstance(result, Graft) else None,
                stayed=reason,
            )
        )
    return tuple(entries)


def _fold_one(module: GraftedModule, made: Graft) -> Graft | str:
    """A layer is next to a graft where no other graft of the stage stands between them."""
    if made.folded:
        return "it was folded before"
    row = cast(list[Graft], module.grafts_at(made.stage))
    before = module.linear_before(made.stage) if row[0] is made else None
    after = module.linear_after(made.stage) if row[-1] is made else None
    result = made.fold(before=before, after=after)
    if isinstance(result, str) and before is after is None and len(row) > 1:
        return f"{result} (another graft of the same stage stands between)"
    return result
