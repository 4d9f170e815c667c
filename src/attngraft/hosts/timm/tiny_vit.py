"""timm's TinyViT: attention in windows between convolutions, with norms inside the branches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, cast

import torch
from timm.models.tiny_vit import Attention, NormMlp, TinyVit, TinyVitBlock
from torch import Tensor, nn

from attngraft.attention import MlpGeometry, MlpSite, Projected
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.patched import TwoLinearEnds
from attngraft.hosts.shape_probe import ShapeProbe
from attngraft.hosts.sites import mlp_site, projected_heads, window_site, windowed
from attngraft.hosts.timm.attention import NoDropout, PlainMerge
from attngraft.hosts.timm.family import TimmFamily
from attngraft.hosts.timm.layouts import map_to_tokens
from attngraft.hosts.timm.sites import attention_geometry, map_fields
from attngraft.hosts.timm.windows import FixedWindowBlock

_BIASES = ("attention_biases",)


class GraftedAttention(NoDropout, PlainMerge, Attention):
    """`timm.models.tiny_vit.Attention`: input norm, rows of q, k, v head by head, a bias per distance."""

    def get_attention_biases(self, device: torch.device) -> Tensor:
        """Return the biases (H, N, N), not the host's evaluation cache, which may hold stale values and graphs."""
        return self.attention_biases[:, cast(Tensor, self.attention_bias_idxs)]

    def project(self, x: Tensor, present: Tensor | None = None) -> Projected:
        x = self.norm(x)
        parts = self.qkv(x).unflatten(-1, (self.num_heads, -1)).split((self.key_dim, self.key_dim, self.val_dim), dim=3)
        q, k, v = (part.permute(0, 2, 1, 3) for part in parts)
        return Projected(q, k, v, x, bias=self.get_attention_biases(x.device), present=present)


class GraftedBlock(FixedWindowBlock, TinyVitBlock):
    """`timm.models.tiny_vit.TinyVitBlock`: a local convolution between attention and MLP."""

    def forward(self, x: Tensor) -> Tensor:
        grid = x.shape[1:3]
        x = x + self.drop_path1(self.branch(x, (self.window_size, self.window_size)))
        x = map_to_tokens(self.local_conv(x.permute(0, 3, 1, 2)))
        return cast(Tensor, x + self.drop_path2(self.mlp(x))).unflatten(1, grid)


class GraftedNormMlp(TwoLinearEnds, MlpSite, NormMlp):
    """`timm.models.tiny_vit.NormMlp`: `mlp.front` is after its norm."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.norm(x))

    def hidden(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.drop1(self.act(self.fc1(x))))

    def out(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.drop2(self.fc2(x)))


def _sites(block: Any, path: str, shapes: ShapeProbe) -> Iterator[Site]:
    _, rows, columns, dim = shapes.input_shape(path)
    module, attn, mlp = block.attn, f"{path}.attn", block.mlp
    check_known(block, path, arguments=("x",), children=("attn", "drop_path1", "mlp", "drop_path2", "local_conv"))
    key, value = module.key_dim, module.val_dim
    starts = {"q": ("qkv", 0), "k": ("qkv", key), "v": ("qkv", 2 * key)}
    geometry = attention_geometry(
        module,
        attn,
        children=("norm", "qkv", "proj"),
        heads=projected_heads(module, starts, width=key, value_width=value, step=2 * key + value),
        dim=dim,
        **windowed((rows, columns), (block.window_size, block.window_size)),
        query_key_parameters=_BIASES,
        score_rows=_BIASES,
    )
    yield window_site(attn, geometry, block=path, fills=True)
    children = ("norm", "fc1", "act", "drop1", "fc2", "drop2")
    check_known(mlp, f"{path}.mlp", arguments=("x",), children=children)
    yield mlp_site(f"{path}.mlp", MlpGeometry(hidden=mlp.fc2.in_features, **map_fields(dim, rows, columns)))


class TimmTinyViT(TimmFamily):
    """Sites `stages.<i>.blocks.<j>.attn` and `.mlp`."""

    name = "timm.tiny_vit"
    summary = "timm TinyViT of any size, features_only too"
    patched: ClassVar = {Attention: GraftedAttention, TinyVitBlock: GraftedBlock, NormMlp: GraftedNormMlp}
    models = (TinyVit,)
    blocks: ClassVar = {TinyVitBlock: _sites}

    def forget(self, model: nn.Module) -> None:
        """Clear the attention biases gathered in evaluation mode, which may have a graph and be stale; see LeViT."""
        for module in model.modules():
            if isinstance(module, Attention):
                module.attention_bias_cache = {}
