"""timm's EfficientFormer: pooling blocks, then attention over the last map with a bias per distance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, cast

import torch
from timm.models.efficientformer import Attention, ConvMlpWithNorm, EfficientFormer, MetaBlock1d, MetaBlock2d
from torch import Tensor, nn

from attngraft.attention import HookPoint, MlpGeometry, Projected
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.shape_probe import ShapeProbe
from attngraft.hosts.sites import global_site, mlp_site, projected_heads
from attngraft.hosts.timm import mlp
from attngraft.hosts.timm.attention import NoDropout
from attngraft.hosts.timm.family import TimmFamily
from attngraft.hosts.timm.mlp import MapMlpSite, mlp_sites
from attngraft.hosts.timm.sites import attention_geometry, map_fields

_BIASES = ("attention_biases",)


class GraftedAttention(NoDropout, Attention):
    """`timm.models.efficientformer.Attention`: rows of q, k, v head by head; values are wider than keys."""

    ends: tuple[HookPoint, ...] = ("attn.end",)
    fused_attn = False

    def get_attention_biases(self, device: torch.device) -> Tensor:
        """Return the biases (H, N, N), not the host's evaluation cache, which may hold stale values and graphs."""
        return self.attention_biases[:, cast(Tensor, self.attention_bias_idxs)]

    def project(self, x: Tensor) -> Projected:
        parts = self.qkv(x).unflatten(-1, (self.num_heads, -1)).split((self.key_dim, self.key_dim, self.val_dim), dim=3)
        q, k, v = (part.permute(0, 2, 1, 3) for part in parts)
        return Projected(q, k, v, x, bias=self.get_attention_biases(x.device))

    def scores(self, projected: Projected) -> Tensor:
        """The order of factors is the host's."""
        return projected.q @ projected.k.transpose(-2, -1) * self.scale + cast(Tensor, projected.bias)


class GraftedConvMlpWithNorm(MapMlpSite, ConvMlpWithNorm):
    """`timm.models.efficientformer.ConvMlpWithNorm`: 1x1 convolutions, each with a batch norm."""

    def hidden(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.drop(self.act(self.norm1(self.fc1(x)))))

    def out(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.drop(self.norm2(self.fc2(x))))


def _attention_sites(block: Any, path: str, shapes: ShapeProbe) -> Iterator[Site]:
    _, tokens, dim = shapes.input_shape(path)
    module, mixer = block.token_mixer, f"{path}.token_mixer"
    key, value = module.key_dim, module.val_dim
    starts = {"q": ("qkv", 0), "k": ("qkv", key), "v": ("qkv", 2 * key)}
    geometry = attention_geometry(
        module,
        mixer,
        children=("qkv", "proj"),
        heads=projected_heads(module, starts, width=key, value_width=value, step=2 * key + value),
        dim=dim,
        tokens=tokens,
        query_key_parameters=_BIASES,
        score_rows=_BIASES,
    )
    yield global_site(mixer, geometry)
    yield from mlp_sites(block.mlp, f"{path}.mlp", dim=dim, tokens=tokens)


def _pooling_sites(block: Any, path: str, shapes: ShapeProbe) -> Iterator[Site]:
    _, dim, rows, columns = shapes.input_shape(path)
    children = ("fc1", "norm1", "act", "fc2", "norm2", "drop")
    check_known(block.mlp, f"{path}.mlp", arguments=("x",), children=children)
    geometry = MlpGeometry(hidden=block.mlp.fc1.out_channels, **map_fields(dim, rows, columns))
    yield mlp_site(f"{path}.mlp", geometry)


class TimmEfficientFormer(TimmFamily):
    """Sites `stages.<i>.blocks.<j>.mlp`, and in the last blocks `.token_mixer`."""

    name = "timm.efficientformer"
    summary = "timm EfficientFormer of any size (attention in its last blocks; MLPs everywhere), features_only too"
    patched: ClassVar = {Attention: GraftedAttention, ConvMlpWithNorm: GraftedConvMlpWithNorm, **mlp.PATCHED}
    models = (EfficientFormer,)
    blocks: ClassVar = {MetaBlock1d: _attention_sites, MetaBlock2d: _pooling_sites}

    def forget(self, model: nn.Module) -> None:
        """Clear the attention biases gathered in evaluation mode, which may have a graph and be stale; see LeViT."""
        for module in model.modules():
            if isinstance(module, Attention):
                module.attention_bias_cache = {}
