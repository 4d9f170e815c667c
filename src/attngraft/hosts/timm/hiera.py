"""timm's Hiera: attention in mask units, then over whole maps; some queries are max-pooled."""

from typing import Any, ClassVar

from timm.models.hiera import Hiera, HieraBlock, MaskUnitAttention
from torch import Tensor, nn

from attngraft.attention import AttentionGeometry, Projected
from attngraft.hosts.adapter import check_known, random_images
from attngraft.hosts.sites import fused_heads, global_site, window_site
from attngraft.hosts.timm import mlp
from attngraft.hosts.timm.attention import NoDropout, split_qkv
from attngraft.hosts.timm.family import ShapeProbe, Sites, TimmFamily
from attngraft.hosts.timm.windows import WindowAxisSite

_BLOCK = ("norm1", "proj", "attn", "ls1", "drop_path1", "norm2", "mlp", "ls2", "drop_path2")


class GraftedMaskUnitAttention(WindowAxisSite, NoDropout, MaskUnitAttention):
    """`timm.models.hiera.MaskUnitAttention`: tokens of all units are interleaved, (B, tokens of a unit, units, C).

    If the host max-pools the queries, `Projected.queries` are the tokens pooled in the same way.
    """

    def forward(self, x: Tensor) -> Tensor:
        units = x.shape[1] // (self.q_stride * self.window_size) if self.use_mask_unit_attn else 1
        tokens = self.forward_projected(
            self.project(x, units), lambda tokens: self.project(self.interleave(tokens, units), units)
        )
        return self.run("attn.end", self.interleave(tokens, units))

    def by_unit(self, x: Tensor, units: int) -> Tensor:
        """Reshape (B, N, C) to (B * units, tokens of a unit, C)."""
        return x.unflatten(1, (-1, units)).transpose(1, 2).flatten(0, 1)

    def interleave(self, tokens: Tensor, units: int) -> Tensor:
        """Undo `by_unit`."""
        return tokens.unflatten(0, (-1, units)).transpose(1, 2).flatten(1, 2)

    def project(self, x: Tensor, units: int) -> Projected:
        q, k, v = split_qkv(self.by_unit(self.qkv(x), units), self.heads)
        queries = keys = self.by_unit(x, units)
        if self.q_stride > 1:
            q = q.unflatten(2, (self.q_stride, -1)).amax(dim=2)
            queries = keys.unflatten(1, (self.q_stride, -1)).amax(dim=1)
        if self.use_mask_unit_attn:
            k = k.mT.contiguous().mT  # the memory order of the host's copy, which determines rounding
        return Projected(q, k, v, queries, keys=keys, rest=units)

    def kernel(self, projected: Projected) -> Tensor:
        """Run the kernel in the host's layout: with a units axis, or contiguous without one."""
        if not self.use_mask_unit_attn:
            q, k, v = (each.contiguous() for each in projected[:3])
            return super(WindowAxisSite, self).kernel(projected.replace(q=q, k=k, v=v))
        q, k, v = (each.unflatten(0, (-1, projected.rest)).transpose(1, 2) for each in projected[:3])
        heads = super(WindowAxisSite, self).kernel(projected.replace(q=q, k=k, v=v))
        return heads.transpose(1, 2).flatten(0, 1)

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        units = projected.rest
        return self.by_unit(self.proj(self.interleave(heads.transpose(1, 2).flatten(2), units)), units)


def _sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    check_known(block, path, arguments=("x",), children=_BLOCK)
    module, attn, tokens = block.attn, f"{path}.attn", shapes.input_shape(path)[1]
    check_known(module, attn, arguments=("x",), children=("qkv", "proj"))
    units = tokens // (module.q_stride * module.window_size) if module.use_mask_unit_attn else 1
    geometry = AttentionGeometry(
        dim=module.dim,
        tokens=tokens // units,
        sequences=units,
        query_tokens=None if module.q_stride == 1 else tokens // units // module.q_stride,
        out_dim=None if module.dim_out == module.dim else module.dim_out,
        **fused_heads(module, heads=module.heads),
    )
    yield window_site(attn, geometry) if module.use_mask_unit_attn else global_site(attn, geometry)
    _, tokens, dim = shapes.input_shape(f"{path}.mlp")
    yield from mlp.mlp_sites(block.mlp, f"{path}.mlp", dim=dim, tokens=tokens)


class TimmHiera(TimmFamily):
    """Sites `blocks.<i>.attn` and `.mlp`. Tokens are in the order of the mask units, not row by row."""

    name = "timm.hiera"
    summary = "timm Hiera of any size, including features_only"
    patched: ClassVar = {MaskUnitAttention: GraftedMaskUnitAttention, **mlp.PATCHED}
    models = (Hiera,)
    blocks: ClassVar = {HieraBlock: _sites}

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        core: Any = next(module for module in model.modules() if type(module) is Hiera)
        sides = (side * stride for side, stride in zip(core.tokens_spatial_shape, core.patch_stride, strict=True))
        first = next(module for module in model.modules() if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d))
        return random_images(model, (first.in_channels, *sides), batch=batch)
