"""Horizontal and vertical attention as modules: what stands between the heads and the output, in any attention."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from attngraft.attention import Recordable
from attngraft.mechanisms.horizontal_vertical import ops
from attngraft.mechanisms.initialization import InitRule, init_matrix


class HorizontalAttention(Recordable, nn.Module):
    """Weigh the heads of every token by alpha (Eqs. 5, 6); dv^2 + C dv + dv + 1 parameters.

    Offers `alpha` (B, N, H) to a recorder.

    Args:
        dim: C, width of the tokens x.
        head_width: dv, width of one head's values.
        identity: weigh by H alpha with W^B = 0: a fresh module then leaves the heads as they are (exactly, up to 40
            heads), and every parameter learns from the second step on. Otherwise the paper's form, which divides the
            concatenated heads by about H.
        init: the host's rule for weight matrices.
    """

    def __init__(
        self,
        dim: int,
        head_width: int,
        *,
        identity: bool = False,
        init: InitRule = "trunc_normal",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.identity = identity
        self.head = nn.Linear(head_width, head_width, bias=False, device=device, dtype=dtype)
        self.context = nn.Linear(dim, head_width, bias=False, device=device, dtype=dtype)
        self.score = nn.Linear(head_width, 1, device=device, dtype=dtype)
        for linear in (self.head, self.context, self.score):
            init_matrix(linear.weight, init)
        if identity:
            nn.init.zeros_(self.score.weight)
        nn.init.zeros_(self.score.bias)

    def forward(self, heads: Tensor, x: Tensor) -> Tensor:
        """(B, H, N, dv) and (B, N, C) to (B, H, N, dv)."""
        weighed, alpha = ops.horizontal_attention(
            heads,
            x,
            head=self.head.weight,
            context=self.context.weight,
            score=self.score.weight,
            score_bias=self.score.bias,
            identity=self.identity,
        )
        self.record("alpha", alpha)
        return weighed

    def extra_repr(self) -> str:
        return f"identity={self.identity}"


class VerticalAttention(Recordable, nn.Module):
    """Gate the channels of every token by beta (Eqs. 7, 8); 3 C Da + C parameters where Y and x have one width.

    Offers `beta` (B, N, C) to a recorder.

    Args:
        dim: C, width of the tokens Y.
        hidden: Da, the squeezed width; a quarter of C, rounded down, where not given.
        context_dim: width of the tokens x, where it is not C (a module that widens its tokens).
        identity: gate by 2 beta with W^U = 0 and b^U = 0: a fresh module then leaves the tokens as they are.
        init: the host's rule for weight matrices.
    """

    def __init__(
        self,
        dim: int,
        *,
        hidden: int | None = None,
        context_dim: int | None = None,
        identity: bool = False,
        init: InitRule = "trunc_normal",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        hidden = hidden or max(1, dim // 4)
        self.identity = identity
        self.context = nn.Linear(context_dim or dim, hidden, bias=False, device=device, dtype=dtype)
        self.merged = nn.Linear(dim, hidden, bias=False, device=device, dtype=dtype)
        self.gate = nn.Linear(hidden, dim, device=device, dtype=dtype)
        for linear in (self.context, self.merged, self.gate):
            init_matrix(linear.weight, init)
        if identity:
            nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)

    def forward(self, merged: Tensor, x: Tensor) -> Tensor:
        """Y (B, N, C) and x (B, N, its own width) to (B, N, C)."""
        gated, beta = ops.vertical_attention(
            merged,
            x,
            context=self.context.weight,
            merged_weight=self.merged.weight,
            gate=self.gate.weight,
            gate_bias=self.gate.bias,
            identity=self.identity,
        )
        self.record("beta", beta)
        return gated

    def extra_repr(self) -> str:
        return f"identity={self.identity}"
