"""T2T-ViT: a tokens-to-token module, then a deep and narrow ViT with fixed sinusoid positions.

| names | width | blocks | heads | MLP | parameters |
|---|---|---|---|---|---|
| `t2t_vit_7`, `t2t_vit_12` | 256 | 7, 12 | 4 | 512 | 4.3M, 6.9M |
| `t2t_vit_14`, `t2t_vit_t_14` | 384 | 14 | 6 | 1152 | 21.5M |
| `t2t_vit_19`, `t2t_vit_t_19` | 448 | 19 | 7 | 1344 | 39.2M |
| `t2t_vit_24`, `t2t_vit_t_24` | 512 | 24 | 8 | 1536 | 64.1M |

The names with `_t_` have softmax attention in the tokens-to-token module, the others a performer. The backbone is of timm's
own `Block`, so adapters, exports and recordings read it as they read a ViT.

Source: L. Yuan et al., "Tokens-to-Token ViT: Training Vision Transformers from Scratch on ImageNet", 2021. No weights are
fetched; the authors' files load as they are (`weights=`, `--weights`), with `qk_scale`, as `T2TViT` says.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, cast

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import calculate_drop_path_rates, resample_abs_pos_embed, to_2tuple, trunc_normal_
from timm.models import (
    build_model_with_cfg,
    checkpoint,
    checkpoint_seq,
    generate_default_cfgs,
    register_model,
)
from timm.models._features import feature_take_indices  # what timm's own models use
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from attngraft.models.tokens_to_token import SPLITS, TokensToToken

Pool = Literal["token", "avg", ""]
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
    {
        name: {
            "num_classes": 1000,
            "input_size": (3, 224, 224),
            "fixed_input_size": True,
            "crop_pct": 0.9,
            "interpolation": "bicubic",
            "mean": IMAGENET_DEFAULT_MEAN,
            "std": IMAGENET_DEFAULT_STD,
            "classifier": "head",
        }
        for name in _VARIANTS
    }
)


class Scaled(nn.Module):
    """`factor * x`. As an attention's norm of queries it sets the scale of the scores, fused or not."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x

    def extra_repr(self) -> str:
        return f"{self.factor:g}"


