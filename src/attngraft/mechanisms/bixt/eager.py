"""Bi-directional cross-attention in lean PyTorch."""

from __future__ import annotations

from attngraft.mechanisms.bixt.reference import bidirectional_attention

__all__ = ["bidirectional_attention"]
