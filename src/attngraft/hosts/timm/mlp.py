"""Patched classes and sites of timm's MLPs."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from timm.layers import ConvMlp, GluMlp, Mlp, SwiGLU
from timm.models.vitamin import GeGluMlp
from torch import Tensor, nn

from attngraft.attention import GraftedModule, HookPoint, MlpEnds, MlpGeometry, plain_class
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.family import Sites
from attngraft.hosts.patched import StepMlp, TwoLinearEnds, patch_classes
from attngraft.hosts.sites import NO_MIDDLE, mlp_site

_CHILDREN = ("fc1", "fc1_g", "fc1_x", "w0", "w1", "w2", "act", "drop", "drop1", "norm", "fc2", "drop2")


class MapMlpSite(StepMlp):
    """An MLP on maps (B, C, rows, columns) or tokens; grafts get tokens."""

    @property
    def takes_maps(self) -> bool:
        """Whether inputs with four axes are channels-first maps; otherwise channels are last."""
        return True

    def run(self, hook_point: HookPoint, value: Tensor, *context: Tensor | None) -> Tensor:
        if value.ndim == 3 or not self.takes_maps:
            return super().run(hook_point, value, *context)
        # permute before flattening: with a batch of 1, `map_to_tokens` would set a batch stride that hides the
        # channels-last format of the map
        tokens = super().run(hook_point, value.permute(0, 2, 3, 1).flatten(1, 2), *context)
        return tokens.unflatten(1, value.shape[-2:]).permute(0, 3, 1, 2)


class GraftedMlp(TwoLinearEnds, MapMlpSite, Mlp):
    """`timm.layers.Mlp`: fc1, activation, dropout, optional norm, fc2, dropout; linear layers or convolutions."""

    before_mid = ("fc1", "act", "drop1", "norm")

    @property
    def takes_maps(self) -> bool:
        return isinstance(self.fc1, nn.Conv2d)


class GraftedConvMlp(TwoLinearEnds, MapMlpSite, ConvMlp):
    """`timm.layers.ConvMlp`: fc1, optional norm, activation, dropout, fc2, as 1x1 convolutions."""

    before_mid, after_mid = ("fc1", "norm", "act", "drop"), ("fc2",)


class GraftedGeGluMlp(GraftedModule, GeGluMlp):
    """`timm.models.vitamin.GeGluMlp`: `mlp.front` is after its norm."""

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
    **patch_classes(MlpEnds, GluMlp, SwiGLU, module=__name__),
    GeGluMlp: GraftedGeGluMlp,
}


def step_mlp_site(
    module: Any,
    path: str,
    template: type[StepMlp],
    missing: Mapping[HookPoint, str] = MappingProxyType({}),
    *,
    children: tuple[str, ...] = (),
    **geometry: Any,
) -> Site:
    """Return the site of an MLP of a class that only one family uses.

    Args:
        template: patched class of the MLP.
        missing: as in `mlp_site`.
        children: names of children besides those in the template's `before_mid` and `after_mid`.
    """
    steps = (*template.before_mid, *template.after_mid)
    check_known(module, path, arguments=("x",), children=(*children, *steps))
    hidden = module.get_submodule(template.after_mid[0]).weight.shape[1]
    return mlp_site(path, MlpGeometry(hidden=hidden, **geometry), missing)


def mlp_sites(module: Any, path: str, **geometry: Any) -> Sites:
    """Yield the site of one of timm's MLPs; none for an MLP of an unknown class."""
    if plain_class(module) not in PATCHED:
        return
    check_known(module, path, arguments=("x",), children=_CHILDREN)
    last = getattr(module, "fc2", None)
    hidden = last.weight.shape[1] if isinstance(last, nn.Linear | nn.Conv2d) else 0
    missing = {} if isinstance(module, Mlp | ConvMlp) else NO_MIDDLE
    yield mlp_site(path, MlpGeometry(hidden=hidden, **geometry), missing)
