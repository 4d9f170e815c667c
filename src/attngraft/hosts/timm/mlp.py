"""timm's MLPs, shared by the families that use them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from timm.layers import ConvMlp, GluMlp, Mlp, SwiGLU
from timm.models.vitamin import GeGluMlp
from torch import Tensor, nn

from attngraft.attention import GraftedModule, MlpEnds, MlpGeometry, plain_class
from attngraft.hosts import sites
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.linear_ends import LinearEnds
from attngraft.hosts.timm.maps import GraftedConvMlp, MapMlpSite


class GraftedMlp(LinearEnds, MapMlpSite, Mlp):
    """`timm.layers.Mlp`: fc1, activation, dropout, optional norm, fc2, dropout; as linear layers, or as convolutions."""

    @property
    def takes_maps(self) -> bool:
        return isinstance(self.fc1, nn.Conv2d)

    def hidden(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.norm(self.drop1(self.act(self.fc1(x)))))

    def out(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.drop2(self.fc2(x)))


class GraftedGluMlp(MlpEnds, GluMlp):
    """`timm.layers.GluMlp` (packed SwiGLU too)."""


class GraftedSwiGLU(MlpEnds, SwiGLU):
    """`timm.layers.SwiGLU`."""


class GraftedGeGluMlp(GraftedModule, GeGluMlp):
    """`timm.models.vitamin.GeGluMlp`: its own norm comes first, so its front is behind that."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.run("mlp.front", self.norm(x))
        x = self.act(self.w0(x)) * self.w1(x)
        x = x if (drop := getattr(self, "drop1", None)) is None else drop(x)  # timm 1.0.26 has no dropout here
        x = self.w2(x)
        x = x if (drop := getattr(self, "drop2", None)) is None else drop(x)
        return self.run("mlp.end", x)


PATCHED: Mapping[type[nn.Module], type[GraftedModule]] = {
    Mlp: GraftedMlp,
    ConvMlp: GraftedConvMlp,
    GluMlp: GraftedGluMlp,
    SwiGLU: GraftedSwiGLU,
    GeGluMlp: GraftedGeGluMlp,
}
KNOWN = {*PATCHED, *PATCHED.values()}
_CHILDREN = ("fc1", "fc1_g", "fc1_x", "w0", "w1", "w2", "act", "drop", "drop1", "norm", "fc2", "drop2")


def mlp_site(module: nn.Module, path: str, geometry: MlpGeometry) -> Site | None:
    """The site that `module` is, or None for an MLP of a class that we do not know."""
    if plain_class(module) not in PATCHED:
        return None
    check_known(module, path, arguments=("x",), children=_CHILDREN)
    plain = isinstance(module, Mlp | ConvMlp)
    return sites.mlp_site(path, geometry, {} if plain else sites.NO_MIDDLE)
