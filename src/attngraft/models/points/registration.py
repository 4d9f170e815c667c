"""Names of the point models.

| names | models | parameters |
|---|---|---|
| `bixt_points_naive`, `bixt_points_group`, `bixt_points_hier` | BiXT for classes (Table 1 b) | 14.8M, 16.8M, 5.5M |
| `bixt_parts_naive`, `bixt_parts_hier` | BiXT for parts, the second as an encoder and decoder (Table 4) | 14.4M, 8.5M |
| `pointnet`, `pointnet2`, `pointmlp`, `pointmlp_elite` | baselines for classes | 3.5M, 1.5M, 13.2M, 0.7M |
| `pointmlp_parts` | baseline for parts | 16.8M |

No weights are downloaded; the PointMLP authors' files load unchanged (`--weights FILE`).
"""

import importlib
from typing import Any

from timm.models import register_model
from torch import nn

#: name -> class in this package, and arguments
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bixt_points_naive": ("bixt:BiXTPoints", {}),
    "bixt_points_group": ("bixt:BiXTPoints", {"group": "refine"}),
    "bixt_points_hier": ("bixt:BiXTPoints", {"group": "hierarchy", "depth": 4}),
    "bixt_parts_naive": ("bixt:BiXTPointParts", {}),
    "bixt_parts_hier": ("bixt:BiXTPointParts", {"group": "hierarchy", "depth": 4}),
    "pointnet": ("pointnet:PointNet", {}),
    "pointnet2": ("pointnet:PointNet2", {}),
    "pointmlp": ("pointmlp:PointMLP", {}),
    "pointmlp_elite": (
        "pointmlp:PointMLP",
        {"embed_dim": 32, "expansions": (2, 2, 2, 1), "blocks": (1, 1, 2, 1), "res_expansion": 0.25},
    ),
    "pointmlp_parts": ("pointmlp:PointMLPParts", {}),
}


def _register(name: str, network: str, arguments: dict[str, Any]) -> None:
    path, _, attribute = network.partition(":")

    def create(
        pretrained: bool = False,
        *,
        pretrained_cfg: Any = None,
        pretrained_cfg_overlay: Any = None,
        cache_dir: Any = None,
        **changes: Any,
    ) -> nn.Module:
        if pretrained:
            raise ValueError("there are no pretrained weights of this model; pass a file or a run: --weights PATH")
        home = importlib.import_module(f"attngraft.models.points.{path}")
        model: nn.Module = getattr(home, attribute)(**{**arguments, **changes})
        return model

    create.__name__ = create.__qualname__ = name
    create.__module__ = __name__
    create.__doc__ = f"{attribute} with {arguments}."
    globals()[name] = register_model(create)


for _name, (_network, _arguments) in MODELS.items():
    _register(_name, _network, _arguments)
