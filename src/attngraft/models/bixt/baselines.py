"""Baselines of BiXT, which share its base class and blocks but use other forms of cross-attention.

| names | class | parameters |
|---|---|---|
| `iterative_sa5_d8_k1`, `sa6_d7`, `sa6_d8`, `sa4_d12`, `sa1_d22`, `sa1_d24` | `Iterative` | 10.6M to 22.2M |
| `iterative_sa5_d8_k2`, ... | as above, with two cross-attentions | 11.0M to 22.6M |
| `sequential_d11`, `sequential_d12` | `Sequential` | 14.6M, 15.9M |

`sa5_d8` has 8 blocks with 5 self-attentions each. k1 (a dagger in the paper) has one cross-attention for all blocks;
k2 (a double dagger) has one for the first block and one for the other blocks. All have width 192, 64 latents and the
paper's 3 heads. Code and weights of the baselines are not published.

Source: BiXT, tables 1 and A1.
"""

from statistics import fmean
from typing import Any

from torch import Tensor, nn

from attngraft.errors import UsageError
from attngraft.mechanisms.bixt.layer import OneSidedCrossAttention, TokensAttend
from attngraft.models.bixt.latent_model import LatentModel, as_map
from attngraft.models.bixt.layers import CrossAttentionBlock, OneSidedBlock, latent_block
from attngraft.models.bixt.model import BiXT
from attngraft.models.bixt.model import checkpoint_filter_fn as checkpoint_filter_fn  # for `models.weights`
from attngraft.models.bixt.model import checkpoint_refusal_fn as checkpoint_refusal_fn
from attngraft.models.timm_model import drop_path_rates


class SequentialBlock(CrossAttentionBlock):
    """Latents attend to the tokens, then the tokens to the updated latents.

        l = l + dp(ls1_lat(attn(norm1_lat(l), norm1_pat(t))))
        t = t + dp(ls1_pat(attn_pat(norm1_pat(t), norm1_lat(l))))

    This computes two similarity matrices instead of one. The feed-forward networks and the arguments are those of
    `CrossAttentionBlock`.

    The paper describes "latents first query, followed by the tokens querying the latents", and its parameter count implies
    four norms. It does not specify which latents the tokens attend to; here they attend to the updated latents, after the
    same norm.
    """

    attention = OneSidedCrossAttention

    def __init__(self, dim_latents: int, dim_tokens: int, **settings: Any) -> None:
        super().__init__(dim_latents, dim_tokens, **settings)
        names = ("dim_attention", "heads", "rv_bias", "attn_drop", "proj_drop")
        shared = {name: settings[name] for name in names if name in settings}
        self.attn_pat = TokensAttend(dim_tokens, dim_latents, **shared)

    def attend(self, latents: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Apply both attentions and their residual connections, first to the latents, then to the tokens."""
        normed = self.norm1_pat(tokens)
        latents = latents + self.drop_path(self.ls1_lat(self.attn(self.norm1_lat(latents), normed)))
        return latents, tokens + self.drop_path(self.ls1_pat(self.attn_pat(normed, self.norm1_lat(latents))))


class Sequential(BiXT):
    """BiXT with a `SequentialBlock` in each layer except the last, which is one-sided as in BiXT.

    The arguments are those of `BiXT`.
    """

    two_way = SequentialBlock


class Iterative(LatentModel):
    """Latents attend to the same tokens repeatedly, as in a Perceiver; tokens are never updated.

        l = cross(l, t);  l = block(l), `self_layers` times        `depth` times

    Every block computes keys and values from the tokens again. A cross-attention shared by several blocks is stored once, in
    `cross_attention`, together with its norms and feed-forward network.

    Args:
        depth: number of blocks.
        self_layers: number of self-attentions per block; these are never shared.
        cross_sets: number of cross-attentions. Each of the first blocks has its own; the remaining blocks share the last
            cross-attention. The paper uses 1 and 2.
        attention_dim: width of cross-attention; None: the width of the latents.
        num_heads, mlp_ratio, qkv_bias, rv_bias, init_values, proj_drop_rate, attn_drop_rate: as in `BiXT`.
        drop_path_rate: drop path rate of the last self-attention, rising from 0 at the first. A cross-attention has the
            mean rate of the blocks that use it.
        frame: other arguments of `LatentModel`.

    Raises:
        UsageError: inconsistent sizes, or an unknown choice.
    """

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        *,
        embed_dim: int = 192,
        token_dim: int | None = None,
        attention_dim: int | None = None,
        depth: int = 8,
        self_layers: int = 5,
        cross_sets: int = 2,
        num_heads: int = 3,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        rv_bias: bool = True,
        init_values: float | None = None,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        **frame: Any,
    ) -> None:
        if self_layers < 1:  # otherwise latents never attend to each other
            raise UsageError(f"self_layers must be 1 or more, not {self_layers}")
        if not 1 <= cross_sets <= depth:
            raise UsageError(f"cross_sets must be between 1 and the depth ({depth}), not {cross_sets}")
        branches: dict[str, Any] = {
            "mlp_ratio": mlp_ratio,
            "layer_scale": init_values,
            "attn_drop": attn_drop_rate,
            "proj_drop": proj_drop_rate,
        }
        rates = iter(drop_path_rates(drop_path_rate, depth * self_layers))
        blocks = nn.ModuleList(
            nn.Sequential(
                *(
                    latent_block(embed_dim, heads=num_heads, qkv_bias=qkv_bias, drop_path=next(rates), **branches)
                    for _ in range(self_layers)
                )
            )
            for _ in range(depth)
        )
        super().__init__(img_size, blocks=blocks, embed_dim=embed_dim, token_dim=token_dim, **frame)
        rates_by_block = drop_path_rates(drop_path_rate, depth)
        served = [*([rate] for rate in rates_by_block[: cross_sets - 1]), rates_by_block[cross_sets - 1 :]]
        self.cross_attention = nn.ModuleList(
            OneSidedBlock(
                embed_dim,
                self.token_dim,
                dim_attention=attention_dim or embed_dim,
                heads=num_heads,
                rv_bias=rv_bias,
                drop_path=fmean(block_rates),
                **branches,
            )
            for block_rates in served
        )
        self.init_weights()

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return timm's patterns for grouping parameters by layer.

        A shared cross-attention is grouped with the first block that uses it.
        """
        groups = super().group_matcher(coarse)
        return {**groups, "blocks": [(r"^(?:blocks|cross_attention)\.(\d+)", None), *groups["blocks"][1:]]}

    def run_layer(
        self, index: int, latents: Tensor, tokens: Tensor, grid: tuple[int, int]
    ) -> tuple[Tensor, Tensor | None]:
        """Run block `index`; tokens are returned unchanged."""
        cross = self.cross_attention[min(index, len(self.cross_attention) - 1)]
        return self.blocks[index](cross(latents, tokens)), tokens

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Remove layers as in `LatentModel`, and the cross-attentions that only removed blocks use."""
        taken = super().prune_intermediate_layers(indices, prune_norm, prune_head)
        self.cross_attention = self.cross_attention[: len(self.blocks)]
        return taken

    def forward_tokens(self, images: Tensor) -> Tensor:
        """Return the map (B, token_dim, rows, columns) of the images' tokens, to which every block attends."""
        return as_map(self.embed(images), self.grid(images))
