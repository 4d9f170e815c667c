"""Attention between channels (cross-covariance): a site that no graft of attention takes, and that says why."""

from __future__ import annotations

from typing import Any

from attngraft.anatomy import STAGES, AttentionGeometry
from attngraft.hosts.adapter import Site


def channel_site(path: str, *, instead: str, **tokens: Any) -> Site:
    """The place at `path`; `instead` names blocks of the same host that attend over tokens, `tokens` are fields of the
    geometry."""
    why = f"it attends between channels, its softmax is not over tokens; {instead}, or choose grafts of MLPs"
    geometry = AttentionGeometry(**tokens, heads=1, key_width=0, value_width=0)
    return Site(path=path, kind="attention", geometry=geometry, carriers={}, missing=dict.fromkeys(STAGES, why))
