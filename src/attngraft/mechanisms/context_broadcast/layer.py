"""Context broadcasting as modules for any network, and attention with uniform heads.

The context modules take (B, N, C) or (B, H, W, C) and return the same shape; `prefix_tokens` leading tokens are neither
averaged nor changed (0, as in the paper, treats all tokens alike). Each records the tensor that it broadcasts (`context`) or
multiplies by (`gate`), with the token axes kept at size 1; recording does not change the output.
`factory` is device and dtype, as for `torch.nn.Linear`.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attngraft.attention import Recordable
from attngraft.attention.tracing import fx_leaf
from attngraft.errors import UsageError
from attngraft.mechanisms.common import InitRule, init_matrix
from attngraft.mechanisms.context_broadcast import ops
from attngraft.mechanisms.context_broadcast.eager import uniform_share
from attngraft.mechanisms.context_broadcast.reference import Context, context_of, excitation


class _ContextModule(Recordable, nn.Module):
    """Base class of the context modules."""

    context: Context = "mean"

    def __init__(self, *, prefix_tokens: int = 0) -> None:
        super().__init__()
        self.prefix_tokens = prefix_tokens

    def record_context(self, x: Tensor) -> None:
        if self.is_recording("context"):
            self.record("context", context_of(x, context=self.context, prefix=self.prefix_tokens))


class ContextBroadcast(_ContextModule):
    """CB: each token moves halfway to the context, (x_i + context) / 2 (Eq. 1). No parameters, never the identity.

    Records `context`.
    """

    def __init__(self, *, context: Context = "mean", prefix_tokens: int = 0) -> None:
        super().__init__(prefix_tokens=prefix_tokens)
        self.context = context

    def forward(self, x: Tensor) -> Tensor:
        self.record_context(x)
        return ops.context_broadcast(x, context=self.context, prefix=self.prefix_tokens)

    def extra_repr(self) -> str:
        return f"context={self.context}, prefix_tokens={self.prefix_tokens}"


class ScaledContextBroadcast(_ContextModule):
    """CB_S: x_i + Lambda * context, one Lambda (C) per site, without halving (Sec. 2.2).

    Records `context` and `scale`, which is Lambda.

    Args:
        dim: C.
        init: initial value of Lambda, which the paper does not specify; 0 starts as the identity, 1 as twice CB.
    """

    def __init__(
        self, dim: int, *, init: float = 0.0, context: Context = "mean", prefix_tokens: int = 0, **factory: Any
    ) -> None:
        super().__init__(prefix_tokens=prefix_tokens)
        self.context = context
        self.scale = nn.Parameter(torch.full((dim,), init, **factory))

    def forward(self, x: Tensor) -> Tensor:
        self.record_context(x)
        self.record("scale", self.scale)
        return ops.scaled_context_broadcast(x, self.scale, context=self.context, prefix=self.prefix_tokens)

    def extra_repr(self) -> str:
        return f"{self.scale.numel()}, context={self.context}, prefix_tokens={self.prefix_tokens}"


class ContextGate(_ContextModule):
    """CB_gate: x_i * (x_0 + 1), x_0 the class token (Appendix B.6). (B, N, C) only.

    Records `gate`, x_0 + 1.
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.is_recording("gate"):
            self.record("gate", x[:, :1] + 1)
        return ops.context_gate(x, prefix=self.prefix_tokens)


class ContextHybrid(_ContextModule):
    """CB_hybrid: x_i * x_0 + (x_i + mean x) / 2, x_0 the class token (Appendix B.6). (B, N, C) only.

    Records `gate`, x_0, and `context`, mean x.
    """

    def forward(self, x: Tensor) -> Tensor:
        if self.is_recording("gate"):
            self.record("gate", x[:, :1])
        self.record_context(x)
        return ops.context_hybrid(x, prefix=self.prefix_tokens)


