"""The graft `identity`."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from attngraft.attention import Geometry, Graft, GraftType, HookPoint, LinearLayer
from attngraft.mechanisms.registry import register_graft


class IdentityGraft(Graft):
    """Return the input itself, not a copy."""

    def forward(self, value: Tensor, context: Tensor | None = None) -> Tensor:
        return value

    def fold(self, *, before: LinearLayer | None, after: LinearLayer | None) -> None:
        """Fold nothing; returning None removes the graft."""


@dataclass(frozen=True)
class IdentityOptions:
    """Options of `identity`. `mix` and `space` are excluded, because grafts there compute the attention themselves."""

    #: hook point of the graft
    stage: Literal["weights", "heads", "tokens", "attn.end", "attn.window", "mlp.front", "mlp.mid", "mlp.end"] = (
        "tokens"
    )


class IdentityType(GraftType[IdentityOptions]):
    """The graft type `identity`."""

    name = "identity"
    summary = "does nothing, without parameters: the control of a comparison, whose difference must be exactly 0"
    source = "a control; no paper"
    Options = IdentityOptions

    def hook_points(self, options: IdentityOptions) -> tuple[HookPoint, ...]:
        return (options.stage,)

    def build(self, geometry: Geometry, hook_point: HookPoint, options: IdentityOptions) -> Graft:
        return IdentityGraft()

    def starts_as_identity(self, options: IdentityOptions) -> bool:
        """Return True except at `weights`, where unfused scores and softmax round differently."""
        return options.stage != "weights"

    def notes(self, geometry: Geometry, hook_point: HookPoint, options: IdentityOptions) -> tuple[str, ...]:
        if hook_point != "weights":
            return ()
        return ("uses the host's explicit attention, so outputs equal a fused host's up to rounding, not bit for bit",)


IDENTITY = register_graft(IdentityType())
