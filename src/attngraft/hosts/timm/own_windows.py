"""Attention that is given all windows of a map, or the map itself, and so carries the end of its branch too."""

from __future__ import annotations

from torch import Tensor

from attngraft.attention import HookPoint, LinearLayer, Projected
from attngraft.hosts.timm.attention import SelfAttention


class OwnEnd(SelfAttention):
    """Inside B counts windows; at `attn.end` stands what leaves, with all windows of an image."""

    ends: tuple[HookPoint, ...] = ("attn.window",)

    def between(self, hook_point: HookPoint) -> str | None:
        if hook_point != "attn.end":
            return super().between(hook_point)
        if self.grafts_at("attn.window"):
            return "another graft lies between it and the host's output projection"
        return super().between("attn.window")

    def linear_before(self, hook_point: HookPoint) -> LinearLayer | None:
        if hook_point != "attn.end":
            return super().linear_before(hook_point)
        return None if self.between(hook_point) else self.output_layer()


class OwnWindows(OwnEnd):
    """`rest` holds how many windows an image has."""

    def kernel(self, projected: Projected) -> Tensor:
        """One axis more, as the host has it: another kernel, which rounds otherwise."""
        q, k, v = (each.unflatten(0, (-1, projected.rest)) for each in projected[:3])
        return super().kernel(projected._replace(q=q, k=k, v=v)).flatten(0, 1)

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        return super().merge(heads, projected._replace(rest=None))
