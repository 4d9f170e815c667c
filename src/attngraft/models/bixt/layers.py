"""Layers of BiXT: cross-attention with feed-forward networks, and a transformer block over latents.

All blocks are pre-norm. In formulas, `ls` is layer scale (only with `layer_scale`) and `dp` is drop path. Parameters have
the published names.
"""

from functools import partial
from typing import Any

from timm.layers import DropPath, LayerScale, Mlp
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from attngraft.errors import UsageError
from attngraft.mechanisms.bixt.layer import BidirectionalCrossAttention, OneSidedCrossAttention, head_width
from attngraft.models.bixt.tokenizers import LocalPatchInteraction

EPS = 1e-6  #: eps of every LayerNorm

MOST_LATENTS = 16_384  #: more fill the memory


def check_latents(count: int) -> None:
    """Check the number of latents; raises a UsageError if it is not from 1 to 16,384."""
    if not 1 <= count <= MOST_LATENTS:
        raise UsageError(f"num_latents of BiXT must be from 1 to {MOST_LATENTS:,}, not {count}")


def latent_block(
    dim: int,
    *,
    heads: int,
    mlp_ratio: float = 4.0,
    qkv_bias: bool = True,
    layer_scale: float | None = None,
    drop_path: float = 0.0,
    attn_drop: float = 0.0,
    proj_drop: float = 0.0,
) -> Block:
    """Create a self-attention block over the latents: timm's `Block`, which adapters treat like a ViT's.

        l = l + dp(ls1(attn(norm1(l))));  l = l + dp(ls2(mlp(norm2(l))))

    Raises:
        UsageError: the width is not divisible by the number of heads.
    """
    head_width(dim, heads)  # timm has only an assertion
    return Block(
        dim,
        heads,
        mlp_ratio=mlp_ratio,
        qkv_bias=qkv_bias,
        proj_drop=proj_drop,
        attn_drop=attn_drop,
        init_values=layer_scale,
        drop_path=drop_path,
        norm_layer=partial(nn.LayerNorm, eps=EPS),
    )


class OneSidedBlock(nn.Module):
    """Latents attend to the tokens, which do not change.

        l = l + dp(ls1_lat(attn(norm1_lat(l), norm1_pat(t))));  l = l + dp(ls2_lat(mlp_lat(norm2_lat(l))))

    Args:
        layer_scale: initial value of layer scale; None: no layer scale.
        attention: dim_attention, heads, rv_bias and attn_drop of `OneSidedCrossAttention`.
    """

    attention: type[nn.Module] = OneSidedCrossAttention
    updates_tokens = False

    def __init__(
        self,
        dim_latents: int,
        dim_tokens: int,
        *,
        mlp_ratio: float = 4.0,
        layer_scale: float | None = None,
        drop_path: float = 0.0,
        proj_drop: float = 0.0,
        **attention: Any,
    ) -> None:
        super().__init__()
        self.norm1_lat = nn.LayerNorm(dim_latents, eps=EPS)
        self.norm1_pat = nn.LayerNorm(dim_tokens, eps=EPS)
        self.attn = self.attention(dim_latents, dim_tokens, proj_drop=proj_drop, **attention)
        self.ls1_lat = _scale(dim_latents, layer_scale)
        if self.updates_tokens:  # registered here, which fixes the order of parameters
            self.ls1_pat = _scale(dim_tokens, layer_scale)
        self.norm2_lat = nn.LayerNorm(dim_latents, eps=EPS)
        self.mlp_lat = Mlp(dim_latents, int(mlp_ratio * dim_latents), drop=proj_drop)
        self.ls2_lat = _scale(dim_latents, layer_scale)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, latents: Tensor, tokens: Tensor) -> Any:
        """Update latents (B or 1, M, dim_latents) from tokens (B, N, dim_tokens): (B, M, dim_latents)."""
        found = self.attn(self.norm1_lat(latents), self.norm1_pat(tokens))
        return self.feed_forward(latents + self.drop_path(self.ls1_lat(found)))

    def feed_forward(self, latents: Tensor) -> Tensor:
        """Apply the feed-forward network of the latents and its residual connection."""
        return latents + self.drop_path(self.ls2_lat(self.mlp_lat(self.norm2_lat(latents))))


