"""timm's VOLO: outlooks over neighbourhoods, then ViT blocks on maps, then blocks in which the class token asks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch.nn.functional as F
from timm.models.volo import VOLO, Attention, ClassAttention, ClassBlock, OutlookAttention, Outlooker, Transformer
from torch import Tensor

from attngraft.attention import CLASS, AttentionGeometry, HookPoint, Projected, SpaceSite, plain_class
from attngraft.hosts.adapter import Site, check_known, head_rows, own_parameters, random_images
from attngraft.hosts.registry import register_host
from attngraft.hosts.sites import fused_heads, global_site
from attngraft.hosts.timm import mlp as timm_mlp
from attngraft.hosts.timm.attention import SelfAttention, by_heads, by_role, mlp_sites
from attngraft.hosts.timm.class_attention import ClassSite, class_site
from attngraft.hosts.timm.family import Look, TimmFamily, image_size

_OUTLOOK: dict[HookPoint, str] = {
    "mix": "each of its places makes the weights of its neighbours from its own token: there are no queries and keys",
    "weights": "its weights are those of a neighbourhood around each place, not of one token for another",
    "attn.window": "its neighbourhoods overlap and are summed up, so none ends by itself; use scope=image",
}


class MapSite(SpaceSite, SelfAttention):
    """The maps are (B, rows, columns, C); grafts within the attention see tokens."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        found = self.stand_in(x)
        if found is None:
            tokens = super().forward(x.flatten(1, 2), *args, **kwargs)
        else:
            tokens = self.run("attn.end", found.flatten(1, 2))
        return tokens.unflatten(1, x.shape[1:3])


class GraftedAttention(MapSite, Attention):
    """`timm.models.volo.Attention`."""

    detaches: ClassVar = ("qkv", "proj")
    branch_of = staticmethod(Attention.forward)

    def project(self, x: Tensor) -> Projected:
        return Projected(*by_role(self.qkv(x), self.num_heads), x)


class GraftedOutlookAttention(MapSite, OutlookAttention):
    """`timm.models.volo.OutlookAttention`: what enters the output projection, by heads, is the first that grafts see.

    Scores (B, H, places, cells, cells) are a linear map of the token of a place. They stand for queries; there are no keys.
    """

    fused_attn = False
    detaches: ClassVar = ("v", "attn", "proj")
    branch_of = staticmethod(OutlookAttention.forward)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x, x.shape[1:3])

    def project(self, x: Tensor, grid: tuple[int, int]) -> Projected:
        batch, width, cells = x.shape[0], x.shape[-1], self.kernel_size**2
        places = -(-grid[0] // self.stride) * -(-grid[1] // self.stride)
        maps = x.unflatten(1, grid)
        v = self.unfold(self.v(maps).permute(0, 3, 1, 2))
        v = v.reshape(batch, self.num_heads, width // self.num_heads, cells, places).permute(0, 1, 4, 3, 2)
        scores = self.attn(self.pool(maps.permute(0, 3, 1, 2)).permute(0, 2, 3, 1))
        scores = scores.reshape(batch, places, self.num_heads, cells, cells).permute(0, 2, 1, 3, 4)
        return Projected(scores, scores[..., :0], v, x, rest=grid)

    def scores(self, projected: Projected) -> Tensor:
        return projected.q * self.scale

    def attend(self, projected: Projected) -> Tensor:
        """Neighbourhoods averaged, and summed up where they overlap: (B, H, N, d)."""
        around = self.spread(self.scores(projected).softmax(dim=-1), projected).permute(0, 1, 4, 3, 2)
        summed = F.fold(
            around.reshape(around.shape[0], -1, around.shape[-1]),
            output_size=projected.rest,
            kernel_size=self.kernel_size,
            padding=self.padding,
            stride=self.stride,
        )
        return summed.flatten(2).unflatten(1, (self.num_heads, -1)).transpose(2, 3)

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        return super().merge(heads, projected._replace(rest=None))


class GraftedClassAttention(ClassSite, ClassAttention):
    """`timm.models.volo.ClassAttention`: a projection of q, one of k and v."""

    fused_attn = False

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        k, v = self.kv(x).unflatten(-1, (2, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4).unbind(0)
        return by_heads(self.q(x[:, :1]), self.num_heads), k, v


class TimmVolo(TimmFamily):
    """Sites `network.<i>.<j>.attn` and `.mlp`, `post_network.<i>.attn` and `.mlp`, which the class token alone leaves."""

    name = "timm.volo"
    summary = "timm VOLO of any size, features_only too"
    patched: ClassVar = {
        Attention: GraftedAttention,
        OutlookAttention: GraftedOutlookAttention,
        ClassAttention: GraftedClassAttention,
        **timm_mlp.PATCHED,
    }
    models = (VOLO,)
    blocks = (Outlooker, Transformer, ClassBlock)

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        """Positions of the pooled map say the size that the model was made for."""
        channels, *size = image_size(model)
        if model.pos_embed is not None:
            scale = model.feature_info[0]["reduction"] * model.pooling_scale
            size = [side * scale for side in model.pos_embed.shape[1:3]]
        return random_images(model, (channels, *size), batch=batch)

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        if plain_class(block) is ClassBlock:
            _, tokens, dim = look.entering(path)
            yield _class_site(block.attn, f"{path}.attn", dim=dim, tokens=tokens, grid=self._last_grid(look))
            yield from mlp_sites(block.mlp, f"{path}.mlp", dim=dim, tokens=1, prefix=CLASS)
            return
        _, rows, columns, dim = look.entering(path)
        site = _attention_site if plain_class(block) is Transformer else _outlook_site
        fields = {"dim": dim, "tokens": rows * columns, "grid": (rows, columns)}
        yield site(block.attn, f"{path}.attn", **fields)
        yield from mlp_sites(block.mlp, f"{path}.mlp", **fields)

    def _last_grid(self, look: Look) -> tuple[int, int]:
        """The map that the class token joins."""
        _, rows, columns, _ = look.leaving(f"network.{len(look.model.network) - 1}")
        return rows, columns


def _attention_site(module: Any, path: str, **tokens: Any) -> Site:
    check_known(module, path, arguments=("x", "args", "kwargs"), children=("qkv", "attn_drop", "proj", "proj_drop"))
    return global_site(path, AttentionGeometry(**tokens, **fused_heads(module)), on_maps=True)


def _outlook_site(module: Any, path: str, **tokens: Any) -> Site:
    check_known(
        module,
        path,
        arguments=("x", "args", "kwargs"),
        children=("v", "attn", "attn_drop", "proj", "proj_drop", "unfold", "pool"),
    )
    width = module.proj.in_features // module.num_heads
    geometry = AttentionGeometry(
        **tokens,
        heads=module.num_heads,
        key_width=0,
        value_width=width,
        rows={"v": head_rows(module, "v", start=0, width=width, step=width)},
        query_key_parameters=own_parameters(module, "attn"),
    )
    return global_site(path, geometry, _OUTLOOK, on_maps=True)


def _class_site(module: Any, path: str, **tokens: Any) -> Site:
    width, all_heads = module.head_dim, module.head_dim * module.num_heads
    rows = {
        role: head_rows(module, name, start=start, width=width, step=width)
        for role, name, start in (("q", "q", 0), ("k", "kv", 0), ("v", "kv", all_heads))
    }
    return class_site(module, path, children=("q", "kv"), rows=rows, **tokens)


register_host(TimmVolo())
