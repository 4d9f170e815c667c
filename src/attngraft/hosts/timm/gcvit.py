"""timm's GCViT: windows that ask their own tokens, and windows that are asked by tokens of the whole image."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, cast

from timm.models.gcvit import (
    GlobalContextVit,
    GlobalContextVitBlock,
    GlobalContextVitStage,
    WindowAttentionGlobal,
    window_partition,
)
from torch import Tensor, nn

from attngraft.attention import AttentionGeometry, HookPoint, Projected, record_coordinates
from attngraft.hosts.adapter import Site, check_known, fused_rows, head_rows, own_parameters, random_images
from attngraft.hosts.registry import register_host
from attngraft.hosts.sites import window_site, windowed
from attngraft.hosts.timm import mlp as timm_mlp
from attngraft.hosts.timm.attention import SelfAttention, by_heads, by_role, mlp_sites
from attngraft.hosts.timm.family import Look, TimmFamily, image_size
from attngraft.hosts.timm.positions import score_columns
from attngraft.hosts.timm.windows import WindowEnd

#: older timm (1.0.26) gave a window the queries of another image of the batch
_BY_IMAGE = "repeat_interleave" in WindowAttentionGlobal.forward.__code__.co_names


class GraftedWindowAttentionGlobal(SelfAttention, WindowAttentionGlobal):
    """`timm.models.gcvit.WindowAttentionGlobal`: its own queries, or, unprojected, tokens that sum up the image."""

    ends: tuple[HookPoint, ...] = ("attn.window",)
    fused_attn = False

    def project(self, x: Tensor, q_global: Tensor | None = None) -> Projected:
        bias = self.rel_pos.get_bias()
        if not self.use_global or q_global is None:
            return Projected(*by_role(self.qkv(x), self.num_heads), x, bias=bias)
        k, v = self.qkv(x).unflatten(-1, (2, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        windows = x.shape[0] // q_global.shape[0]
        asking = q_global.repeat_interleave(windows, dim=0) if _BY_IMAGE else q_global.repeat(windows, 1, 1, 1)
        asking = asking.reshape(x.shape)
        return Projected(by_heads(asking, self.num_heads), k, v, asking, bias=bias, keys=x)


class GraftedGlobalContextVitBlock(WindowEnd, GlobalContextVitBlock):
    """`timm.models.gcvit.GlobalContextVitBlock`."""

    def _window_attn(self, x: Tensor, q_global: Tensor | None = None) -> Tensor:
        record_coordinates(self, x, lambda maps: window_partition(maps, self.window_size))
        return self.run("attn.end", cast(Tensor, super()._window_attn(x, q_global)))


class TimmGCViT(TimmFamily):
    """Sites `stages.<i>.blocks.<j>.attn` and `.mlp`."""

    name = "timm.gcvit"
    summary = "timm GCViT of any size, features_only too"
    patched: ClassVar = {
        WindowAttentionGlobal: GraftedWindowAttentionGlobal,
        GlobalContextVitBlock: GraftedGlobalContextVitBlock,
        **timm_mlp.PATCHED,
    }
    models = (GlobalContextVit,)
    blocks = (GlobalContextVitBlock,)

    def example_inputs(self, model: nn.Module, *, batch: int) -> tuple[Tensor, ...]:
        """The map of the first stage says the size that the model was made for."""
        first = next(module for module in model.modules() if isinstance(module, GlobalContextVitStage))
        rows, columns = (4 * side for side in first.feat_size)
        return random_images(model, (image_size(model)[0], rows, columns), batch=batch)

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        _, rows, columns, dim = look.entering(path)
        module, attn, window = block.attn, f"{path}.attn", block.window_size
        check_known(
            module,
            attn,
            arguments=("x", "q_global", "args", "kwargs"),
            children=("rel_pos", "qkv", "attn_drop", "proj", "proj_drop"),
        )
        width = module.head_dim
        geometry = AttentionGeometry(
            dim=dim,
            **windowed((rows, columns), (window[0], window[1])),
            cross=module.use_global,
            heads=module.num_heads,
            key_width=width,
            value_width=width,
            rows=_rows(module, dim, width),
            query_key_parameters=own_parameters(module, "rel_pos"),
            score_columns=score_columns(module),
        )
        yield window_site(attn, geometry, block=path)
        yield from mlp_sites(block.mlp, f"{path}.mlp", dim=dim, tokens=rows * columns, grid=(rows, columns))


def _rows(module: Any, dim: int, width: int) -> dict[str, Any]:
    """Rows of q, k and v; of k and v alone where the queries are of the image."""
    if not module.use_global:
        return fused_rows(module, "qkv", heads=module.num_heads)
    return {
        role: head_rows(module, "qkv", start=start, width=width, step=width) for role, start in (("k", 0), ("v", dim))
    }


register_host(TimmGCViT())