class SqueezeExcitation(Recordable, nn.Module):
    """x * sigmoid(W2 relu(W1 mean x)) over tokens, the paper's comparison with CB (Tables 2, 3).

    Records `gate`, the factor of x.

    Args:
        dim: C.
        reduction: the hidden width is C // reduction, at least 1.
        bias: biases on W1 and W2, which start at zero.
    """

    def __init__(
        self, dim: int, *, reduction: int = 16, bias: bool = False, init: InitRule = "trunc_normal", **factory: Any
    ) -> None:
        super().__init__()
        hidden = max(1, dim // reduction)
        self.squeeze = nn.Linear(dim, hidden, bias=bias, **factory)
        self.excite = nn.Linear(hidden, dim, bias=bias, **factory)
        for linear in (self.squeeze, self.excite):
            init_matrix(linear.weight, init)
            if bias:
                nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        squeeze, excite = self.squeeze, self.excite
        if self.is_recording("gate"):
            self.record("gate", excitation(x, squeeze.weight, excite.weight, squeeze.bias, excite.bias))
        return ops.squeeze_excitation(x, squeeze.weight, excite.weight, squeeze.bias, excite.bias)


class UniformHeadAttention(nn.Module):
    """Multi-head self-attention whose last `uniform_heads` heads are uniform over all visible tokens (Table 1).

    Uniform heads have no scores and no q and k rows. The module replaces `timm.layers.Attention` (same arguments and
    forward). The models of Table 1 are configurations of `VisionTransformer(attn_layer=UniformHeadAttention)`: "replaced" as
    written here, "compensated" with `mlp_ratio=1600 / 384`, and "appended" with `embed_dim=448, num_heads=7`.

    The rows of `qkv` are q of the attending heads, k of the attending heads, v of all heads, heads contiguous.

    Args:
        dim: C.
        num_heads: H, uniform heads included.
        attn_head_dim: D, C / H by default.
        dim_out: width of the output, C by default.
        uniform_heads: number of uniform heads, 1..H.
        uniform_value: output of the uniform heads: the average of their values, or CB of them, (v_i + mean v) / 2.

    Raises:
        UsageError: H does not divide C and `attn_head_dim` is not given, or `uniform_heads` is not within 1..H.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        *,
        attn_head_dim: int | None = None,
        dim_out: int | None = None,
        qkv_bias: bool = False,
        qk_norm: bool = False,
        scale_norm: bool = False,
        proj_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        norm_layer: Callable[..., nn.Module] | None = None,
        uniform_heads: int = 1,
        uniform_value: Literal["average", "cb"] = "average",
        **factory: Any,
    ) -> None:
        super().__init__()
        if num_heads < 1 or (attn_head_dim is None and dim % num_heads):
            raise UsageError(f"the width {dim} is not divisible by {num_heads} heads; pass attn_head_dim")
        if not 1 <= uniform_heads <= num_heads:
            raise UsageError(
                f"uniform_heads must be between 1 and the number of heads, {num_heads}, not {uniform_heads}"
            )
        self.num_heads, self.uniform_heads, self.uniform_value = num_heads, uniform_heads, uniform_value
        self.head_dim = attn_head_dim or dim // num_heads
        self.attending = num_heads - uniform_heads
        self.scale = self.head_dim**-0.5
        norm_layer = norm_layer or nn.LayerNorm
        width = num_heads * self.head_dim
        rows = 2 * self.attending * self.head_dim + width
        self.qkv = nn.Linear(dim, rows, bias=qkv_bias, **factory)
        self.q_norm = norm_layer(self.head_dim, **factory) if qk_norm else nn.Identity()
        self.k_norm = norm_layer(self.head_dim, **factory) if qk_norm else nn.Identity()
        self.attn_drop = nn.Dropout(attn_drop)
        self.norm = norm_layer(width, **factory) if scale_norm else nn.Identity()
        self.proj = nn.Linear(width, dim_out or dim, bias=proj_bias, **factory)
        self.proj_drop = nn.Dropout(proj_drop)

    @fx_leaf
    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """Attend from (B, N, C) to (B, N, dim_out); masks as in `scaled_dot_product_attention`."""
        if is_causal:
            attn_mask = None
        width = self.attending * self.head_dim
        q, k, v, uniform = self.qkv(x).split((width, width, width, self.uniform_heads * self.head_dim), dim=-1)
        parts = [self._uniform(uniform, _visible(x, attn_mask, is_causal))]
        if self.attending:
            parts.insert(0, self._attended(q, k, v, attn_mask, is_causal))
        return self.proj_drop(self.proj(self.norm(torch.cat(parts, dim=-1))))

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor:
        q, k, v = (tokens.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for tokens in (q, k, v))
        if attn_mask is not None and attn_mask.ndim >= 3 and attn_mask.shape[-3] == self.num_heads > 1:
            attn_mask = attn_mask[..., : self.attending, :, :]
        heads = F.scaled_dot_product_attention(
            self.q_norm(q),
            self.k_norm(k),
            v,
            attn_mask=attn_mask,
            dropout_p=self.attn_drop.p if self.training else 0.0,
            is_causal=is_causal,
            scale=self.scale,
        )
        return heads.transpose(1, 2).flatten(2)

    def _uniform(self, values: Tensor, visible: Tensor | None) -> Tensor:
        """Average the values (B, N, heads * D) over the tokens visible to each token."""
        if visible is None:
            average = values.mean(dim=1, keepdim=True).expand_as(values)
        else:
            heads = values.unflatten(-1, (self.uniform_heads, self.head_dim)).transpose(1, 2)
            average = (uniform_share(visible, self.uniform_heads, values.dtype) @ heads).transpose(1, 2).flatten(2)
        return torch.lerp(values, average, 0.5) if self.uniform_value == "cb" else average


def _visible(x: Tensor, attn_mask: Tensor | None, is_causal: bool) -> Tensor | None:
    """Return the boolean mask of tokens visible to each token; None if all are visible."""
    if is_causal:
        return x.new_ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
    if attn_mask is None or attn_mask.dtype == torch.bool:
        return attn_mask
    return attn_mask != float("-inf")
