"""timm's VOLO: outlook attention over neighborhoods, then ViT blocks on maps, then class attention."""

from typing import Any, ClassVar

import torch.nn.functional as F
from timm.models import volo
from torch import Tensor

from attngraft.attention import CLASS, HookPoint, Projected, SpaceSite
from attngraft.hosts.adapter import own_parameters, random_images
from attngraft.hosts.family import ShapeProbe, Sites
from attngraft.hosts.sites import projected_heads
from attngraft.hosts.timm import mlp
from attngraft.hosts.timm.attention import ClassAttention, FusedQkv, PlainMerge, split_heads, split_qkv
from attngraft.hosts.timm.family import TimmFamily, checked_site, class_attention_site, image_size, map_fields

_OUTLOOK: dict[HookPoint, str] = {
    "mix": "each position computes the weights of its neighborhood from its own token, without queries and keys",
    "weights": "its weights are for the neighborhood of each position, not for pairs of tokens",
    "attn.window": "its neighborhoods overlap and are summed, so none has a separate output; use scope=image",
}


class MapSite(SpaceSite, PlainMerge):
    """Attention on maps (B, rows, columns, C); grafts get tokens, except at `space`."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        replaced = self.stand_in(x)
        if replaced is None:
            tokens = super().forward(x.flatten(1, 2), *args, **kwargs)
        else:
            tokens = self.run("attn.end", replaced.flatten(1, 2))
        return tokens.unflatten(1, x.shape[1:3])


class GraftedAttention(MapSite, FusedQkv, volo.Attention):
    """Patched class of `timm.models.volo.Attention`."""

    detaches: ClassVar = ("qkv", "proj")
    branch_of = staticmethod(volo.Attention.forward)


class GraftedOutlookAttention(MapSite, volo.OutlookAttention):
    """`timm.models.volo.OutlookAttention`: the first hook point is `heads`, before the output projection.

    Scores (B, H, positions, cells, cells) are a linear map of the token at each position. They are stored
    in place of the queries; there are no keys.
    """

    fused_attn = False
    detaches: ClassVar = ("v", "attn", "proj")
    branch_of = staticmethod(volo.OutlookAttention.forward)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x, x.shape[1:3])

    def project(self, x: Tensor, grid: tuple[int, int]) -> Projected:
        batch, width, cells = x.shape[0], x.shape[-1], self.kernel_size**2
        positions = -(-grid[0] // self.stride) * -(-grid[1] // self.stride)
        maps = x.unflatten(1, grid)
        v = self.unfold(self.v(maps).permute(0, 3, 1, 2))
        v = v.reshape(batch, self.num_heads, width // self.num_heads, cells, positions).permute(0, 1, 4, 3, 2)
        scores = self.attn(self.pool(maps.permute(0, 3, 1, 2)).permute(0, 2, 3, 1))
        scores = scores.reshape(batch, positions, self.num_heads, cells, cells).permute(0, 2, 1, 3, 4)
        return Projected(scores, scores[..., :0], v, x, rest=grid)

    def scores(self, projected: Projected) -> Tensor:
        return projected.q * self.scale

    def attend(self, projected: Projected) -> Tensor:
        """Average every neighborhood by its weights and sum the overlaps: (B, H, N, d)."""
        around = self.spread(self.scores(projected).softmax(dim=-1), projected).permute(0, 1, 4, 3, 2)
        summed = F.fold(
            around.reshape(around.shape[0], -1, around.shape[-1]),
            output_size=projected.rest,
            kernel_size=self.kernel_size,
            padding=self.padding,
            stride=self.stride,
        )
        return summed.flatten(2).unflatten(1, (self.num_heads, -1)).transpose(2, 3)


class GraftedClassAttention(ClassAttention, volo.ClassAttention):
    """`timm.models.volo.ClassAttention`: one projection of q, one of k and v."""

    fused_attn = False

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        k, v = split_qkv(self.kv(x), self.num_heads, parts=2)
        return split_heads(self.q(x[:, :1]), self.num_heads), k, v


def _transformer_sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    _, rows, columns, dim = shapes.input_shape(path)
    fields = map_fields(dim, rows, columns)
    yield checked_site(block.attn, f"{path}.attn", on_maps=True, **fields)
    yield from mlp.mlp_sites(block.mlp, f"{path}.mlp", **fields)


def _outlooker_sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    _, rows, columns, dim = shapes.input_shape(path)
    module, fields = block.attn, map_fields(dim, rows, columns)
    width = module.proj.in_features // module.num_heads
    yield checked_site(
        module,
        f"{path}.attn",
        _OUTLOOK,
        on_maps=True,
        children=("v", "attn", "attn_drop", "proj", "proj_drop", "unfold", "pool"),
        heads=projected_heads(module, {"v": "v"}, width=0, value_width=width),
        query_key_parameters=own_parameters(module, "attn"),
        **fields,
    )
    yield from mlp.mlp_sites(block.mlp, f"{path}.mlp", **fields)


def _class_sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    # the host adds the class token after these blocks
    module, last = block.attn, f"network.{len(shapes.model.network) - 1}"
    _, rows, columns, dim = shapes.output_shape(last)
    value_rows = ("kv", module.num_heads * module.head_dim)
    heads = projected_heads(module, {"q": "q", "k": "kv", "v": value_rows}, width=module.head_dim)
    fields = map_fields(dim, rows, columns, prefix=CLASS)
    yield class_attention_site(module, f"{path}.attn", children=("q", "kv"), heads=heads, **fields)
    yield from mlp.mlp_sites(block.mlp, f"{path}.mlp", dim=dim, tokens=1, prefix=CLASS)


class TimmVolo(TimmFamily):
    """Sites `network.<i>.<j>.attn` and `.mlp`, `post_network.<i>.attn` and `.mlp`, with one output token."""

    name = "timm.volo"
    summary = "timm VOLO of any size, including features_only"
    patched: ClassVar = {
        volo.Attention: GraftedAttention,
        volo.OutlookAttention: GraftedOutlookAttention,
        volo.ClassAttention: GraftedClassAttention,
        **mlp.PATCHED,
    }
    models: ClassVar = (volo.VOLO,)
    blocks: ClassVar = {
        volo.Outlooker: _outlooker_sites,
        volo.Transformer: _transformer_sites,
        volo.ClassBlock: _class_sites,
    }

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        """Return random images; the position embedding of the pooled map determines their size."""
        channels, *size = image_size(model)
        if model.pos_embed is not None:
            scale = model.feature_info[0]["reduction"] * model.pooling_scale
            size = [side * scale for side in model.pos_embed.shape[1:3]]
        return random_images(model, (channels, *size), batch=batch)
