"""timm's modules of relative positions, which several families hold in their attention."""

from __future__ import annotations

from timm.layers import RelPosBias, RelPosBiasTf, RelPosMlp
from torch import nn

from attngraft.hosts.adapter import own_parameters


def score_columns(module: nn.Module) -> tuple[str, ...]:
    """Parameters of `module.rel_pos` whose last axis counts heads, as `AttentionGeometry.score_columns`."""
    return _table(module) if type(getattr(module, "rel_pos", None)) is RelPosBias else ()


def score_rows(module: nn.Module) -> tuple[str, ...]:
    """Those whose first axis does, as `AttentionGeometry.score_rows`."""
    kind = type(getattr(module, "rel_pos", None))
    if kind is RelPosMlp:
        return own_parameters(module, "rel_pos.mlp.fc2")
    return _table(module) if kind is RelPosBiasTf else ()


def _table(module: nn.Module) -> tuple[str, ...]:
    return own_parameters(module, "rel_pos.relative_position_bias_table")
