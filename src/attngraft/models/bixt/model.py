"""BiXT: a few latents and many tokens that refine each other, layer by layer.

    tokens  = patch_embed(images) + positions;   latents = a parameter, shared by all images
    latents, tokens = layer(latents, tokens)     `depth` times; the last layer does not update the tokens
    logits  = head(fc_norm(mean of the latents))

The cost of attention is latents times tokens, so it grows linearly with the number of tokens.

Source: M. Hiller, K. A. Ehinger, T. Drummond, "Perceiving Longer Sequences With Bi-Directional Cross-Attention
Transformers", 2024. Parameters have the names of the published checkpoints.
"""

from collections.abc import Mapping
from typing import Any, cast

from timm.layers import Attention
from torch import Tensor, nn

from attngraft.errors import UsageError
from attngraft.mechanisms.bixt.layer import BidirectionalCrossAttention, OneSidedCrossAttention
from attngraft.models.bixt.latent_model import LatentModel
from attngraft.models.bixt.layers import CrossAttentionBlock, Layer
from attngraft.models.bixt.registration import MODELS
from attngraft.models.timm_model import drop_path_rates


class BiXT(LatentModel):
    """BiXT classifier: images (B, in_chans, H, W) to logits (B, num_classes).

    Args:
        depth: number of layers. The last one updates only the latents.
        attention_dim: width of cross-attention; None: the width of the latents.
        num_heads: heads of self- and cross-attention.
        sa_heads, ca_heads: heads of self-attention and of cross-attention; None: `num_heads`.
        init_values: initial value of layer scale; None: no layer scale.
        local: local patch interaction of the tokens in every layer that updates them (`layers.CrossAttentionBlock`).
        dense: remove the last layer, see `drop_last_layer`.
        drop_path_rate: drop path rate of the last layer, rising from 0 at the first.
        sa_drop_path_rate, ca_drop_path_rate: rates of self- and of cross-attention; None: `drop_path_rate`.
        frame: other arguments of `LatentModel`.

    Raises:
        UsageError: sizes are inconsistent, or an option has an unknown value.
    """

    two_way: type[CrossAttentionBlock] = CrossAttentionBlock  #: block of the layers that update tokens

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        *,
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
        local: bool = False,
        dense: bool = False,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        sa_drop_path_rate: float | None = None,
        ca_drop_path_rate: float | None = None,
        **frame: Any,
    ) -> None:
        sa_rate = drop_path_rate if sa_drop_path_rate is None else sa_drop_path_rate
        ca_rate = drop_path_rate if ca_drop_path_rate is None else ca_drop_path_rate
        rates = zip(drop_path_rates(sa_rate, depth), drop_path_rates(ca_rate, depth), strict=True)
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
        super().__init__(img_size, blocks=blocks, embed_dim=embed_dim, token_dim=token_dim, **frame)
        self.init_weights()
        if dense:
            self.drop_last_layer()

    def run_layer(
        self, index: int, latents: Tensor, tokens: Tensor, grid: tuple[int, int]
    ) -> tuple[Tensor, Tensor | None]:
        """Run layer `index`; one-sided layers return None instead of tokens."""
        return cast(tuple[Tensor, Tensor | None], self.blocks[index](latents, tokens, grid))

    def token_layers(self) -> int:
        """Return the number of layers that update the tokens."""
        return sum(not layer.one_sided for layer in self.blocks)

    def unused_by_tokens(self) -> list[nn.Module]:
        """Return the modules that only update the latents of the last layer, which a model of the tokens does not use."""
        last: Any = self.blocks[-1]
        cross = last.cross_attention_latents_token
        scales = cross.ls1_lat, cross.ls2_lat
        return [cross.attn.proj_lat, cross.norm2_lat, cross.mlp_lat, *scales, last.self_attention_latents]

    def drop_last_layer(self) -> None:
        """Remove the last layer, which does not update the tokens, for dense tasks.

        Train with 13 layers, then use the tokens of the first 12 (`forward_tokens`).

        Raises:
            UsageError: the last layer was removed already, or is the only one.
        """
        if not self.blocks[-1].one_sided:
            raise UsageError(
                "the last layer of this model updates its tokens, so there is no one-sided layer to drop; call "
                "drop_last_layer only once"
            )
        if len(self.blocks) == 1:
            raise UsageError("the only layer of this model is one-sided and cannot be dropped; set depth to 2 or more")
        self.blocks = self.blocks[:-1]


def checkpoint_filter_fn(state_dict: dict[str, Tensor], model: LatentModel) -> dict[str, Tensor]:
    """Adapt the authors' weights, or ours, to `model`.

    Position codes of another grid are recomputed. If the model's last layer was removed, its weights are ignored.
    """
    layers = len(model.blocks)
    dropped = f"blocks.{layers}." if isinstance(model, BiXT) and layers == model.token_layers() else None
    values = {name: value for name, value in state_dict.items() if dropped is None or not name.startswith(dropped)}
    model.fourier_pos_encode.adapt(values, "fourier_pos_encode.pos")
    return values


def checkpoint_refusal_fn(architecture: str, arguments: Mapping[str, Any], model: LatentModel) -> str | None:
    """Return why weights of `architecture` do not fit `model` although all shapes match, or None.

    `arguments` are the arguments of the model with these weights.

    Shapes do not depend on the number of heads, which differs between the paper's models and the published weights. Shapes
    do not depend on stride and image size either, but weights may be used with another stride or image size.
    """
    if architecture not in MODELS:
        return None  # another family, whose parameter names differ
    settings = {**MODELS[architecture], **arguments}

    def first(*kinds: type[nn.Module]) -> Any:
        return next(module for module in model.modules() if isinstance(module, kinds))

    def heads(counts: Mapping[str, int]) -> str:
        latents, cross = counts["sa_heads"], counts["ca_heads"]
        return f"{cross} heads" if latents == cross else f"{cross} heads ({latents} among latents)"

    own = {
        "sa_heads": first(Attention).num_heads,
        "ca_heads": first(BidirectionalCrossAttention, OneSidedCrossAttention).heads,
    }
    stored = {name: settings.get(name) or settings["num_heads"] for name in own}
    if own == stored:
        return None
    return (
        f"whose attention has {heads(stored)}, and this model's has {heads(own)}: shapes would fit, but outputs would be "
        f"wrong. Create the model by that name, or with num_heads={settings['num_heads']}"
    )
