"""The translation Transformer's layer, encoder or decoder, post-norm (Eq. 4)."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn

from attngraft.errors import UsageError


class TranslationLayer(nn.Module):
    """LN(x + attention(x)), with cross-attention LN(x + attention(x, memory)) after it, then LN(x + w2 relu(w1 x)).

    Args:
        dim: C.
        attention: self-attention, called as `attention(x, visible=, causal=)`; or None.
        cross_attention: called as `cross_attention(x, memory, visible=)`; or None (an encoder layer).
        hidden: width of the feed-forward part.
        dropout: after the feed-forward part; attention has its own.
    """

    def __init__(
        self,
        dim: int,
        *,
        attention: nn.Module | None = None,
        cross_attention: nn.Module | None = None,
        hidden: int,
        eps: float = 1e-6,
        dropout: float = 0.1,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.attention_norm = nn.LayerNorm(dim, eps=eps, device=device, dtype=dtype) if attention is not None else None
        self.cross_attention = cross_attention
        self.cross_norm = (
            nn.LayerNorm(dim, eps=eps, device=device, dtype=dtype) if cross_attention is not None else None
        )
        self.expand = nn.Linear(dim, hidden, device=device, dtype=dtype)
        self.act = nn.ReLU()
        self.contract = nn.Linear(hidden, dim, device=device, dtype=dtype)
        self.dropout = nn.Dropout(dropout)
        self.feed_forward_norm = nn.LayerNorm(dim, eps=eps, device=device, dtype=dtype)

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        *,
        visible: Tensor | None = None,
        memory_visible: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """(B, N, C), and memory (B, Nk, C) where there is cross-attention, to (B, N, C); masks as in `Attention`.

        Raises:
            UsageError: `memory` is missing, or given to a layer without cross-attention.
        """
        if (memory is None) != (self.cross_attention is None):
            raise UsageError("a decoder layer takes memory, an encoder layer does not")
        if self.attention is not None and self.attention_norm is not None:
            x = self.attention_norm(x + self.attention(x, visible=visible, causal=causal))
        if self.cross_attention is not None and self.cross_norm is not None:
            x = self.cross_norm(x + self.cross_attention(x, memory, visible=memory_visible))
        return cast(Tensor, self.feed_forward_norm(x + self.dropout(self.contract(self.act(self.expand(x))))))
