"""The MLPs of `transformers`: two linear layers under either of two sets of names, or a gated one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

from torch import Tensor, nn

from attngraft.anatomy import GraftedModule, MlpEnds, MlpGeometry, MlpSite, Stage
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.calls import check_call
from attngraft.hosts.hf.attention import hides

NO_MIDDLE: Mapping[Stage, str] = {
    "mlp.mid": "its MLP is gated and has no plain hidden layer; use position=front or end"
}


class TwoLayers(MlpSite):
    """An activation between two linear layers, which stand under these names."""

    layers: ClassVar[tuple[str, str, str]] = ("fc1", "activation_fn", "fc2")

    def hidden(self, x: Tensor) -> Tensor:
        first, activation, _ = self.layers
        act = cast(Callable[[Tensor], Tensor], getattr(self, activation))
        return act(getattr(self, first)(x))

    def out(self, x: Tensor) -> Tensor:
        return cast(Tensor, getattr(self, self.layers[2])(x))

    def linear_before(self, stage: Stage) -> nn.Linear | None:
        return _linear(getattr(self, self.layers[2])) if stage == "mlp.end" else None

    def linear_after(self, stage: Stage) -> nn.Linear | None:
        names = {"mlp.front": self.layers[0], "mlp.mid": self.layers[2]}
        return _linear(getattr(self, names[stage])) if stage in names else None


class UpAndDown(TwoLayers):
    """The same with the names `up_proj` and `down_proj`."""

    layers = ("up_proj", "act_fn", "down_proj")


class Gated(MlpEnds):
    """`gate_proj` and `up_proj`, whose product goes through `down_proj`."""


class MaskedLayer(GraftedModule):
    """A layer whose tokens may be hidden by a mask, which its MLP never sees: it refuses for the MLP's grafts."""

    unaware: ClassVar[tuple[str, ...]] = ("mlp",)  #: names of the modules that do not see the mask

    @property
    def in_use(self) -> bool:
        return super().in_use or any(part.in_use for part in self._unaware())

    def _unaware(self) -> list[GraftedModule]:
        parts = [getattr(self, name) for name in self.unaware]  # Dynamo reads no name bound within a comprehension
        return [part for part in parts if isinstance(part, GraftedModule)]

    def check(self, mask: Tensor | None, *, causal: bool | None = None) -> None:
        """Refuse a mask, or a call that asks for a causal one, for grafts that average over all tokens.

        Raises:
            UsageError: such a graft stands in the layer or its MLP.
        """
        for part in (self, *self._unaware()):
            check_call(part, padded=hides(mask), causal=bool(causal))


def _linear(layer: Any) -> nn.Linear | None:
    return layer if isinstance(layer, nn.Linear) else None


def mlp_site(module: Any, path: str, *, end: str, layer: str | None = None, **known: Any) -> Site:
    """The site that such an MLP is.

    Args:
        end: path of the module that carries `mlp.end`.
        layer: path of the `MaskedLayer`, if it is in one.
        known: fields of the geometry that the model knows.
    """
    gated = hasattr(module, "gate_proj")
    first, last = ("fc1", "fc2") if hasattr(module, "fc1") else ("up_proj", "down_proj")
    children = {first, last, "activation_fn", "act_fn", *(("gate_proj",) if gated else ())}
    check_known(module, path, arguments=("x", "hidden_states", "hidden_state"), children=children)
    carriers: dict[Stage, str] = {"mlp.front": path, "mlp.mid": path, "mlp.end": end}
    if gated:
        del carriers["mlp.mid"]
    geometry = MlpGeometry(**known, hidden=getattr(module, last).in_features)
    return Site(
        path=path,
        kind="mlp",
        geometry=geometry,
        carriers=carriers,
        missing=NO_MIDDLE if gated else {},
        informants={} if layer is None else dict.fromkeys(carriers, (layer,)),
    )
