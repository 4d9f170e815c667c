"""Horizontal and vertical attention as modules.

`factory` is device and dtype, as for `torch.nn.Linear`.
"""

from typing import Any

from torch import Tensor, nn

from attngraft.attention import Recordable
from attngraft.mechanisms.common import InitRule, init_matrix
from attngraft.mechanisms.horizontal_vertical import ops


class HorizontalAttention(Recordable, nn.Module):
    """Weight the heads of every token by alpha (Eqs. 5, 6); dv^2 + C dv + dv + 1 parameters.

    Records `alpha` (B, N, H).

    Args:
        dim: C, width of the tokens x.
        head_width: dv, width of one head's values.
        identity: weight by H alpha with W^B = 0: a new module then leaves the heads unchanged (exactly, up to 40 heads),
            and every parameter has a gradient from the second step on. False uses the paper's form, which divides the
            concatenated heads by about H.
        init: the host's rule for weight matrices.
    """

    def __init__(
        self, dim: int, head_width: int, *, identity: bool = False, init: InitRule = "trunc_normal", **factory: Any
    ) -> None:
        super().__init__()
        self.identity = identity
        self.head = nn.Linear(head_width, head_width, bias=False, **factory)
        self.context = nn.Linear(dim, head_width, bias=False, **factory)
        self.score = nn.Linear(head_width, 1, **factory)
        for linear in (self.head, self.context, self.score):
            init_matrix(linear.weight, init)
        if identity:
            nn.init.zeros_(self.score.weight)
        nn.init.zeros_(self.score.bias)

    def forward(self, heads: Tensor, x: Tensor) -> Tensor:
        """Weight heads (B, H, N, dv) by x (B, N, C)."""
        weights = self.head.weight, self.context.weight, self.score.weight, self.score.bias
        weighted, alpha = ops.horizontal_attention(heads, x, *weights, identity=self.identity)
        self.record("alpha", alpha)
        return weighted

    def extra_repr(self) -> str:
        return f"identity={self.identity}"


class VerticalAttention(Recordable, nn.Module):
    """Gate the channels of every token by beta (Eqs. 7, 8); 3 C Da + C parameters if Y and x have the same width.

    Records `beta` (B, N, C).

    Args:
        dim: C, width of the tokens Y.
        hidden: Da, the squeezed width; by default a quarter of C, rounded down.
        context_dim: width of the tokens x, if it is not C (in a module that widens its tokens).
        identity: gate by 2 beta with W^U = 0 and b^U = 0: a new module then leaves the tokens unchanged.
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
        **factory: Any,
    ) -> None:
        super().__init__()
        hidden = hidden or max(1, dim // 4)
        self.identity = identity
        self.context = nn.Linear(context_dim or dim, hidden, bias=False, **factory)
        self.merged = nn.Linear(dim, hidden, bias=False, **factory)
        self.gate = nn.Linear(hidden, dim, **factory)
        for linear in (self.context, self.merged, self.gate):
            init_matrix(linear.weight, init)
        if identity:
            nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)

    def forward(self, merged: Tensor, x: Tensor) -> Tensor:
        """Gate Y (B, N, C) by x (B, N, context_dim)."""
        weights = self.context.weight, self.merged.weight, self.gate.weight, self.gate.bias
        gated, beta = ops.vertical_attention(merged, x, *weights, identity=self.identity)
        self.record("beta", beta)
        return gated

    def extra_repr(self) -> str:
        return f"identity={self.identity}"