class CrossAttentionBlock(OneSidedBlock):
    """Latents and tokens attend to each other at once, then pass through separate feed-forward networks.

        l', t' = attn(norm1_lat(l), norm1_pat(t))
        l = l + dp(ls1_lat(l'));  l = l + dp(ls2_lat(mlp_lat(norm2_lat(l))))
        t = t + dp(ls1_pat(t'));  [t = t + dp(ls_lpi(lpi(norm_lpi(t))))];  t = t + dp(ls2_pat(mlp_pat(norm2_pat(t))))

    Args:
        local: add the local patch interaction in brackets: convolutions, which need the `grid`. BiXT does not specify its
            position; it is placed as in XCiT.
        others: further arguments of `OneSidedBlock`.

    Source: BiXT, section 3.2 and figure 2.
    """

    attention: type[nn.Module] = BidirectionalCrossAttention
    updates_tokens = True

    def __init__(
        self,
        dim_latents: int,
        dim_tokens: int,
        *,
        mlp_ratio: float = 4.0,
        layer_scale: float | None = None,
        proj_drop: float = 0.0,
        local: bool = False,
        **others: Any,
    ) -> None:
        shared: dict[str, Any] = {"mlp_ratio": mlp_ratio, "layer_scale": layer_scale, "proj_drop": proj_drop}
        super().__init__(dim_latents, dim_tokens, **shared, **others)
        self.norm_lpi = nn.LayerNorm(dim_tokens, eps=EPS) if local else None
        self.lpi = LocalPatchInteraction(dim_tokens) if local else None
        self.ls_lpi = _scale(dim_tokens, layer_scale if local else None)
        self.norm2_pat = nn.LayerNorm(dim_tokens, eps=EPS)
        self.mlp_pat = Mlp(dim_tokens, int(mlp_ratio * dim_tokens), drop=proj_drop)
        self.ls2_pat = _scale(dim_tokens, layer_scale)

    def forward(self, latents: Tensor, tokens: Tensor, grid: tuple[int, int] | None = None) -> tuple[Tensor, Tensor]:
        """Update latents (B or 1, M, dim_latents) and tokens (B, N, dim_tokens).

        Args:
            grid: (rows, columns) of the tokens; required with `local`.
        """
        latents, tokens = self.attend(latents, tokens)
        latents = self.feed_forward(latents)
        if self.lpi is not None and self.norm_lpi is not None:
            tokens = tokens + self.drop_path(self.ls_lpi(self.lpi(self.norm_lpi(tokens), grid)))
        tokens = tokens + self.drop_path(self.ls2_pat(self.mlp_pat(self.norm2_pat(tokens))))
        return latents, tokens

    def attend(self, latents: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the cross-attention and its residual connections."""
        for_latents, for_tokens = self.attn(self.norm1_lat(latents), self.norm1_pat(tokens))
        return latents + self.drop_path(self.ls1_lat(for_latents)), tokens + self.drop_path(self.ls1_pat(for_tokens))


class Layer(nn.Module):
    """Cross-attention, then a block over the latents: l, t = cross(l, t); l = block(l).

    Args:
        dim_latents, dim_tokens: widths of latents and tokens.
        dim_attention: width of cross-attention; self-attention is as wide as the latents.
        sa_heads, ca_heads: heads of self- and cross-attention.
        sa_drop_path, ca_drop_path: drop path rates of self- and cross-attention.
        one_sided: return None instead of updated tokens, as in the last layer of a model.
        local: see `CrossAttentionBlock`; not used in one-sided layers.
        two_way: class of the block that updates the tokens.
        branches: mlp_ratio, layer_scale, attn_drop and proj_drop, for cross-attention and block.
    """

    def __init__(
        self,
        dim_latents: int,
        dim_tokens: int,
        *,
        dim_attention: int,
        sa_heads: int,
        ca_heads: int,
        qkv_bias: bool = True,
        rv_bias: bool = True,
        sa_drop_path: float = 0.0,
        ca_drop_path: float = 0.0,
        one_sided: bool = False,
        local: bool = False,
        two_way: type[CrossAttentionBlock] = CrossAttentionBlock,
        **branches: Any,
    ) -> None:
        super().__init__()
        cross = OneSidedBlock if one_sided else partial(two_way, local=local)
        self.cross_attention_latents_token = cross(
            dim_latents,
            dim_tokens,
            dim_attention=dim_attention,
            heads=ca_heads,
            rv_bias=rv_bias,
            drop_path=ca_drop_path,
            **branches,
        )
        self.self_attention_latents = latent_block(
            dim_latents, heads=sa_heads, qkv_bias=qkv_bias, drop_path=sa_drop_path, **branches
        )
        self.one_sided = one_sided

    def forward(
        self, latents: Tensor, tokens: Tensor, grid: tuple[int, int] | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Update latents (B or 1, M, dim_latents) and tokens (B, N, dim_tokens); tokens are None if one-sided."""
        if self.one_sided:
            return self.self_attention_latents(self.cross_attention_latents_token(latents, tokens)), None
        latents, tokens = self.cross_attention_latents_token(latents, tokens, grid)
        return self.self_attention_latents(latents), tokens


def _scale(dim: int, initial: float | None) -> nn.Module:
    return LayerScale(dim, init_values=initial) if initial else nn.Identity()
