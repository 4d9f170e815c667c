"""MLPs that `transformers` may run on a few tokens at a time, to save memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attngraft.attention import HookPoint
from attngraft.hosts.sites import MLP


def in_chunks(module: Any) -> Mapping[HookPoint, str]:
    """HookPoint -> why it is missing, where `module` runs its MLP so: a graft would take the chunk for the whole sequence."""
    size = module.chunk_size_feed_forward
    if not size:
        return {}
    reason = (
        f"its MLP sees {size} tokens at a time (chunk_size_feed_forward={size}), and grafts need all of them; set "
        "chunk_size_feed_forward=0 in the configuration"
    )
    return dict.fromkeys(MLP, reason)
