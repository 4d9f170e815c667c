"""BiXT: a few latents and many tokens that refine each other, layer by layer.

    tokens  = patch_embed(images) + positions;   latents = a parameter that all images share
    latents, tokens = layer(latents, tokens)     `depth` times; the last layer reads the tokens only
    logits  = head(fc_norm(mean of the latents))

Attention costs latents times tokens, so that the work grows linearly with the tokens.

Source: M. Hiller, K. A. Ehinger, T. Drummond, "Perceiving Longer Sequences With Bi-Directional Cross-Attention
Transformers", 2024. Parameters have the names of the published checkpoints.
"""

from __future__ import annotations

from typing import cast

from timm.layers import calculate_drop_path_rates
from torch import Tensor, nn

from attngraft.errors import UsageError
from attngraft.models.bixt.initialization import Initialization
from attngraft.models.bixt.latent_model import LatentModel, Pool
from attngraft.models.bixt.layers import CrossAttentionBlock, Layer
from attngraft.models.bixt.positions import Positions
from attngraft.models.bixt.refusal import checkpoint_refusal_fn as checkpoint_refusal_fn  # beside the model's class
from attngraft.models.bixt.tokenizers import Tokenizer


class BiXT(LatentModel):
    """Images (B, in_chans, H, W) to logits (B, num_classes).

    Args:
        depth: number of layers. The last is one-sided: it updates the latents only.
        attention_dim: width of cross-attention; that of the latents where not given.
        num_heads: of self- and cross-attention; sa_heads, ca_heads: where they differ.
        init_values: what layer scale starts from; None: none.
        local: local patch interaction of the tokens in every layer that updates them (`layers.CrossAttentionBlock`).
        dense: without the last layer, see `drop_last_layer`.
        drop_path_rate: of the last layer, from 0 at the first on; sa_drop_path_rate, ca_drop_path_rate: of self- and
            cross-attention, where they differ.
        The others: as of `LatentModel`.

    Raises:
        UsageError: sizes that do not go together, or an unknown word.
    """

    two_way: type[CrossAttentionBlock] = CrossAttentionBlock  #: how latents and tokens read each other

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        *,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: Pool = "avg",
        patch_size: int = 16,
        stride: int | None = None,
        tokenizer: Tokenizer = "linear",
        positions: Positions = "static",
        position_dim: int = 32,
        temperature: float = 10000.0,
        num_latents: int = 64,
        embed_dim: int = 192,
        token_dim: int | None = None,
        attention_dim: int | None = None,
        depth: int = 12,
        num_heads: int = 6,
        sa_heads: int | None = None,
        ca_heads: int | None = None,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        rv_bias: bool = True,
        init_values: float | None = None,
        fc_norm: bool = True,
        local: bool = False,
        dense: bool = False,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        sa_drop_path_rate: float | None = None,
        ca_drop_path_rate: float | None = None,
        weight_init: Initialization = "jax",
    ) -> None:
        sa_rate = drop_path_rate if sa_drop_path_rate is None else sa_drop_path_rate
        ca_rate = drop_path_rate if ca_drop_path_rate is None else ca_drop_path_rate
        rates = zip(calculate_drop_path_rates(sa_rate, depth), calculate_drop_path_rates(ca_rate, depth), strict=True)
        blocks = nn.ModuleList(
            Layer(
                embed_dim,
                token_dim or embed_dim,
                dim_attention=attention_dim or embed_dim,
                sa_heads=sa_heads or num_heads,
                ca_heads=ca_heads or num_heads,
                mlp_ratio=mlp_ratio,
                qkv_bias=qkv_bias,
                rv_bias=rv_bias,
                layer_scale=init_values,
                sa_drop_path=sa_drop_path,
                ca_drop_path=ca_drop_path,
                attn_drop=attn_drop_rate,
                proj_drop=proj_drop_rate,
                one_sided=index == depth - 1,
                two_way=self.two_way,
                local=local,
            )
            for index, (sa_drop_path, ca_drop_path) in enumerate(rates)
        )
        super().__init__(
            img_size,
            blocks=blocks,
            in_chans=in_chans,
            num_classes=num_classes,
            global_pool=global_pool,
            patch_size=patch_size,
            stride=stride,
            tokenizer=tokenizer,
            positions=positions,
            position_dim=position_dim,
            temperature=temperature,
            num_latents=num_latents,
            embed_dim=embed_dim,
            token_dim=token_dim,
            fc_norm=fc_norm,
            drop_rate=drop_rate,
            weight_init=weight_init,
        )
        self.init_weights()
        if dense:
            self.drop_last_layer()

    def run_layer(
        self, index: int, latents: Tensor, tokens: Tensor, grid: tuple[int, int]
    ) -> tuple[Tensor, Tensor | None]:
        """Layer `index`; a one-sided one gives no tokens."""
        return cast(tuple[Tensor, Tensor | None], self.blocks[index](latents, tokens, grid))

    def token_layers(self) -> int:
        """How many layers update the tokens."""
        return sum(not layer.one_sided for layer in self.blocks)

    def drop_last_layer(self) -> None:
        """Take away the last layer, which does not update the tokens: what is left is for dense tasks.

        Train with 13 layers, then work with the tokens of the first 12 (`forward_tokens`).

        Raises:
            UsageError: it is gone already, or the only one.
        """
        if not self.blocks[-1].one_sided:
            raise UsageError("the last layer of this model updates its tokens, so there is no one-sided layer to drop")
        if len(self.blocks) == 1:
            raise UsageError("this model's only layer is its one-sided last one; give a depth of 2 or more")
        self.blocks = self.blocks[:-1]


def checkpoint_filter_fn(state_dict: dict[str, Tensor], model: LatentModel) -> dict[str, Tensor]:
    """Published weights, or ours, made to fit `model`: its grid's position code, and no more layers than it has where it
    went without its last one."""
    layers = len(model.blocks)
    dropped = f"blocks.{layers}." if isinstance(model, BiXT) and layers == model.token_layers() else None
    values = {name: value for name, value in state_dict.items() if dropped is None or not name.startswith(dropped)}
    model.fourier_pos_encode.adapt(values, "fourier_pos_encode.pos")
    return values
