"""The models of CB Table 1: a ViT-S one of whose heads is uniform (averages all values; no queries, no keys).

| name | what | parameters |
|---|---|---|
| `vit_small_patch16_224_cb_replaced` | the last of 6 heads is uniform | 21,459,304 |
| `vit_small_patch16_224_cb_compensated` | the same, MLP hidden width 1536 + 64 | 22,049,896 |
| `vit_small_patch16_224_cb_appended` | width 448, 7 heads of 64, the last one uniform | 29,164,712 |

The paper prints 21M, 22M and 29M and does not say how the size was kept or the head appended; these are the readings that
fit (a head's queries and keys cost as much as `head width` hidden units do).
"""

from __future__ import annotations

from typing import Any

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.vision_transformer import VisionTransformer

from attngraft.mechanisms.context_broadcast.layer import UniformHeadAttention

#: what timm says of a ViT that no weights are published of
CONFIG = {
    "num_classes": 1000,
    "input_size": (3, 224, 224),
    "crop_pct": 0.875,
    "interpolation": "bicubic",
    "fixed_input_size": True,
    "mean": IMAGENET_DEFAULT_MEAN,
    "std": IMAGENET_DEFAULT_STD,
    "first_conv": "patch_embed.proj",
    "classifier": "head",
}
default_cfgs = generate_default_cfgs(
    {f"vit_small_patch16_224_cb_{variant}": CONFIG for variant in ("replaced", "compensated", "appended")}
)


def _vit_small(variant: str, *, pretrained: bool, **kwargs: Any) -> VisionTransformer:
    if pretrained:
        raise ValueError(f"{variant} has no published weights; make it with pretrained=False")
    arguments: dict[str, Any] = {
        "patch_size": 16,
        "embed_dim": 384,
        "depth": 12,
        "num_heads": 6,
        "attn_layer": UniformHeadAttention,
    }
    return build_model_with_cfg(VisionTransformer, variant, False, **{**arguments, **kwargs})


@register_model
def vit_small_patch16_224_cb_replaced(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """ViT-S/16 whose last head is uniform (CB Table 1, "Replc.")."""
    return _vit_small("vit_small_patch16_224_cb_replaced", pretrained=pretrained, **kwargs)


@register_model
def vit_small_patch16_224_cb_compensated(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """The replaced model brought back to the host's size by 64 more hidden units (CB Table 1, "Comp.")."""
    arguments = {"mlp_ratio": (4 * 384 + 64) / 384, **kwargs}
    return _vit_small("vit_small_patch16_224_cb_compensated", pretrained=pretrained, **arguments)


@register_model
def vit_small_patch16_224_cb_appended(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """A seventh head, uniform, which widens the model to 448 (CB Table 1, "Att.")."""
    arguments = {"embed_dim": 448, "num_heads": 7, **kwargs}
    return _vit_small("vit_small_patch16_224_cb_appended", pretrained=pretrained, **arguments)
