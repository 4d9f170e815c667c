"""Names of the published BiXT models and the paper's baselines (`baselines`).

A name contains the width (`ti` 192, `ed256`, `sm` 384; with `LS` layer scale of 1e-5), the number of heads unless they are
32 wide (`h3`, `h6`), the tokenizer (`cnv` convolutional, `lpi` linear with local patch interaction), the number of latents
(`l64`) and of layers unless it is 12 (`d13`), patch and stride (`p16s8`), and `ft384` for images of 384 pixels with dynamic
positions.

| names | models | parameters |
|---|---|---|
| `bixt_ti_l64_p16`, `p16s8`, `p16s4` | the default | 15.1M |
| `bixt_ti_l32_p16`, `bixt_ti_l128_p16`, each also `p16s8` | fewer or more latents | 15.1M |
| `bixt_ti_l64_d13_p16`, `p16s8`, `p16s4` | for dense tasks: `dense=True`, `drop_last_layer` | 16.4M |
| `bixt_ed256_l64_p16`, `p16s8`, `bixt_ed256LS_l64_p16s8` | wider | 26.7M |
| `bixt_ti_cnv_l64_p16`, `bixt_ti_cnv_l64_d13_p16`, `p8`, `p4` | convolutional tokenizer | 15.2M, 16.4M |
| `bixt_conv_ti_l64_p16`, `bixt_conv_ti_l64_d13_p16`, `p8` | the authors' names of these models | |
| `bixt_ti_l64_..._ft384`, `bixt_ti_h3_l64_p16_ft384`, `p16s8`, `p16s4` | for 384 pixels | |
| `bixt_ed256_l64_p16s8_ft384`, `bixt_ed256LS_l64_p16s8_ft384` | wider, for 384 pixels | |
| `bixt_ti_h3_l64_p16`, `l32`, `l128` | the paper's tiny: heads of 64 | 15.1M |
| `bixt_sm_h6_l64_p16`, `l32`, `l128` | the paper's small | 59.6M |
| `bixt_ti_h3_l64_p32s16`, `p32s8`, `p16s8`, `p16s4`, `p8`, `p8s4`, `p4` | the paper's Table A2 | 15.0M to 15.6M |
| `bixt_ti_h3_l64_d13_p16`, `bixt_ti_h3_cnv_l64_p16`, `bixt_ti_h3_lpi_l64_p16` | the paper's dense and local models | |

The paper counts 3 heads (tiny) and 6 (small); published code and checkpoints have heads of 32. No weights are
downloaded; the authors' files load unchanged.
"""

import re
from typing import Any

from timm.models import generate_default_cfgs

from attngraft.models.timm_model import config, register

STRIDES = ("p16", "p16s8", "p16s4")
NAMES = (
    *(f"bixt_ti_l64{depth}_{patch}{size}" for depth in ("", "_d13") for patch in STRIDES for size in ("", "_ft384")),
    *(f"bixt_ti_{latents}_{patch}" for latents in ("l32", "l128") for patch in ("p16", "p16s8")),
    *(f"bixt_ed256_l64_{patch}" for patch in ("p16", "p16s8", "p16s8_ft384")),
    *(f"bixt_ed256LS_l64_{patch}" for patch in ("p16s8", "p16s8_ft384")),
    *(f"bixt_ti_cnv_l64_{patch}" for patch in ("p16", "d13_p16", "d13_p8", "d13_p4")),
    *(f"bixt_conv_ti_l64_{patch}" for patch in ("p16", "d13_p16", "d13_p8")),
    *(f"bixt_{width}_{latents}_p16" for width in ("ti_h3", "sm_h6") for latents in ("l32", "l64", "l128")),
    *(f"bixt_ti_h3_l64_{patch}" for patch in ("p32s16", "p32s8", "p16s8", "p16s4", "p8", "p8s4", "p4")),
    *(f"bixt_ti_h3_l64_{patch}_ft384" for patch in STRIDES),
    *("bixt_ti_h3_l64_d13_p16", "bixt_ti_h3_cnv_l64_p16", "bixt_ti_h3_lpi_l64_p16"),
)
PATTERN = re.compile(
    r"bixt_(?P<conv>conv_)?(?P<width>ti|sm|ed256)(?P<scaled>LS)?(_h(?P<heads>\d+))?(_(?P<kind>cnv|lpi))?"
    r"_l(?P<latents>\d+)(_d(?P<depth>\d+))?_p(?P<patch>\d+)(s(?P<stride>\d+))?(_ft(?P<size>\d+))?"
)
WIDTHS = {"ti": 192, "ed256": 256, "sm": 384}
HEAD_WIDTH = 32  #: width of a head if the name does not contain the number of heads


def arguments(name: str) -> dict[str, Any]:
    """Parse a name and return the arguments of `BiXT`.

    Raises:
        ValueError: the name does not follow the pattern.
    """
    found = PATTERN.fullmatch(name)
    if found is None:
        raise ValueError(f"{name!r} does not follow the pattern of BiXT names (bixt_ti_l64_d13_p16s8_ft384)")
    width = WIDTHS[found["width"]]
    settings: dict[str, Any] = {
        "embed_dim": width,
        "num_heads": int(found["heads"] or width // HEAD_WIDTH),
        "num_latents": int(found["latents"]),
        "depth": int(found["depth"] or 12),
        "patch_size": int(found["patch"]),
    }
    if found["stride"]:  # otherwise the stride is the patch size, which a caller may change
        settings["stride"] = int(found["stride"])
    if found["conv"] or found["kind"] == "cnv":
        settings["tokenizer"] = "conv"
    if found["kind"] == "lpi":
        settings["local"] = True
    if found["scaled"]:
        settings["init_values"] = 1e-5
    if found["size"]:
        settings |= {"img_size": int(found["size"]), "positions": "dynamic", "weight_init": "skip"}
    return settings


def _config(settings: dict[str, Any]) -> dict[str, Any]:
    return config(
        settings.get("img_size", 224),
        fixed_input_size="positions" not in settings,
        first_conv="patch_embed.proj.0.0" if "tokenizer" in settings else "patch_embed.proj",
    )


#: name -> arguments
BASELINES: dict[str, dict[str, Any]] = {
    **{
        f"iterative_sa{layers}_d{depth}_k{sets}": {
            "self_layers": layers,
            "depth": depth,
            "cross_sets": sets,
            "num_heads": 3,
        }
        for layers, depth in ((5, 8), (6, 7), (6, 8), (4, 12), (1, 22), (1, 24))
        for sets in (1, 2)
    },
    **{f"sequential_d{depth}": {"depth": depth, "num_heads": 3} for depth in (11, 12)},
}
MODELS = {**{name: arguments(name) for name in NAMES}, **BASELINES}
default_cfgs = generate_default_cfgs({name: _config(settings) for name, settings in MODELS.items()})


_NETWORKS = {"bixt": "model:BiXT", "iterative": "baselines:Iterative", "sequential": "baselines:Sequential"}
for _name, _arguments in MODELS.items():
    register(_name, f"attngraft.models.bixt.{_NETWORKS[_name.partition('_')[0]]}", _arguments, module=__name__)
