"""An MLP-Mixer of any size by name: timm's own names fix patch size, width and depth."""

from __future__ import annotations

from typing import Any, cast

from timm.data import IMAGENET_INCEPTION_MEAN, IMAGENET_INCEPTION_STD
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.mlp_mixer import MlpMixer, checkpoint_filter_fn

default_cfgs = generate_default_cfgs(
    {
        "small_mixer": {
            "num_classes": 1000,
            "input_size": (3, 32, 32),
            "crop_pct": 0.875,
            "interpolation": "bicubic",
            "fixed_input_size": True,
            "mean": IMAGENET_INCEPTION_MEAN,
            "std": IMAGENET_INCEPTION_STD,
            "first_conv": "stem.proj",
            "classifier": "head",
        }
    }
)


@register_model
def small_mixer(pretrained: bool = False, **kwargs: Any) -> MlpMixer:
    """timm's MLP-Mixer with 4 blocks of width 64 on 8 x 8 patches of a 32 x 32 image; every argument of its class is free.

    Raises:
        ValueError: `pretrained`; there are no weights.
    """
    if pretrained:
        raise ValueError("small_mixer has no published weights; make it with pretrained=False")
    arguments: dict[str, Any] = {"img_size": 32, "patch_size": 4, "embed_dim": 64, "num_blocks": 4}
    model = build_model_with_cfg(
        MlpMixer, "small_mixer", False, pretrained_filter_fn=checkpoint_filter_fn, **(arguments | kwargs)
    )
    return cast(MlpMixer, model)
