"""timm's MLPs, shared by the families that use them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from timm.layers import ConvMlp, GluMlp, Mlp, SwiGLU
from torch import Tensor, nn

from attngraft.anatomy import GraftedModule, MlpEnds, MlpGeometry, MlpSite, Stage
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.timm.maps import GraftedConvMlp


class GraftedMlp(MlpSite, Mlp):
    """`timm.layers.Mlp`: fc1, activation, dropout, optional norm, fc2, dropout."""

    def hidden(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.norm(self.drop1(self.act(self.fc1(x)))))

    def out(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.drop2(self.fc2(x)))

    def linear_before(self, stage: Stage) -> nn.Linear | None:
        return self.fc2 if stage == "mlp.end" and isinstance(self.fc2, nn.Linear) else None

    def linear_after(self, stage: Stage) -> nn.Linear | None:
        layer = {"mlp.front": self.fc1, "mlp.mid": self.fc2}.get(stage)
        return layer if isinstance(layer, nn.Linear) else None


class GraftedGluMlp(MlpEnds, GluMlp):
    """`timm.layers.GluMlp` (packed SwiGLU too)."""


class GraftedSwiGLU(MlpEnds, SwiGLU):
    """`timm.layers.SwiGLU`."""


RICHER: Mapping[type[nn.Module], type[GraftedModule]] = {
    Mlp: GraftedMlp,
    ConvMlp: GraftedConvMlp,
    GluMlp: GraftedGluMlp,
    SwiGLU: GraftedSwiGLU,
}
KNOWN = {*RICHER, *RICHER.values()}
_CHILDREN = ("fc1", "fc1_g", "fc1_x", "act", "drop", "drop1", "norm", "fc2", "drop2")
_NO_MIDDLE: Mapping[Stage, str] = {
    "mlp.mid": "its MLP is gated and has no plain hidden layer; use position=front or end"
}


def mlp_site(module: nn.Module, path: str, geometry: MlpGeometry) -> Site | None:
    """The site that `module` is, or None for an MLP of a class that we do not know."""
    if type(module) not in KNOWN:
        return None
    check_known(module, path, arguments=("x",), children=_CHILDREN)
    plain = isinstance(module, Mlp | ConvMlp)
    stages: tuple[Stage, ...] = ("mlp.front", "mlp.mid", "mlp.end") if plain else ("mlp.front", "mlp.end")
    missing = {} if plain else _NO_MIDDLE
    return Site(path=path, kind="mlp", geometry=geometry, carriers=dict.fromkeys(stages, path), missing=missing)
