"""Attention that is not the sentence: sites that no graft of attention takes, and that say why."""

from __future__ import annotations

from typing import Any

from attngraft.attention import HOOK_POINTS, AttentionGeometry
from attngraft.hosts.adapter import Site

_LINEAR = (
    "its attention is linear: one softmax over the tokens for all queries, no map of pairs; choose grafts of MLPs (cb, "
    "cb_s, se, ...)"
)


def refused_site(path: str, why: str, **tokens: Any) -> Site:
    """The place at `path`, where every hook point is missing for one reason; `tokens` are fields of the geometry."""
    geometry = AttentionGeometry(**tokens, heads=1, key_width=0, value_width=0)
    return Site(path=path, kind="attention", geometry=geometry, targets={}, missing=dict.fromkeys(HOOK_POINTS, why))


def channel_site(path: str, *, instead: str, **tokens: Any) -> Site:
    """Attention between channels (cross-covariance); `instead` names blocks of the same host that attend over tokens."""
    why = f"it attends between channels, its softmax is not over tokens; {instead}, or choose grafts of MLPs"
    return refused_site(path, why, **tokens)


def linear_site(path: str, **tokens: Any) -> Site:
    """Attention whose queries all look at the same few summaries of the tokens."""
    return refused_site(path, _LINEAR, **tokens)
