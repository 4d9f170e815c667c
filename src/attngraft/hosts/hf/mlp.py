"""The MLPs of `transformers`: two linear layers under either of two sets of names, or a gated one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, cast

from torch import Tensor

from attngraft.attention import GraftedModule, MlpEnds, MlpGeometry, MlpSite
from attngraft.hosts import sites
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.calls import check_call
from attngraft.hosts.hf.attention import hides
from attngraft.hosts.linear_ends import LinearEnds


class TwoLayers(LinearEnds, MlpSite):
    """An activation between two linear layers, all three under names of the host's."""

    activation_name: ClassVar[str] = "activation_fn"

    def hidden(self, x: Tensor) -> Tensor:
        act = cast(Callable[[Tensor], Tensor], getattr(self, self.activation_name))
        return act(getattr(self, self.linear_names[0])(x))

    def out(self, x: Tensor) -> Tensor:
        return cast(Tensor, getattr(self, self.linear_names[1])(x))


class UpAndDown(TwoLayers):
    """The same with the names `up_proj` and `down_proj`."""

    linear_names = ("up_proj", "down_proj")
    activation_name = "act_fn"


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

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """The host's own, once the grafts of the MLP are content with the mask."""
        self.check(attention_mask, causal=kwargs.get("is_causal"))
        return super().forward(hidden_states, attention_mask, *args, **kwargs)  # type: ignore[misc]

    def check(self, mask: Tensor | None, *, causal: bool | None = None) -> None:
        """Refuse a mask, or a call that asks for a causal one, for grafts that average over all tokens.

        Raises:
            UsageError: such a graft stands in the layer or its MLP.
        """
        for part in (self, *self._unaware()):
            check_call(part, padded=hides(mask), causal=bool(causal))


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
    geometry = MlpGeometry(**known, hidden=getattr(module, last).in_features)
    return sites.mlp_site(path, geometry, sites.NO_MIDDLE if gated else {}, end=end, layer=layer)
