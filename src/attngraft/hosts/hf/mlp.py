"""MLP templates of `transformers`, and layers that check the mask for the grafts of their MLP."""

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from attngraft.attention import HookPoint, MlpGeometry
from attngraft.hosts import sites
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.hf.attention import hides_tokens
from attngraft.hosts.patched import MaskedParts, StepMlp, TwoLinearEnds, check_call


class PlainMlp(TwoLinearEnds, StepMlp):
    """Two linear layers with an activation between them."""

    before_mid = ("fc1", "activation_fn")
    after_mid: ClassVar[tuple[str, ...]] = ("fc2",)


class UpDownMlp(PlainMlp):
    """`PlainMlp` with the linear layers `up_proj` and `down_proj`."""

    linear_names = ("up_proj", "down_proj")
    before_mid, after_mid = ("up_proj", "act_fn"), ("down_proj",)


class MaskedLayer(MaskedParts):
    """A layer that checks its mask for the grafts of its MLP, which does not receive the mask."""

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        self.check_mask(attention_mask, causal=kwargs.get("is_causal"))
        return super().forward(hidden_states, attention_mask, *args, **kwargs)  # type: ignore[misc]

    def check_mask(self, mask: Tensor | None, *, causal: bool | None = None) -> None:
        """Refuse a mask, or a causal call, for grafts that average over all tokens.

        Raises:
            UsageError: the layer or its MLP has such a graft.
        """
        check_call(self, padded=hides_tokens(mask), causal=bool(causal))
        self.check_parts(padded=hides_tokens(mask), causal=bool(causal))


def mlp_site(module: Any, path: str, *, end: str | None = None, layer: str | None = None, **fields: Any) -> Site:
    """Return the site of a plain or gated MLP.

    Args:
        end: path of the module with hook point `mlp.end`; None: the MLP itself.
        layer: path of the `MaskedLayer` around it, if any.
        fields: geometry fields that the model determines.
    """
    gated = hasattr(module, "gate_proj")
    first, last = ("fc1", "fc2") if hasattr(module, "fc1") else ("up_proj", "down_proj")
    children = {first, last, "activation_fn", "act_fn", *(("gate_proj",) if gated else ())}
    check_known(module, path, arguments=("x", "hidden_states", "hidden_state"), children=children)
    geometry = MlpGeometry(**fields, hidden=getattr(module, last).in_features)
    return sites.mlp_site(path, geometry, sites.NO_MIDDLE if gated else {}, end=end, layer=layer)


def missing_in_chunks(module: Any) -> Mapping[HookPoint, str]:
    """Return why the MLP's hook points are missing if `module` runs its MLP in chunks; empty otherwise."""
    size = module.chunk_size_feed_forward
    if not size:
        return {}
    reason = (
        f"its MLP processes {size} tokens at a time (chunk_size_feed_forward={size}), but grafts need all of them; set "
        "chunk_size_feed_forward=0 in the configuration"
    )
    return dict.fromkeys(sites.MLP, reason)
