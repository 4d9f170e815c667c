"""The layers of BiXT: cross-attention with its feed-forward networks, then a transformer block over the latents.

All is pre-norm. `ls` is layer scale (with `layer_scale` alone), `dp` drop path; parameters have the published names.
"""

from __future__ import annotations

from functools import partial

from timm.layers import DropPath, LayerScale, Mlp
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from attngraft.mechanisms.bixt.layer import BidirectionalCrossAttention, OneSidedCrossAttention, head_width
from attngraft.models.bixt.tokenizers import LocalPatchInteraction

EPS = 1e-6  #: of every LayerNorm


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
    """Self-attention of the latents: timm's own block, so that what reads a ViT's blocks reads these.

    l = l + dp(ls1(attn(norm1(l))));  l = l + dp(ls2(mlp(norm2(l))))

    Raises:
        UsageError: the heads do not divide the width.
    """
    head_width(dim, heads)  # timm would only assert it
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


class CrossAttentionBlock(nn.Module):
    """Latents and tokens read each other at once, then each goes through its own feed-forward network.

        l', t' = attn(norm1_lat(l), norm1_pat(t))
        l = l + dp(ls1_lat(l'));  l = l + dp(ls2_lat(mlp_lat(norm2_lat(l))))
        t = t + dp(ls1_pat(t'));  [t = t + dp(ls_lpi(lpi(norm_lpi(t))))];  t = t + dp(ls2_pat(mlp_pat(norm2_pat(t))))

    Args:
        dim_latents, dim_tokens, dim_attention: widths; `heads` share the last.
        layer_scale: what the scales start from; None: no scales.
        local: let neighbouring tokens interact, by the convolutions in brackets. Where they stand is our reading, XCiT's
            place; BiXT does not say. They need to know the `grid`.

    Source: BiXT, section 3.2 and figure 2.
    """

    attention: type[nn.Module] = BidirectionalCrossAttention

    def __init__(
        self,
        dim_latents: int,
        dim_tokens: int,
        *,
        dim_attention: int,
        heads: int,
        mlp_ratio: float = 4.0,
        rv_bias: bool = True,
        layer_scale: float | None = None,
        drop_path: float = 0.0,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        local: bool = False,
    ) -> None:
        super().__init__()
        self.norm1_lat = nn.LayerNorm(dim_latents, eps=EPS)
        self.norm1_pat = nn.LayerNorm(dim_tokens, eps=EPS)
        self.attn = self.attention(
            dim_latents,
            dim_tokens,
            dim_attention=dim_attention,
            heads=heads,
            rv_bias=rv_bias,
            attn_drop=attn_drop,
            proj_drop=proj_drop,
        )
        self.ls1_lat = _scale(dim_latents, layer_scale)
        self.ls1_pat = _scale(dim_tokens, layer_scale)
        self.norm2_lat = nn.LayerNorm(dim_latents, eps=EPS)
        self.mlp_lat = Mlp(dim_latents, int(mlp_ratio * dim_latents), drop=proj_drop)
        self.ls2_lat = _scale(dim_latents, layer_scale)
        self.norm_lpi = nn.LayerNorm(dim_tokens, eps=EPS) if local else None
        self.lpi = LocalPatchInteraction(dim_tokens) if local else None
        self.ls_lpi = _scale(dim_tokens, layer_scale if local else None)
        self.norm2_pat = nn.LayerNorm(dim_tokens, eps=EPS)
        self.mlp_pat = Mlp(dim_tokens, int(mlp_ratio * dim_tokens), drop=proj_drop)
        self.ls2_pat = _scale(dim_tokens, layer_scale)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, latents: Tensor, tokens: Tensor, grid: tuple[int, int] | None = None) -> tuple[Tensor, Tensor]:
        """(B or 1, M, dim_latents) and (B, N, dim_tokens) to both anew, B of each.

        Args:
            grid: rows and columns of the tokens; needed with `local`.
        """
        latents, tokens = self.attend(latents, tokens)
        latents = latents + self.drop_path(self.ls2_lat(self.mlp_lat(self.norm2_lat(latents))))
        if self.lpi is not None and self.norm_lpi is not None:
            tokens = tokens + self.drop_path(self.ls_lpi(self.lpi(self.norm_lpi(tokens), grid)))
        tokens = tokens + self.drop_path(self.ls2_pat(self.mlp_pat(self.norm2_pat(tokens))))
        return latents, tokens

    def attend(self, latents: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The attention's part of `forward`, its residual sums included."""
        for_latents, for_tokens = self.attn(self.norm1_lat(latents), self.norm1_pat(tokens))
        return latents + self.drop_path(self.ls1_lat(for_latents)), tokens + self.drop_path(self.ls1_pat(for_tokens))


class OneSidedBlock(nn.Module):
    """Latents read the tokens, which stay what they are.

        l = l + dp(ls1_lat(attn(norm1_lat(l), norm1_pat(t))));  l = l + dp(ls2_lat(mlp_lat(norm2_lat(l))))

    Arguments as of `CrossAttentionBlock`.
    """

    def __init__(
        self,
        dim_latents: int,
        dim_tokens: int,
        *,
        dim_attention: int,
        heads: int,
        mlp_ratio: float = 4.0,
        rv_bias: bool = True,
        layer_scale: float | None = None,
        drop_path: float = 0.0,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm1_lat = nn.LayerNorm(dim_latents, eps=EPS)
        self.norm1_pat = nn.LayerNorm(dim_tokens, eps=EPS)
        self.attn = OneSidedCrossAttention(
            dim_latents,
            dim_tokens,
            dim_attention=dim_attention,
            heads=heads,
            rv_bias=rv_bias,
            attn_drop=attn_drop,
            proj_drop=proj_drop,
        )
        self.ls1_lat = _scale(dim_latents, layer_scale)
        self.norm2_lat = nn.LayerNorm(dim_latents, eps=EPS)
        self.mlp_lat = Mlp(dim_latents, int(mlp_ratio * dim_latents), drop=proj_drop)
        self.ls2_lat = _scale(dim_latents, layer_scale)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, latents: Tensor, tokens: Tensor) -> Tensor:
        """(B or 1, M, dim_latents) and (B, N, dim_tokens) to (B, M, dim_latents)."""
        found = self.attn(self.norm1_lat(latents), self.norm1_pat(tokens))
        latents = latents + self.drop_path(self.ls1_lat(found))
        return latents + self.drop_path(self.ls2_lat(self.mlp_lat(self.norm2_lat(latents))))


class Layer(nn.Module):
    """Cross-attention, then a block over the latents: l, t = cross(l, t); l = block(l).

    Args:
        dim_latents, dim_tokens, dim_attention: widths; the last of the cross-attention alone, self-attention is as wide as
            the latents.
        sa_heads, ca_heads: of self- and cross-attention. sa_drop_path, ca_drop_path: their drop paths.
        one_sided: tokens are read and not written, as in a last layer; its output has none.
        layer_scale: what the scales of all branches start from; None: no scales.
        local: see `CrossAttentionBlock`; a one-sided layer has none.
        two_way: the block in which tokens are written.
    """

    def __init__(
        self,
        dim_latents: int,
        dim_tokens: int,
        *,
        dim_attention: int,
        sa_heads: int,
        ca_heads: int,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        rv_bias: bool = True,
        layer_scale: float | None = None,
        sa_drop_path: float = 0.0,
        ca_drop_path: float = 0.0,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        one_sided: bool = False,
        local: bool = False,
        two_way: type[CrossAttentionBlock] = CrossAttentionBlock,
    ) -> None:
        super().__init__()
        cross = OneSidedBlock if one_sided else partial(two_way, local=local)
        self.cross_attention_latents_token = cross(
            dim_latents,
            dim_tokens,
            dim_attention=dim_attention,
            heads=ca_heads,
            mlp_ratio=mlp_ratio,
            rv_bias=rv_bias,
            layer_scale=layer_scale,
            drop_path=ca_drop_path,
            attn_drop=attn_drop,
            proj_drop=proj_drop,
        )
        self.self_attention_latents = latent_block(
            dim_latents,
            heads=sa_heads,
            mlp_ratio=mlp_ratio,
            qkv_bias=qkv_bias,
            layer_scale=layer_scale,
            drop_path=sa_drop_path,
            attn_drop=attn_drop,
            proj_drop=proj_drop,
        )
        self.one_sided = one_sided

    def forward(
        self, latents: Tensor, tokens: Tensor, grid: tuple[int, int] | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """(B or 1, M, dim_latents) and (B, N, dim_tokens) to both anew; None for the tokens of a one-sided layer."""
        if self.one_sided:
            return self.self_attention_latents(self.cross_attention_latents_token(latents, tokens)), None
        latents, tokens = self.cross_attention_latents_token(latents, tokens, grid)
        return self.self_attention_latents(latents), tokens


def _scale(dim: int, initial: float | None) -> nn.Module:
    return LayerScale(dim, init_values=initial) if initial else nn.Identity()
