"""The published ELSA-Swin models by name.

| name | width | blocks | heads | group width | parameters |
|---|---|---|---|---|---|
| `elsa_swin_tiny` | 96 | 2, 2, 6, 2 | 3 to 24 | 4 | 29.1M |
| `elsa_swin_small` | 96 | 2, 2, 18, 2 | 3 to 24 | 8 | 52.9M |
| `elsa_swin_base` | 128 | 2, 2, 18, 2 | 4 to 32 | 8 | 92.7M |

All have neighborhoods of 7 x 7 and the ghost head's addend alone; they were trained with drop path 0.1, 0.3 and 0.5, and
base is to be evaluated with the averaged weights of its checkpoint. No weights are fetched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model

if TYPE_CHECKING:
    from attngraft.models.elsa.swin import ElsaSwin

VARIANTS: dict[str, dict[str, Any]] = {
    "elsa_swin_tiny": {"embed_dim": 96, "depths": (2, 2, 6, 2), "num_heads": (3, 6, 12, 24), "group_width": 4},
    "elsa_swin_small": {"embed_dim": 96, "depths": (2, 2, 18, 2), "num_heads": (3, 6, 12, 24)},
    "elsa_swin_base": {"embed_dim": 128, "depths": (2, 2, 18, 2), "num_heads": (4, 8, 16, 32)},
}
default_cfgs = generate_default_cfgs(
    {
        name: {
            "num_classes": 1000,
            "input_size": (3, 224, 224),
            "pool_size": (7, 7),
            "crop_pct": 0.9,
            "interpolation": "bicubic",
            "mean": IMAGENET_DEFAULT_MEAN,
            "std": IMAGENET_DEFAULT_STD,
            "first_conv": "patch_embed.proj",
            "classifier": "head",
        }
        for name in VARIANTS
    }
)


def _create(name: str, *, pretrained: bool, **kwargs: Any) -> ElsaSwin:
    from attngraft.models.elsa.swin import ElsaSwin, checkpoint_filter_fn  # here: a name costs no operations

    out_indices = kwargs.pop("out_indices", (0, 1, 2, 3))
    model = build_model_with_cfg(
        ElsaSwin,
        name,
        pretrained,
        pretrained_filter_fn=checkpoint_filter_fn,
        feature_cfg={"out_indices": out_indices, "feature_cls": "getter"},
        **{**VARIANTS[name], **kwargs},
    )
    return cast("ElsaSwin", model)


@register_model
def elsa_swin_tiny(pretrained: bool = False, **kwargs: Any) -> ElsaSwin:
    """ELSA-Swin-T."""
    return _create("elsa_swin_tiny", pretrained=pretrained, **kwargs)


@register_model
def elsa_swin_small(pretrained: bool = False, **kwargs: Any) -> ElsaSwin:
    """ELSA-Swin-S."""
    return _create("elsa_swin_small", pretrained=pretrained, **kwargs)


@register_model
def elsa_swin_base(pretrained: bool = False, **kwargs: Any) -> ElsaSwin:
    """ELSA-Swin-B."""
    return _create("elsa_swin_base", pretrained=pretrained, **kwargs)