class T2TViT(nn.Module):
    """Images (B, in_chans, H, W) to logits (B, num_classes).

        x = [cls_token; tokens_to_token(images)] + sinusoid positions
        x = x + attn(norm1(x));  x = x + mlp(norm2(x))      `depth` times
        logits = head(norm(x)[class token])

    Args:
        img_size: of the images, one number or (rows, columns); fixed, as the positions are.
        token_attention: "performer" or "transformer".
        token_width: width of the tokens in the tokens-to-token module.
        token_drop_rate: dropout of the performers; the transformers have none.
        splits: (kernel, stride, padding) of the three splits. For images of 32 pixels ((3, 1, 1), (3, 2, 1), (3, 2, 1))
            gives 64 tokens.
        qk_scale: what queries times keys are multiplied by in the backbone; None: head width ** -0.5. The authors' published
            weights were trained with embed_dim ** -0.5 of T2T-ViT-14 (384 ** -0.5 = 0.0510310363): give that to run them.
        global_pool: "token" (the class token), "avg" (the mean of the others), "" (all tokens, not pooled).

    Positions and the performers' random features are buffers: saved under the authors' names, never trained.
    """

    pos_embed: Tensor

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        *,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: Pool = "token",
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
        self.global_pool = _known(global_pool)
        self.num_features = self.head_hidden_size = self.embed_dim = embed_dim
        self.num_prefix_tokens = 1
        self.grad_checkpointing = False

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
                for rate in calculate_drop_path_rates(drop_path_rate, depth)
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
        self.head = _head(embed_dim, num_classes)
        trunc_normal_(self.cls_token, std=0.02)
        self.apply(_initialize)

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that are not decayed."""
        return {"cls_token"}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """How timm groups the parameters in layers."""
        return {"stem": r"^cls_token|^tokens_to_token", "blocks": [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))]}

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Compute the blocks again in the backward pass, to save memory."""
        self.grad_checkpointing = enable

    def get_classifier(self) -> nn.Module:
        """The head."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: Pool | None = None) -> None:
        """A new head for `num_classes`; 0: none."""
        self.num_classes = num_classes
        if global_pool is not None:
            self.global_pool = _known(global_pool)
        weight = self.cls_token
        self.head = _head(self.embed_dim, num_classes).to(device=weight.device, dtype=weight.dtype)
        self.head.train(self.training)

    def embed(self, x: Tensor) -> Tensor:
        """Images to the tokens (B, 1 + N, C) that enter the first block."""
        tokens = self.tokens_to_token(x)
        return cast(
            Tensor, self.pos_drop(torch.cat((self.cls_token.expand(x.shape[0], -1, -1), tokens), 1) + self.pos_embed)
        )

    def forward_features(self, x: Tensor) -> Tensor:
        """Images to normed tokens (B, 1 + N, C)."""
        x = self.embed(x)
        x = checkpoint_seq(self.blocks, x) if self.grad_checkpointing else self.blocks(x)
        return cast(Tensor, self.norm(x))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Tokens to logits, or to what enters the head."""
        if self.global_pool == "token":
            x = x[:, 0]
        elif self.global_pool == "avg":
            x = x[:, self.num_prefix_tokens :].mean(dim=1)
        x = self.head_drop(x)
        return x if pre_logits else cast(Tensor, self.head(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

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
        """What leaves some of the blocks, as timm's models give it: (tokens, intermediates), or the latter alone.

        Args:
            indices: the last so many blocks, those named, or all (None).
            return_prefix_tokens: give pairs (map, class token).
            norm: apply the final norm to intermediates too.
            stop_early: leave out the blocks above.
            output_fmt: "NCHW" or "NLC".

        Raises:
            ValueError: another format.
        """
        if output_fmt not in ("NCHW", "NLC"):
            raise ValueError(f"output_fmt is NCHW or NLC, not {output_fmt!r}")
        taken, last = feature_take_indices(len(self.blocks), indices)
        x = self.embed(x)
        found = []
        for index, block in enumerate(self.blocks[: last + 1] if stop_early else self.blocks):
            x = checkpoint(block, x) if self.grad_checkpointing else block(x)
            if index in taken:
                found.append(self.norm(x) if norm else x)
        maps = [self._unprefixed(each, output_fmt) for each in found]
        prefixes = [each[:, : self.num_prefix_tokens] for each in found]
        intermediates = list(zip(maps, prefixes, strict=True)) if return_prefix_tokens else maps
        return intermediates if intermediates_only else (self.norm(x), intermediates)

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Take away the blocks that `forward_intermediates` does not need for `indices`."""
        taken, last = feature_take_indices(len(self.blocks), indices)
        self.blocks = self.blocks[: last + 1]
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0, "")
        return cast(list[int], taken)

    def _unprefixed(self, tokens: Tensor, output_fmt: str) -> Tensor:
        tokens = tokens[:, self.num_prefix_tokens :]
        if output_fmt == "NLC":
            return tokens
        return tokens.transpose(1, 2).unflatten(2, self.tokens_to_token.grid_size).contiguous()


def sinusoids(positions: int, dim: int) -> Tensor:
    """Fixed positions (positions, dim): channel 2i is sin(p / 10000^(2i / dim)), channel 2i + 1 its cosine."""
    place = torch.arange(positions, dtype=torch.float64).unsqueeze(1)
    channel = torch.arange(dim)
    angle = place / 10000 ** (2 * torch.div(channel, 2, rounding_mode="floor") / dim)
    return torch.where(channel % 2 == 0, angle.sin(), angle.cos()).to(torch.get_default_dtype())


def checkpoint_filter_fn(state_dict: dict[str, Tensor], model: T2TViT) -> dict[str, Tensor]:
    """The authors' weights, or ours, made to fit `model`. Names are theirs already; positions are resampled to another grid.

    The grid of the file is square, as theirs are, unless it is the model's.
    """
    positions = state_dict.get("pos_embed")
    if positions is None or positions.shape == model.pos_embed.shape or positions.shape[-1] != model.embed_dim:
        return state_dict
    resampled = resample_abs_pos_embed(
        positions, list(model.tokens_to_token.grid_size), num_prefix_tokens=model.num_prefix_tokens
    )
    return {**state_dict, "pos_embed": resampled}


def _initialize(module: nn.Module) -> None:
    """Truncated normal of std 0.02 for every linear layer, zero biases (norms start so by themselves)."""
    if isinstance(module, nn.Linear):
        trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def _head(dim: int, classes: int) -> nn.Module:
    return nn.Linear(dim, classes) if classes > 0 else nn.Identity()


def _known(pool: Pool) -> Pool:
    if pool not in ("token", "avg", ""):
        raise ValueError(f"global_pool of T2T-ViT is 'token', 'avg' or '', not {pool!r}")
    return pool


def _create(name: str, *, pretrained: bool, **kwargs: Any) -> T2TViT:
    out_indices = kwargs.pop("out_indices", 3)
    return cast(
        T2TViT,
        build_model_with_cfg(
            T2TViT,
            name,
            pretrained,
            pretrained_filter_fn=checkpoint_filter_fn,
            feature_cfg={"out_indices": out_indices, "feature_cls": "getter"},
            **{**_VARIANTS[name], **kwargs},
        ),
    )


@register_model
def t2t_vit_7(pretrained: bool = False, **kwargs: Any) -> T2TViT:
    """T2T-ViT-7 with performers."""
    return _create("t2t_vit_7", pretrained=pretrained, **kwargs)


@register_model
def t2t_vit_12(pretrained: bool = False, **kwargs: Any) -> T2TViT:
    """T2T-ViT-12 with performers."""
    return _create("t2t_vit_12", pretrained=pretrained, **kwargs)


@register_model
def t2t_vit_14(pretrained: bool = False, **kwargs: Any) -> T2TViT:
    """T2T-ViT-14 with performers (HV Table 3)."""
    return _create("t2t_vit_14", pretrained=pretrained, **kwargs)


@register_model
def t2t_vit_19(pretrained: bool = False, **kwargs: Any) -> T2TViT:
    """T2T-ViT-19 with performers."""
    return _create("t2t_vit_19", pretrained=pretrained, **kwargs)


@register_model
def t2t_vit_24(pretrained: bool = False, **kwargs: Any) -> T2TViT:
    """T2T-ViT-24 with performers."""
    return _create("t2t_vit_24", pretrained=pretrained, **kwargs)


@register_model
def t2t_vit_t_14(pretrained: bool = False, **kwargs: Any) -> T2TViT:
    """T2T-ViT-14 with softmax attention in the tokens-to-token module."""
    return _create("t2t_vit_t_14", pretrained=pretrained, **kwargs)


@register_model
def t2t_vit_t_19(pretrained: bool = False, **kwargs: Any) -> T2TViT:
    """T2T-ViT-19 with softmax attention in the tokens-to-token module."""
    return _create("t2t_vit_t_19", pretrained=pretrained, **kwargs)


@register_model
def t2t_vit_t_24(pretrained: bool = False, **kwargs: Any) -> T2TViT:
    """T2T-ViT-24 with softmax attention in the tokens-to-token module."""
    return _create("t2t_vit_t_24", pretrained=pretrained, **kwargs)
