"""timm's DaViT: window attention and channel attention, in alternate blocks."""

from typing import Any, ClassVar, cast

from timm.models.davit import ChannelBlock, DaVit, SpatialBlock, WindowAttention
from torch import Tensor

from attngraft.attention import Projected, plain_class
from attngraft.hosts.adapter import check_known
from attngraft.hosts.sites import windowed
from attngraft.hosts.timm import mlp
from attngraft.hosts.timm.attention import NoDropout, map_to_tokens, split_qkv, tokens_to_map
from attngraft.hosts.timm.family import ShapeProbe, Sites, TimmFamily, channel_site, checked_site, map_fields
from attngraft.hosts.timm.windows import FixedWindowBlock

_BLOCK = ("cpe1", "norm1", "attn", "drop_path1", "cpe2", "norm2", "mlp", "drop_path2")


class GraftedWindowAttention(NoDropout, WindowAttention):
    """Patched class of `timm.models.davit.WindowAttention`."""

    def project(self, x: Tensor, present: Tensor | None = None) -> Projected:
        q, k, v = split_qkv(self.qkv(x), self.num_heads)
        return Projected(q, k, v, x, present=present)


class GraftedSpatialBlock(FixedWindowBlock, SpatialBlock):
    """`timm.models.davit.SpatialBlock`: maps (B, C, rows, columns), with convolutional position encodings."""

    def forward(self, x: Tensor) -> Tensor:
        grid, host = x.shape[-2:], cast(Any, self)  # timm's attributes are None in blocks without an MLP
        tokens = map_to_tokens(self.cpe1(x))
        branch = self.branch(self.norm1(tokens).unflatten(1, grid), self.window_size)
        x = self.cpe2(tokens_to_map(tokens + host.drop_path1(branch.flatten(1, 2)), grid))
        if host.mlp is None:
            return x
        tokens = map_to_tokens(x)
        return tokens_to_map(tokens + host.drop_path2(host.mlp(host.norm2(tokens))), grid)


def _sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    _, dim, rows, columns = shapes.input_shape(path)
    attn, fields = f"{path}.attn", map_fields(dim, rows, columns)
    if plain_class(block) is SpatialBlock:
        check_known(block, path, arguments=("x",), children=_BLOCK)
        window = windowed((rows, columns), tuple(block.window_size))
        children = ("qkv", "proj", "softmax")
        yield checked_site(block.attn, attn, children=children, block=path, fills=True, dim=dim, **window)
    else:
        yield channel_site(attn, instead="choose blocks with windows", **fields)
    if block.mlp is not None:
        yield from mlp.mlp_sites(block.mlp, f"{path}.mlp", **fields)


class TimmDaVit(TimmFamily):
    """Sites `stages.<i>.blocks.<j>.<k>.attn` and `.mlp`; k is a number, or a name where the host names its blocks."""

    name = "timm.davit"
    summary = "timm DaViT of any size (blocks with windows, and all MLPs), including features_only"
    patched: ClassVar = {
        WindowAttention: GraftedWindowAttention,
        SpatialBlock: GraftedSpatialBlock,
        **mlp.PATCHED,
    }
    models = (DaVit,)
    blocks: ClassVar = {SpatialBlock: _sites, ChannelBlock: _sites}
