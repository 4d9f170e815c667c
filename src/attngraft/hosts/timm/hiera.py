"""timm's Hiera: attention in mask units, then of whole maps; some queries are the largest of four."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from timm.models.hiera import Hiera, HieraBlock, MaskUnitAttention
from torch import Tensor, nn

from attngraft.attention import AttentionGeometry, Projected
from attngraft.hosts.adapter import Site, check_known, fused_rows, random_images
from attngraft.hosts.registry import register_host
from attngraft.hosts.sites import global_site, window_site
from attngraft.hosts.timm import mlp as timm_mlp
from attngraft.hosts.timm.attention import by_role, mlp_sites
from attngraft.hosts.timm.family import Look, TimmFamily
from attngraft.hosts.timm.own_windows import OwnWindows
from attngraft.hosts.timm.still_windows import Undropped

_BLOCK = ("norm1", "proj", "attn", "ls1", "drop_path1", "norm2", "mlp", "ls2", "drop_path2")


class GraftedMaskUnitAttention(OwnWindows, Undropped, MaskUnitAttention):
    """`timm.models.hiera.MaskUnitAttention`: tokens of all units lie side by side, (B, tokens of a unit, units, C).

    Where queries are pooled, the tokens on their side are too, as the host pools those that go around the attention.
    """

    def forward(self, x: Tensor) -> Tensor:
        units = x.shape[1] // (self.q_stride * self.window_size) if self.use_mask_unit_attn else 1
        tokens = self.forward_projected(
            self.project(x, units), lambda tokens: self.project(self.whole(tokens, units), units)
        )
        return self.run("attn.end", self.whole(tokens, units))

    def cut(self, x: Tensor, units: int) -> Tensor:
        """(B, N, C) to (B * units, tokens of each, C)."""
        return x.unflatten(1, (-1, units)).transpose(1, 2).flatten(0, 1)

    def whole(self, tokens: Tensor, units: int) -> Tensor:
        """What `cut` was given."""
        return tokens.unflatten(0, (-1, units)).transpose(1, 2).flatten(1, 2)

    def project(self, x: Tensor, units: int) -> Projected:
        q, k, v = by_role(self.cut(self.qkv(x), units), self.heads)
        queries = keys = self.cut(x, units)
        if self.q_stride > 1:
            q = q.unflatten(2, (self.q_stride, -1)).amax(dim=2)
            queries = keys.unflatten(1, (self.q_stride, -1)).amax(dim=1)
        if self.use_mask_unit_attn:
            k = k.mT.contiguous().mT  # as the host's product copies its own, whose units lie apart: the order rounds
        return Projected(q, k, v, queries, keys=keys, rest=units)

    def kernel(self, projected: Projected) -> Tensor:
        """The host's own axes, which choose the kernel: with one for the units, or without and contiguous."""
        if not self.use_mask_unit_attn:
            q, k, v = (each.contiguous() for each in projected[:3])
            return super(OwnWindows, self).kernel(projected._replace(q=q, k=k, v=v))
        q, k, v = (each.unflatten(0, (-1, projected.rest)).transpose(1, 2) for each in projected[:3])
        heads = super(OwnWindows, self).kernel(projected._replace(q=q, k=k, v=v))
        return heads.transpose(1, 2).flatten(0, 1)

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        units = projected.rest
        return self.cut(self.proj(self.whole(heads.transpose(1, 2).flatten(2), units)), units)


class TimmHiera(TimmFamily):
    """Sites `blocks.<i>.attn` and `.mlp`. Tokens are in the host's order, that of its mask units, not row by row."""

    name = "timm.hiera"
    summary = "timm Hiera of any size, features_only too"
    patched: ClassVar = {MaskUnitAttention: GraftedMaskUnitAttention, **timm_mlp.PATCHED}
    models = (Hiera,)
    blocks = (HieraBlock,)

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        check_known(block, path, arguments=("x",), children=_BLOCK)
        yield _attention_site(block.attn, f"{path}.attn", look.entering(path)[1])
        _, tokens, dim = look.entering(f"{path}.mlp")
        yield from mlp_sites(block.mlp, f"{path}.mlp", dim=dim, tokens=tokens)

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        core: Any = next(module for module in model.modules() if type(module) is Hiera)
        sides = (side * stride for side, stride in zip(core.tokens_spatial_shape, core.patch_stride, strict=True))
        first = next(module for module in model.modules() if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d))
        return random_images(model, (first.in_channels, *sides), batch=batch)


def _attention_site(module: Any, path: str, tokens: int) -> Site:
    check_known(module, path, arguments=("x",), children=("qkv", "proj"))
    units = tokens // (module.q_stride * module.window_size) if module.use_mask_unit_attn else 1
    geometry = AttentionGeometry(
        dim=module.dim,
        tokens=tokens // units,
        sequences=units,
        query_tokens=None if module.q_stride == 1 else tokens // units // module.q_stride,
        out_dim=None if module.dim_out == module.dim else module.dim_out,
        heads=module.heads,
        key_width=module.head_dim,
        value_width=module.head_dim,
        rows=fused_rows(module, "qkv", heads=module.heads),
    )
    return window_site(path, geometry) if module.use_mask_unit_attn else global_site(path, geometry)


register_host(TimmHiera())
