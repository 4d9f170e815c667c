"""T2T-ViT: a tokens-to-token module, then a deep and narrow ViT with fixed sinusoid positions.

| names | width | blocks | heads | MLP | parameters |
|---|---|---|---|---|---|
| `t2t_vit_7`, `t2t_vit_12` | 256 | 7, 12 | 4 | 512 | 4.3M, 6.9M |
| `t2t_vit_14`, `t2t_vit_t_14` | 384 | 14 | 6 | 1152 | 21.5M |
| `t2t_vit_19`, `t2t_vit_t_19` | 448 | 19 | 7 | 1344 | 39.2M |
| `t2t_vit_24`, `t2t_vit_t_24` | 512 | 24 | 8 | 1536 | 64.1M |

The names with `_t_` have softmax attention in the tokens-to-token module, the others a performer. The backbone consists of
timm's own `Block`, so adapters, exports and recordings treat it like a ViT.

Source: L. Yuan et al., "Tokens-to-Token ViT: Training Vision Transformers from Scratch on ImageNet", 2021. No weights are
downloaded; the authors' files load unchanged (`weights=`, `--weights`) with their `qk_scale`, see `T2TViT`.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import torch
from timm.layers import resample_abs_pos_embed, to_2tuple, trunc_normal_
from timm.models import checkpoint, checkpoint_seq, generate_default_cfgs
from timm.models._features import feature_take_indices  # private, but used by all models in timm
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from attngraft.models.timm_model import TimmModel, config, drop_path_rates, register
from attngraft.models.tokens_to_token import SPLITS, TokensToToken

_VARIANTS: dict[str, dict[str, Any]] = {
    "t2t_vit_7": {"embed_dim": 256, "depth": 7, "num_heads": 4, "mlp_ratio": 2.0},
    "t2t_vit_12": {"embed_dim": 256, "depth": 12, "num_heads": 4, "mlp_ratio": 2.0},
    "t2t_vit_14": {"embed_dim": 384, "depth": 14, "num_heads": 6, "mlp_ratio": 3.0},
    "t2t_vit_19": {"embed_dim": 448, "depth": 19, "num_heads": 7, "mlp_ratio": 3.0},
    "t2t_vit_24": {"embed_dim": 512, "depth": 24, "num_heads": 8, "mlp_ratio": 3.0},
}
_VARIANTS |= {
    f"t2t_vit_t_{depth}": {**_VARIANTS[f"t2t_vit_{depth}"], "token_attention": "transformer"} for depth in (14, 19, 24)
}

default_cfgs = generate_default_cfgs(
    dict.fromkeys(_VARIANTS, config(fixed_input_size=True, crop_pct=0.9, first_conv=()))
)
for _name, _arguments in _VARIANTS.items():
    register(_name, f"{__name__}:T2TViT", _arguments, module=__name__)


class Scaled(nn.Module):
    """Multiply by a constant; used as the query norm of attention, to scale its scores."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x

    def extra_repr(self) -> str:
        return f"{self.factor:g}"


