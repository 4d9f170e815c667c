"""The paper's models by name.

| name | width | blocks | heads | group width | parameters |
|---|---|---|---|---|---|
| `elsa_swin_tiny` | 96 | 2, 2, 6, 2 | 3 to 24 | 4 | 29.1M |
| `elsa_swin_small` | 96 | 2, 2, 18, 2 | 3 to 24 | 8 | 52.9M |
| `elsa_swin_base` | 128 | 2, 2, 18, 2 | 4 to 32 | 8 | 92.7M |
| `elsa_volo_d1`, `_384` | 192, 384 | 4, 4, 8, 2 | 6, 12 | 16 | 27.0M |
| `elsa_volo_d2`, `_384` | 256, 512 | 6, 4, 10, 4 | 8, 16 | 16 | 59.5M |
| `elsa_volo_d3`, `_448` | 256, 512 | 8, 8, 16, 4 | 8, 16 | 16 | 87.5M |
| `elsa_volo_d4`, `_448` | 384, 768 | 8, 8, 16, 4 | 12, 16 | 16 | 194.5M |
| `elsa_volo_d5`, `_448`, `_512` | 384, 768 | 12, 12, 20, 4 | 12, 16 | 16 | 297.8M |

All have neighborhoods of 7 x 7 and the ghost head's addend alone. ELSA-Swin was trained with drop path 0.1, 0.3 and 0.5, and
base is to be evaluated with the averaged weights of its checkpoint. Of ELSA-VOLO neither code nor weights were published;
`volo.ElsaVolo` says what was chosen. Sizes behind a name are those of images to fine-tune on. No weights are fetched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model

if TYPE_CHECKING:
    from attngraft.models.elsa.swin import ElsaSwin
    from attngraft.models.elsa.volo import ElsaVolo

VARIANTS: dict[str, dict[str, Any]] = {
    "elsa_swin_tiny": {"embed_dim": 96, "depths": (2, 2, 6, 2), "num_heads": (3, 6, 12, 24), "group_width": 4},
    "elsa_swin_small": {"embed_dim": 96, "depths": (2, 2, 18, 2), "num_heads": (3, 6, 12, 24)},
    "elsa_swin_base": {"embed_dim": 128, "depths": (2, 2, 18, 2), "num_heads": (4, 8, 16, 32)},
}
VOLO_VARIANTS: dict[str, dict[str, Any]] = {
    "elsa_volo_d1": {"layers": (4, 4, 8, 2), "embed_dims": (192, 384, 384, 384), "num_heads": (6, 12, 12, 12)},
    "elsa_volo_d2": {"layers": (6, 4, 10, 4), "embed_dims": (256, 512, 512, 512), "num_heads": (8, 16, 16, 16)},
    "elsa_volo_d3": {"layers": (8, 8, 16, 4), "embed_dims": (256, 512, 512, 512), "num_heads": (8, 16, 16, 16)},
    "elsa_volo_d4": {"layers": (8, 8, 16, 4), "embed_dims": (384, 768, 768, 768), "num_heads": (12, 16, 16, 16)},
    "elsa_volo_d5": {
        "layers": (12, 12, 20, 4),
        "embed_dims": (384, 768, 768, 768),
        "num_heads": (12, 16, 16, 16),
        "mlp_ratio": 4.0,
        "stem_hidden_dim": 128,
    },
}
#: sizes of images to fine-tune on, as VOLO has them, and how much of an image is then seen
FINE_TUNED: dict[str, tuple[tuple[int, float], ...]] = {
    "elsa_volo_d1": ((384, 1.0),),
    "elsa_volo_d2": ((384, 1.0),),
    "elsa_volo_d3": ((448, 1.0),),
    "elsa_volo_d4": ((448, 1.15),),
    "elsa_volo_d5": ((448, 1.15), (512, 1.15)),
}
_SHARED: dict[str, Any] = {
    "num_classes": 1000,
    "interpolation": "bicubic",
    "mean": IMAGENET_DEFAULT_MEAN,
    "std": IMAGENET_DEFAULT_STD,
}


def _volo_config(size: int = 224, crop: float = 0.96) -> dict[str, Any]:
    return {
        **_SHARED,
        "input_size": (3, size, size),
        "pool_size": None,
        "crop_pct": crop,
        "fixed_input_size": True,
        "first_conv": "patch_embed.conv.0",
        "classifier": ("head", "aux_head"),
    }


_SWIN_CONFIG = {
    **_SHARED,
    "input_size": (3, 224, 224),
    "pool_size": (7, 7),
    "crop_pct": 0.9,
    "first_conv": "patch_embed.proj",
    "classifier": "head",
}
default_cfgs = generate_default_cfgs(
    {
        **dict.fromkeys(VARIANTS, _SWIN_CONFIG),
        **{name: _volo_config() for name in VOLO_VARIANTS},
        **{f"{name}_{size}": _volo_config(size, crop) for name, sizes in FINE_TUNED.items() for size, crop in sizes},
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


def _create_volo(name: str, *, pretrained: bool, **kwargs: Any) -> ElsaVolo:
    from attngraft.models.elsa.volo import ElsaVolo

    variant = "_".join(name.split("_")[:3])
    size = default_cfgs[name].default.input_size[-1]
    model = build_model_with_cfg(
        ElsaVolo,
        name,
        pretrained,
        feature_cfg={"out_indices": kwargs.pop("out_indices", 3), "feature_cls": "getter"},
        **{"img_size": size, **VOLO_VARIANTS[variant], **kwargs},
    )
    return cast("ElsaVolo", model)


@register_model
def elsa_volo_d1(pretrained: bool = False, **kwargs: Any) -> ElsaVolo:
    """ELSA-VOLO-D1."""
    return _create_volo("elsa_volo_d1", pretrained=pretrained, **kwargs)


@register_model
def elsa_volo_d1_384(pretrained: bool = False, **kwargs: Any) -> ElsaVolo:
    """ELSA-VOLO-D1, for images of 384 pixels."""
    return _create_volo("elsa_volo_d1_384", pretrained=pretrained, **kwargs)


@register_model
def elsa_volo_d2(pretrained: bool = False, **kwargs: Any) -> ElsaVolo:
    """ELSA-VOLO-D2."""
    return _create_volo("elsa_volo_d2", pretrained=pretrained, **kwargs)


@register_model
def elsa_volo_d2_384(pretrained: bool = False, **kwargs: Any) -> ElsaVolo:
    """ELSA-VOLO-D2, for images of 384 pixels."""
    return _create_volo("elsa_volo_d2_384", pretrained=pretrained, **kwargs)


@register_model
def elsa_volo_d3(pretrained: bool = False, **kwargs: Any) -> ElsaVolo:
    """ELSA-VOLO-D3."""
    return _create_volo("elsa_volo_d3", pretrained=pretrained, **kwargs)


@register_model
def elsa_volo_d3_448(pretrained: bool = False, **kwargs: Any) -> ElsaVolo:
    """ELSA-VOLO-D3, for images of 448 pixels."""
    return _create_volo("elsa_volo_d3_448", pretrained=pretrained, **kwargs)


@register_model
def elsa_volo_d4(pretrained: bool = False, **kwargs: Any) -> ElsaVolo:
    """ELSA-VOLO-D4."""
    return _create_volo("elsa_volo_d4", pretrained=pretrained, **kwargs)


@register_model
def elsa_volo_d4_448(pretrained: bool = False, **kwargs: Any) -> ElsaVolo:
    """ELSA-VOLO-D4, for images of 448 pixels."""
    return _create_volo("elsa_volo_d4_448", pretrained=pretrained, **kwargs)


@register_model
def elsa_volo_d5(pretrained: bool = False, **kwargs: Any) -> ElsaVolo:
    """ELSA-VOLO-D5."""
    return _create_volo("elsa_volo_d5", pretrained=pretrained, **kwargs)


@register_model
def elsa_volo_d5_448(pretrained: bool = False, **kwargs: Any) -> ElsaVolo:
    """ELSA-VOLO-D5, for images of 448 pixels."""
    return _create_volo("elsa_volo_d5_448", pretrained=pretrained, **kwargs)


@register_model
def elsa_volo_d5_512(pretrained: bool = False, **kwargs: Any) -> ElsaVolo:
    """ELSA-VOLO-D5, for images of 512 pixels."""
    return _create_volo("elsa_volo_d5_512", pretrained=pretrained, **kwargs)
