"""timm's EfficientFormer: pooling for a while, then attention of the last map's tokens with a bias per distance."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, cast

import torch
from timm.models.efficientformer import Attention, ConvMlpWithNorm, EfficientFormer, MetaBlock1d, MetaBlock2d
from torch import Tensor, nn

from attngraft.attention import AttentionGeometry, HookPoint, MlpGeometry, Projected, plain_class
from attngraft.hosts.adapter import Site, check_known, head_rows
from attngraft.hosts.registry import register_host
from attngraft.hosts.sites import global_site, mlp_site
from attngraft.hosts.timm import mlp as timm_mlp
from attngraft.hosts.timm.attention import mlp_sites
from attngraft.hosts.timm.family import Look, TimmFamily
from attngraft.hosts.timm.maps import MapMlpSite
from attngraft.hosts.timm.still_windows import Undropped


class GraftedAttention(Undropped, Attention):
    """`timm.models.efficientformer.Attention`: rows of q, k, v head by head; values are wider than keys."""

    ends: tuple[HookPoint, ...] = ("attn.end",)
    fused_attn = False

    def get_attention_biases(self, device: torch.device) -> Tensor:
        """(H, N, N). The host keeps them between calls in evaluation mode; values and graphs of before would stay."""
        return self.attention_biases[:, cast(Tensor, self.attention_bias_idxs)]

    def project(self, x: Tensor) -> Projected:
        parts = self.qkv(x).unflatten(-1, (self.num_heads, -1)).split((self.key_dim, self.key_dim, self.val_dim), dim=3)
        q, k, v = (part.permute(0, 2, 1, 3) for part in parts)
        return Projected(q, k, v, x, bias=self.get_attention_biases(x.device))

    def scores(self, projected: Projected) -> Tensor:
        """The host's own order of factors."""
        return projected.q @ projected.k.transpose(-2, -1) * self.scale + cast(Tensor, projected.bias)


class GraftedConvMlpWithNorm(MapMlpSite, ConvMlpWithNorm):
    """`timm.models.efficientformer.ConvMlpWithNorm`: as convolutions of one pixel, each with a batch norm."""

    def hidden(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.drop(self.act(self.norm1(self.fc1(x)))))

    def out(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.drop(self.norm2(self.fc2(x))))


class TimmEfficientFormer(TimmFamily):
    """Sites `stages.<i>.blocks.<j>.mlp`, and in the last blocks `.token_mixer`."""

    name = "timm.efficientformer"
    summary = "timm EfficientFormer of any size (attention in its last blocks; MLPs everywhere), features_only too"
    patched: ClassVar = {Attention: GraftedAttention, ConvMlpWithNorm: GraftedConvMlpWithNorm, **timm_mlp.PATCHED}
    models = (EfficientFormer,)
    blocks = (MetaBlock1d, MetaBlock2d)

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        if plain_class(block) is MetaBlock1d:
            _, tokens, dim = look.entering(path)
            yield _attention_site(block.token_mixer, f"{path}.token_mixer", dim=dim, tokens=tokens)
            yield from mlp_sites(block.mlp, f"{path}.mlp", dim=dim, tokens=tokens)
        else:
            _, dim, rows, columns = look.entering(path)
            mlp = f"{path}.mlp"
            check_known(block.mlp, mlp, arguments=("x",), children=("fc1", "norm1", "act", "fc2", "norm2", "drop"))
            hidden = block.mlp.fc1.out_channels
            yield mlp_site(mlp, MlpGeometry(dim=dim, tokens=rows * columns, grid=(rows, columns), hidden=hidden))

    def forget(self, model: nn.Module) -> None:
        """The attention biases that an evaluation gathered: they have a graph, if there was one, and older timm (1.0.26)
        makes them anew only after training."""
        for module in model.modules():
            if isinstance(module, Attention):
                module.attention_bias_cache = {}


def _attention_site(module: Any, path: str, **tokens: Any) -> Site:
    check_known(module, path, arguments=("x", "args", "kwargs"), children=("qkv", "proj"))
    key, value = module.key_dim, module.val_dim
    starts = {"q": (0, key), "k": (key, key), "v": (2 * key, value)}
    geometry = AttentionGeometry(
        **tokens,
        heads=module.num_heads,
        key_width=key,
        value_width=value,
        rows={
            role: head_rows(module, "qkv", start=start, width=width, step=2 * key + value)
            for role, (start, width) in starts.items()
        },
        query_key_parameters=("attention_biases",),
        score_rows=("attention_biases",),
    )
    return global_site(path, geometry)


register_host(TimmEfficientFormer())