class T2TViT(TimmModel):
    """T2T-ViT classifier: images (B, in_chans, H, W) to logits (B, num_classes).

        x = [cls_token; tokens_to_token(images)] + sinusoid positions
        x = x + attn(norm1(x));  x = x + mlp(norm2(x))      `depth` times
        logits = head(norm(x)[class token])

    Args:
        img_size: image size, one number or (rows, columns); fixed, because the positions are fixed.
        token_attention: "performer" or "transformer".
        token_width: width of the tokens in the tokens-to-token module.
        token_drop_rate: dropout in `TokenPerformer`; `TokenTransformer` has none.
        splits: (kernel, stride, padding) of the three splits; ((3, 1, 1), (3, 2, 1), (3, 2, 1)) splits an image of 32 x 32
            pixels into 64 tokens.
        qk_scale: factor of the scores in the backbone; None: head width ** -0.5. The authors' published weights require
            384 ** -0.5 = 0.0510310363, with which they were trained (embed_dim ** -0.5 of T2T-ViT-14).
        global_pool: "token" (the class token), "avg" (the mean of the other tokens), "" (all tokens, not pooled).

    Positions and the performers' random features are buffers: saved under the authors' names, never trained.
    """

    pools = ("token", "avg", "")
    pos_embed: Tensor

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        *,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "token",
        embed_dim: int = 384,
        depth: int = 14,
        num_heads: int = 6,
        mlp_ratio: float = 3.0,
        qkv_bias: bool = False,
        qk_scale: float | None = None,
        token_attention: str = "performer",
        token_width: int = 64,
        token_drop_rate: float = 0.1,
        splits: Sequence[Sequence[int]] = SPLITS,
        drop_rate: float = 0.0,
        pos_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.num_classes, self.in_chans = num_classes, in_chans
        self.global_pool = self.check_pool(global_pool)
        self.num_features = self.head_hidden_size = self.embed_dim = embed_dim
        self.num_prefix_tokens = 1

        self.tokens_to_token = TokensToToken(
            tuple(to_2tuple(img_size)),
            in_chans=in_chans,
            embed_dim=embed_dim,
            token_width=token_width,
            splits=splits,
            attention=token_attention,
            drop=token_drop_rate,
        )
        rows, columns = self.tokens_to_token.grid_size
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        self.register_buffer("pos_embed", sinusoids(rows * columns + 1, embed_dim).unsqueeze(0))
        self.pos_drop = nn.Dropout(pos_drop_rate)
        self.blocks = nn.Sequential(
            *(
                Block(
                    embed_dim,
                    num_heads,
                    mlp_ratio=mlp_ratio,
                    qkv_bias=qkv_bias,
                    proj_drop=proj_drop_rate,
                    attn_drop=attn_drop_rate,
                    drop_path=rate,
                    norm_layer=partial(nn.LayerNorm, eps=1e-5),
                )
                for rate in drop_path_rates(drop_path_rate, depth)
            )
        )
        if qk_scale is not None:
            for block in cast(Any, self.blocks):
                block.attn.q_norm = Scaled(qk_scale / block.attn.scale)
        stride = self.tokens_to_token.stride
        self.feature_info = [
            {"module": f"blocks.{index}", "num_chs": embed_dim, "reduction": stride} for index in range(depth)
        ]
        self.norm: nn.Module = nn.LayerNorm(embed_dim)
        self.head_drop = nn.Dropout(drop_rate)
        self.head = self.make_head(num_classes)
        trunc_normal_(self.cls_token, std=0.02)
        self.apply(_initialize)

    def no_weight_decay(self) -> set[str]:
        """Return names of parameters without weight decay."""
        return {"cls_token"}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return timm's patterns for grouping parameters by layer."""
        return {"stem": r"^cls_token|^tokens_to_token", "blocks": [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))]}

    def embed(self, x: Tensor) -> Tensor:
        """Return the input tokens (B, 1 + N, C) of the first block."""
        tokens = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), self.tokens_to_token(x)), 1)
        return cast(Tensor, self.pos_drop(tokens + self.pos_embed))

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the normalized tokens (B, 1 + N, C) after the last block."""
        x = self.embed(x)
        x = checkpoint_seq(self.blocks, x) if self.grad_checkpointing else self.blocks(x)
        return cast(Tensor, self.norm(x))

    def pooled(self, x: Tensor) -> Tensor:
        """Return the class token, the mean of the other tokens, or all tokens."""
        if self.global_pool == "token":
            return x[:, 0]
        return x[:, self.num_prefix_tokens :].mean(dim=1) if self.global_pool == "avg" else x

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """Return (tokens, outputs of some blocks), as timm's models do.

        Args:
            indices: a number n for the last n blocks, a list of blocks, or None for all.
            return_prefix_tokens: return pairs (map, class token).
            norm: apply the final norm to intermediates too.
            stop_early: stop after the last block in `indices`.
            output_fmt: "NCHW" or "NLC".
            intermediates_only: return only the outputs of the blocks.

        Raises:
            ValueError: `output_fmt` is unknown.
        """
        if output_fmt not in ("NCHW", "NLC"):
            raise ValueError(f"output_fmt must be NCHW or NLC, not {output_fmt!r}")
        taken, last = feature_take_indices(len(self.blocks), indices)
        x = self.embed(x)
        found = []
        for index, block in enumerate(self.blocks[: last + 1] if stop_early else self.blocks):
            x = checkpoint(block, x) if self.grad_checkpointing else block(x)
            if index in taken:
                found.append(self.norm(x) if norm else x)
        maps, prefixes = [each[:, self.num_prefix_tokens :] for each in found], [each[:, :1] for each in found]
        if output_fmt == "NCHW":
            grid = self.tokens_to_token.grid_size
            maps = [each.transpose(1, 2).unflatten(2, grid).contiguous() for each in maps]
        intermediates = list(zip(maps, prefixes, strict=True)) if return_prefix_tokens else maps
        return intermediates if intermediates_only else (self.norm(x), intermediates)


def sinusoids(positions: int, dim: int) -> Tensor:
    """Return sinusoidal position embeddings (positions, dim).

    Channel 2i is sin(p / 10000^(2i / dim)), channel 2i + 1 is cos of the same angle.
    """
    position = torch.arange(positions, dtype=torch.float64).unsqueeze(1)
    channel = torch.arange(dim)
    angle = position / 10000 ** (2 * torch.div(channel, 2, rounding_mode="floor") / dim)
    return torch.where(channel % 2 == 0, angle.sin(), angle.cos()).to(torch.get_default_dtype())


def checkpoint_filter_fn(state_dict: dict[str, Tensor], model: T2TViT) -> dict[str, Tensor]:
    """Adapt the authors' weights, or ours, to `model` by resampling positions to its grid.

    The file's grid must be square, as in the authors' files, or the same as the model's.
    """
    positions = state_dict.get("pos_embed")
    if positions is None or positions.shape == model.pos_embed.shape or positions.shape[-1] != model.embed_dim:
        return state_dict
    resampled = resample_abs_pos_embed(
        positions, list(model.tokens_to_token.grid_size), num_prefix_tokens=model.num_prefix_tokens
    )
    return {**state_dict, "pos_embed": resampled}


def _initialize(module: nn.Module) -> None:
    """Initialize a linear layer: weights from a truncated normal of std 0.02, biases 0."""
    if isinstance(module, nn.Linear):
        trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
