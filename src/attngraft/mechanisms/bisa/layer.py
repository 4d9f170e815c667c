"""Bi-directional attention as a complete layer, for any network."""

from typing import Any, cast

from torch import Tensor, nn

from attngraft.attention import AttentionSite, Projected
from attngraft.attention.geometry import Projection
from attngraft.attention.mixing import MixContext, Mixed
from attngraft.errors import UsageError
from attngraft.mechanisms.bisa.branch import LINEAR, TokenProjection, activation, split_heads
from attngraft.mechanisms.bisa.mix import PAPER, BidirectionalMix, MixVariant
from attngraft.mechanisms.bisa.ops import check_bias


class BidirectionalAttention(AttentionSite, nn.Module):
    """Multi-head attention in both directions of one score matrix, from the projections to the output projection.

    Without self-attention (`MixVariant(weight=0)`, MISA) only the inverse branch has a value map.

    Args:
        dim: C.
        num_heads: H.
        key_dim: dk, width of queries and keys per head; C / H by default.
        value_dim: dv, width of each head's output; C / H by default.
        hyper_dim: s, width per head of q_hat and v_hat; dv by default.
        variant: one of the paper's forms.
        projection: biases of the linear maps, batch norms after them, and the activation before the output projection.
        scale: scale of the scores, 1 / sqrt(dk) by default.
        mlp_hidden: units of the MLP transform, see `MlpTransform`.
        attn_drop: dropout probability of attention weights, independent in each direction.
        options: `init`, the rule for weight matrices ("trunc_normal"), device and dtype.

    Raises:
        UsageError: H does not divide C and `key_dim` or `value_dim` is not given, or the order is sequential and H dv is
            not C.
    """

    fused_attn = True

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        key_dim: int | None = None,
        value_dim: int | None = None,
        hyper_dim: int | None = None,
        variant: MixVariant = PAPER,
        projection: Projection = LINEAR,
        scale: float | None = None,
        mlp_hidden: int | None = None,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__()
        if num_heads < 1 or (dim % num_heads and (key_dim is None or value_dim is None)):
            raise UsageError(f"the width {dim} is not divisible by {num_heads} heads; pass key_dim and value_dim")
        keys = dim // num_heads if key_dim is None else key_dim
        values = dim // num_heads if value_dim is None else value_dim
        if variant.order != "parallel" and num_heads * values != dim:
            raise UsageError(
                f"order={variant.order} applies the projections to merged heads, but {num_heads} heads of width {values} "
                f"do not add up to the width {dim}; use order=parallel"
            )
        self.num_heads = num_heads
        self.scale = keys**-0.5 if scale is None else scale
        options["projection"] = projection
        self.query = TokenProjection(dim, num_heads * keys, **options)
        self.key = TokenProjection(dim, num_heads * keys, **options)
        self.value = TokenProjection(dim, num_heads * values, **options) if variant.attends else None
        self.attn_drop = nn.Dropout(attn_drop)
        widths: dict[str, Any] = {
            "key_dim": keys,
            "value_dim": values,
            "hyper_dim": hyper_dim,
            "mlp_hidden": mlp_hidden,
        }
        self.both = BidirectionalMix(dim, num_heads, variant=variant, **widths, **options)
        self.act = activation(projection)
        self.proj = TokenProjection(num_heads * values, dim, **options)
        self.proj_drop = nn.Dropout(proj_drop)
        self.grafts = nn.ModuleDict()

    def forward(self, x: Tensor, *, bias: Tensor | None = None) -> Tensor:
        """Attend from (B, N, C) to (B, N, C).

        Args:
            bias: added to the scaled scores, (b, H or 1, N or 1, N or 1), where b divides B and entry i has bias i mod b;
                -inf excludes a pair from both directions. A boolean mask is True where a query may attend to a key.

        Raises:
            UsageError: the bias does not have this shape.
        """
        if bias is not None:
            check_bias(bias, (x.shape[0], self.num_heads, x.shape[1], x.shape[1]))
        return super().forward(x, bias=bias)

    def project(self, x: Tensor, *, bias: Tensor | None = None) -> Projected:
        q, k = split_heads(self.query(x), self.num_heads), split_heads(self.key(x), self.num_heads)
        return Projected(q, k, k if self.value is None else split_heads(self.value(x), self.num_heads), x, bias=bias)

    def mix(self, projected: Projected, again: Any) -> Mixed:
        return cast(Mixed, self.both(MixContext(self, projected, again)))

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        return cast(Tensor, self.proj(self.act(heads.transpose(1, 2).flatten(2))))

    def drop(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, self.proj_drop(tokens))

    def fused_bias(self, projected: Projected) -> Tensor | None:
        bias, batch = projected.bias, projected.q.shape[0]
        return bias if bias is None or bias.shape[0] in (1, batch) else bias.repeat(batch // bias.shape[0], 1, 1, 1)

    def shared_bias(self, projected: Projected) -> Tensor | None:
        return projected.bias

    def scores(self, projected: Projected) -> Tensor:
        return super().scores(projected.replace(bias=self.fused_bias(projected)))
