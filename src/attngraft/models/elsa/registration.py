"""Names of the ELSA paper's models.

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

All have neighborhoods of 7 x 7 and a ghost head with only the addend. ELSA-Swin was trained with drop path 0.1, 0.3 and 0.5;
evaluate base with the averaged weights of its checkpoint. Neither code nor weights of ELSA-VOLO were published; see
`volo.ElsaVolo` for our choices. The number after a name is the image size for fine-tuning. No weights are downloaded.
"""

from typing import Any

from timm.models import generate_default_cfgs

from attngraft.models.timm_model import config, register

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
#: variant -> image sizes for fine-tuning and their crop ratios in evaluation, as in VOLO
FINE_TUNED: dict[str, tuple[tuple[int, float], ...]] = {
    "elsa_volo_d1": ((384, 1.0),),
    "elsa_volo_d2": ((384, 1.0),),
    "elsa_volo_d3": ((448, 1.0),),
    "elsa_volo_d4": ((448, 1.15),),
    "elsa_volo_d5": ((448, 1.15), (512, 1.15)),
}
#: name -> (variant, image size, crop ratio)
_VOLO_NAMES = {
    **{name: (name, 224, 0.96) for name in VOLO_VARIANTS},
    **{f"{name}_{size}": (name, size, crop) for name, sizes in FINE_TUNED.items() for size, crop in sizes},
}
_VOLO: dict[str, Any] = {"pool_size": None, "fixed_input_size": True, "first_conv": "patch_embed.conv.0"}
_SWIN_CONFIG = config(pool_size=(7, 7), crop_pct=0.9, first_conv="patch_embed.proj")
default_cfgs = generate_default_cfgs(
    {
        **dict.fromkeys(VARIANTS, _SWIN_CONFIG),
        **{
            name: config(size, crop_pct=crop, classifier=("head", "aux_head"), **_VOLO)
            for name, (_, size, crop) in _VOLO_NAMES.items()
        },
    }
)
for _name, _arguments in VARIANTS.items():
    register(_name, "attngraft.models.elsa.swin:ElsaSwin", _arguments, module=__name__, out_indices=(0, 1, 2, 3))
for _name, (_variant, _size, _) in _VOLO_NAMES.items():
    _arguments = {"img_size": _size, **VOLO_VARIANTS[_variant]}
    register(_name, "attngraft.models.elsa.volo:ElsaVolo", _arguments, module=__name__)
