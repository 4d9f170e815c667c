"""timm's Swin, Swin V2 and Swin V2-CR: windows, shift, relative positions; as a whole model or with `features_only`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from timm.models.swin_transformer import SwinTransformer, SwinTransformerBlock, WindowAttention
from timm.models.swin_transformer_v2 import SwinTransformerV2, SwinTransformerV2Block
from timm.models.swin_transformer_v2 import WindowAttention as WindowAttentionV2
from timm.models.swin_transformer_v2_cr import SwinTransformerV2Cr, SwinTransformerV2CrBlock, WindowMultiHeadAttention
from torch import Tensor, nn

from attngraft.attention import AttentionGeometry, plain_class
from attngraft.hosts.adapter import Site, check_known, own_parameters
from attngraft.hosts.registry import register_host
from attngraft.hosts.sites import fused_heads, window_site, windowed
from attngraft.hosts.timm import mlp as timm_mlp
from attngraft.hosts.timm.attention import by_role, mlp_sites
from attngraft.hosts.timm.family import Look, TimmFamily
from attngraft.hosts.timm.rope import fused_qkv
from attngraft.hosts.timm.windows import CosineWindowSite, WindowBlock, WindowSite


class GraftedWindowAttention(WindowSite, WindowAttention):
    """`timm.models.swin_transformer.WindowAttention`: a table of relative positions."""

    def position_bias(self) -> Tensor:
        return self._get_rel_pos_bias()


class GraftedWindowAttentionV2(CosineWindowSite, WindowAttentionV2):
    """`timm.models.swin_transformer_v2.WindowAttention`: cosines, log-spaced positions through a network."""

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return by_role(fused_qkv(self, x), self.num_heads)

    def position_bias(self) -> Tensor:
        table = self.cpb_mlp(self.relative_coords_table).view(-1, self.num_heads)
        index = cast(Tensor, self.relative_position_index)
        bias = table[index.view(-1)].view(*index.shape, -1).permute(2, 0, 1).contiguous()
        return (16 * torch.sigmoid(bias)).unsqueeze(0)


class GraftedWindowMultiHeadAttention(CosineWindowSite, WindowMultiHeadAttention):
    """`timm.models.swin_transformer_v2_cr.WindowMultiHeadAttention`: cosines, another network of positions."""

    def position_bias(self) -> Tensor:
        return self._relative_positional_encodings()


class GraftedSwinBlock(WindowBlock, SwinTransformerBlock):
    """`timm.models.swin_transformer.SwinTransformerBlock`."""

    branch_of = staticmethod(SwinTransformerBlock._attn)

    def _attn(self, x: Tensor) -> Tensor:
        return self.branch(x, super()._attn)


class GraftedSwinV2Block(WindowBlock, SwinTransformerV2Block):
    """`timm.models.swin_transformer_v2.SwinTransformerV2Block`."""

    branch_of = staticmethod(SwinTransformerV2Block._attn)

    def _attn(self, x: Tensor) -> Tensor:
        return self.branch(x, super()._attn)


class GraftedSwinV2CrBlock(WindowBlock, SwinTransformerV2CrBlock):
    """`timm.models.swin_transformer_v2_cr.SwinTransformerV2CrBlock`."""

    branch_of = staticmethod(SwinTransformerV2CrBlock._shifted_window_attn)

    def _shifted_window_attn(self, x: Tensor) -> Tensor:
        return self.branch(x, super()._shifted_window_attn)


@dataclass(frozen=True)
class _Positions:
    """What serves only the scores, beside q and k; which of it counts heads on its first or last axis."""

    parameters: tuple[str, ...]
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()


_POSITIONS: Mapping[type[nn.Module], _Positions] = {
    WindowAttention: _Positions(("relative_position_bias_table",), columns=("relative_position_bias_table",)),
    WindowAttentionV2: _Positions(("logit_scale", "cpb_mlp"), rows=("logit_scale", "cpb_mlp.2")),
    WindowMultiHeadAttention: _Positions(("logit_scale", "meta_mlp"), rows=("logit_scale", "meta_mlp.fc2")),
}


class TimmSwin(TimmFamily):
    """Sites `layers.<i>.blocks.<j>.attn` and `.mlp`; V2-CR: `stages.<i>.blocks.<j>`."""

    name = "timm.swin"
    summary = "timm Swin, Swin V2 and Swin V2-CR of any size, features_only too"
    patched: ClassVar = {
        WindowAttention: GraftedWindowAttention,
        WindowAttentionV2: GraftedWindowAttentionV2,
        WindowMultiHeadAttention: GraftedWindowMultiHeadAttention,
        SwinTransformerBlock: GraftedSwinBlock,
        SwinTransformerV2Block: GraftedSwinV2Block,
        SwinTransformerV2CrBlock: GraftedSwinV2CrBlock,
        **timm_mlp.PATCHED,
    }
    models = (SwinTransformer, SwinTransformerV2, SwinTransformerV2Cr)
    blocks = (SwinTransformerBlock, SwinTransformerV2Block, SwinTransformerV2CrBlock)

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        grid = self._grid(look.model, path)
        yield self._attention_site(block, path, grid)
        yield from mlp_sites(block.mlp, f"{path}.mlp", dim=block.dim, tokens=grid[0] * grid[1], grid=grid)

    def _grid(self, model: Any, path: str) -> tuple[int, int]:
        """The map of the stage; the block's own `input_resolution` rounds odd maps down in older timm (1.0.26)."""
        stage = int(self.canonical(path).split(".")[1])
        rows, columns = (-(-side // 2**stage) for side in model.patch_embed.grid_size)
        return rows, columns

    def _attention_site(self, block: Any, path: str, grid: tuple[int, int]) -> Site:
        module, attn = block.attn, f"{path}.attn"
        check_known(
            module,
            attn,
            arguments=("x", "mask", "args", "kwargs"),
            children=("qkv", "attn_drop", "proj", "proj_drop", "softmax", "cpb_mlp", "meta_mlp"),
        )
        positions = _POSITIONS[plain_class(module)]
        geometry = AttentionGeometry(
            dim=module.qkv.in_features,
            **windowed(grid, tuple(module.window_size)),
            **fused_heads(module),
            query_key_parameters=own_parameters(module, *positions.parameters),
            score_rows=own_parameters(module, *positions.rows),
            score_columns=own_parameters(module, *positions.columns),
        )
        return window_site(attn, geometry, block=path, fills=True, space=path)


register_host(TimmSwin())
