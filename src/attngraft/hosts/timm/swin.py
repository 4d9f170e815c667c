"""timm's Swin, Swin V2 and Swin V2-CR: shifted windows and relative positions."""

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import torch
from timm.models.swin_transformer import SwinTransformer, SwinTransformerBlock, WindowAttention
from timm.models.swin_transformer_v2 import SwinTransformerV2, SwinTransformerV2Block
from timm.models.swin_transformer_v2 import WindowAttention as WindowAttentionV2
from timm.models.swin_transformer_v2_cr import SwinTransformerV2Cr, SwinTransformerV2CrBlock, WindowMultiHeadAttention
from torch import Tensor, nn

from attngraft.attention import plain_class
from attngraft.hosts.adapter import own_parameters
from attngraft.hosts.sites import windowed
from attngraft.hosts.timm import mlp
from attngraft.hosts.timm.attention import split_qkv
from attngraft.hosts.timm.family import CHILDREN, ShapeProbe, Sites, TimmFamily, checked_site, map_fields
from attngraft.hosts.timm.rotary import fused_qkv
from attngraft.hosts.timm.windows import CosineWindowSite, ShiftedWindowBlock, WindowSite


class GraftedWindowAttention(WindowSite, WindowAttention):
    """`timm.models.swin_transformer.WindowAttention`: a table of relative positions."""

    def position_bias(self) -> Tensor:
        return self._get_rel_pos_bias()


class GraftedWindowAttentionV2(CosineWindowSite, WindowAttentionV2):
    """`timm.models.swin_transformer_v2.WindowAttention`: cosine scores, log-spaced relative positions through an MLP."""

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        return split_qkv(fused_qkv(self, x), self.num_heads)

    def position_bias(self) -> Tensor:
        table = self.cpb_mlp(self.relative_coords_table).view(-1, self.num_heads)
        index = cast(Tensor, self.relative_position_index)
        bias = table[index.view(-1)].view(*index.shape, -1).permute(2, 0, 1).contiguous()
        return (16 * torch.sigmoid(bias)).unsqueeze(0)


class GraftedWindowMultiHeadAttention(CosineWindowSite, WindowMultiHeadAttention):
    """`timm.models.swin_transformer_v2_cr.WindowMultiHeadAttention`: cosine scores, positions through another MLP."""

    def position_bias(self) -> Tensor:
        return self._relative_positional_encodings()


class GraftedSwinBlock(ShiftedWindowBlock, SwinTransformerBlock):
    """Patched class of `timm.models.swin_transformer.SwinTransformerBlock`."""

    branch_of = staticmethod(SwinTransformerBlock._attn)

    def _attn(self, x: Tensor) -> Tensor:
        return self.branch(x, super()._attn)


class GraftedSwinV2Block(ShiftedWindowBlock, SwinTransformerV2Block):
    """Patched class of `timm.models.swin_transformer_v2.SwinTransformerV2Block`."""

    branch_of = staticmethod(SwinTransformerV2Block._attn)

    def _attn(self, x: Tensor) -> Tensor:
        return self.branch(x, super()._attn)


class GraftedSwinV2CrBlock(ShiftedWindowBlock, SwinTransformerV2CrBlock):
    """Patched class of `timm.models.swin_transformer_v2_cr.SwinTransformerV2CrBlock`."""

    branch_of = staticmethod(SwinTransformerV2CrBlock._shifted_window_attn)

    def _shifted_window_attn(self, x: Tensor) -> Tensor:
        return self.branch(x, super()._shifted_window_attn)


_TABLE = ("relative_position_bias_table",)
#: attention class -> parameters (except q and k) used only by the scores: all, with heads as first axis, as last axis
_POSITIONS: Mapping[type[nn.Module], tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    WindowAttention: (_TABLE, (), _TABLE),
    WindowAttentionV2: (("logit_scale", "cpb_mlp"), ("logit_scale", "cpb_mlp.2"), ()),
    WindowMultiHeadAttention: (("logit_scale", "meta_mlp"), ("logit_scale", "meta_mlp.fc2"), ()),
}


def _sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    # `input_resolution` of the block rounds odd maps down in older timm (1.0.26)
    stage = int(shapes.adapter.canonical(path).split(".")[1])
    rows, columns = (-(-side // 2**stage) for side in shapes.model.patch_embed.grid_size)
    module = block.attn
    positions, score_rows, score_columns = _POSITIONS[plain_class(module)]
    yield checked_site(
        module,
        f"{path}.attn",
        block=path,
        fills=True,
        space=path,
        arguments=("x", "mask", "args", "kwargs"),
        children=(*CHILDREN, "softmax", "cpb_mlp", "meta_mlp"),
        dim=module.qkv.in_features,
        **windowed((rows, columns), tuple(module.window_size)),
        shift=tuple(block.shift_size),
        query_key_parameters=own_parameters(module, *positions),
        score_rows=own_parameters(module, *score_rows),
        score_columns=own_parameters(module, *score_columns),
    )
    yield from mlp.mlp_sites(block.mlp, f"{path}.mlp", **map_fields(block.dim, rows, columns))


class TimmSwin(TimmFamily):
    """Sites `layers.<i>.blocks.<j>.attn` and `.mlp`; V2-CR: `stages.<i>.blocks.<j>`."""

    name = "timm.swin"
    summary = "timm Swin, Swin V2 and Swin V2-CR of any size, including features_only"
    any_size: ClassVar = {"strict_img_size": False, "always_partition": True}
    patched: ClassVar = {
        WindowAttention: GraftedWindowAttention,
        WindowAttentionV2: GraftedWindowAttentionV2,
        WindowMultiHeadAttention: GraftedWindowMultiHeadAttention,
        SwinTransformerBlock: GraftedSwinBlock,
        SwinTransformerV2Block: GraftedSwinV2Block,
        SwinTransformerV2CrBlock: GraftedSwinV2CrBlock,
        **mlp.PATCHED,
    }
    models = (SwinTransformer, SwinTransformerV2, SwinTransformerV2Cr)
    blocks: ClassVar = dict.fromkeys((SwinTransformerBlock, SwinTransformerV2Block, SwinTransformerV2CrBlock), _sites)
