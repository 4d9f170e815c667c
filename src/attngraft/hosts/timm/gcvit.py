"""timm's GCViT: window attention with local queries, or with global queries from the whole image."""

from typing import Any, ClassVar, cast

from timm.models import gcvit
from torch import Tensor, nn

from attngraft.attention import HookPoint, Projected, record_coordinates
from attngraft.hosts.adapter import random_images
from attngraft.hosts.family import ShapeProbe, Sites
from attngraft.hosts.sites import fused_heads, projected_heads, windowed
from attngraft.hosts.timm import mlp
from attngraft.hosts.timm.attention import SelfAttention, split_heads, split_qkv
from attngraft.hosts.timm.family import CHILDREN, TimmFamily, checked_site, image_size, map_fields, rel_pos_fields
from attngraft.hosts.timm.windows import WindowMerger

#: False in older timm (1.0.26), which gives windows the queries of other images in the batch
_BY_IMAGE = "repeat_interleave" in gcvit.WindowAttentionGlobal.forward.__code__.co_names


class GraftedWindowAttentionGlobal(SelfAttention, gcvit.WindowAttentionGlobal):
    """`timm.models.gcvit.WindowAttentionGlobal`: local queries, or unprojected global tokens of the image as queries."""

    ends: tuple[HookPoint, ...] = ("attn.window",)
    may_hide_all: ClassVar[bool] = False
    fused_attn = False

    def project(self, x: Tensor, q_global: Tensor | None = None) -> Projected:
        bias = self.rel_pos.get_bias()
        if not self.use_global or q_global is None:
            q, k, v = split_qkv(self.qkv(x), self.num_heads)
            return Projected(q, k, v, x, bias=bias)
        k, v = split_qkv(self.qkv(x), self.num_heads, parts=2)
        windows = x.shape[0] // q_global.shape[0]
        queries = q_global.repeat_interleave(windows, dim=0) if _BY_IMAGE else q_global.repeat(windows, 1, 1, 1)
        queries = queries.reshape(x.shape)
        return Projected(split_heads(queries, self.num_heads), k, v, queries, bias=bias, keys=x)


class GraftedGlobalContextVitBlock(WindowMerger, gcvit.GlobalContextVitBlock):
    """Patched class of `timm.models.gcvit.GlobalContextVitBlock`."""

    def _window_attn(self, x: Tensor, q_global: Tensor | None = None) -> Tensor:
        record_coordinates(self, x, lambda maps: gcvit.window_partition(maps, self.window_size))
        return self.run("attn.end", cast(Tensor, super()._window_attn(x, q_global)))


def _sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    _, rows, columns, dim = shapes.input_shape(path)
    module, window = block.attn, block.window_size
    if module.use_global:
        heads = projected_heads(module, {"k": "qkv", "v": ("qkv", dim)}, width=module.head_dim)
    else:
        heads = fused_heads(module)
    yield checked_site(
        module,
        f"{path}.attn",
        block=path,
        arguments=("x", "q_global", "args", "kwargs"),
        children=("rel_pos", *CHILDREN),
        heads=heads,
        dim=dim,
        **windowed((rows, columns), (window[0], window[1])),
        cross=module.use_global,
        **rel_pos_fields(module),
    )
    yield from mlp.mlp_sites(block.mlp, f"{path}.mlp", **map_fields(dim, rows, columns))


class TimmGCViT(TimmFamily):
    """Sites `stages.<i>.blocks.<j>.attn` and `.mlp`."""

    name = "timm.gcvit"
    summary = "timm GCViT of any size, including features_only"
    patched: ClassVar = {
        gcvit.WindowAttentionGlobal: GraftedWindowAttentionGlobal,
        gcvit.GlobalContextVitBlock: GraftedGlobalContextVitBlock,
        **mlp.PATCHED,
    }
    models = (gcvit.GlobalContextVit,)
    blocks: ClassVar = {gcvit.GlobalContextVitBlock: _sites}

    def example_inputs(self, model: nn.Module, *, batch: int) -> tuple[Tensor, ...]:
        """Return random images; the map of the first stage determines their size."""
        first = next(module for module in model.modules() if isinstance(module, gcvit.GlobalContextVitStage))
        rows, columns = (4 * side for side in first.feat_size)
        return random_images(model, (image_size(model)[0], rows, columns), batch=batch)
