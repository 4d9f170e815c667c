"""timm's TinyViT: attention in windows between convolutions; norms are inside the branches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, cast

import torch
from timm.models.tiny_vit import Attention, NormMlp, TinyVit, TinyVitBlock
from torch import Tensor, nn

from attngraft.attention import MlpGeometry, MlpSite, Projected
from attngraft.hosts.adapter import Site, check_known, head_rows
from attngraft.hosts.linear_ends import LinearEnds
from attngraft.hosts.registry import register_host
from attngraft.hosts.sites import mlp_site
from attngraft.hosts.timm.family import Look, TimmFamily
from attngraft.hosts.timm.maps import tokens_of
from attngraft.hosts.timm.still_windows import StillWindows, Undropped, windows_site


class GraftedAttention(Undropped, Attention):
    """`timm.models.tiny_vit.Attention`: a norm, rows of q, k, v head by head, a bias per distance."""

    def get_attention_biases(self, device: torch.device) -> Tensor:
        """(H, N, N). The host keeps them between calls in evaluation mode; values and graphs of before would stay."""
        return self.attention_biases[:, cast(Tensor, self.attention_bias_idxs)]

    def project(self, x: Tensor, present: Tensor | None = None) -> Projected:
        x = self.norm(x)
        parts = self.qkv(x).unflatten(-1, (self.num_heads, -1)).split((self.key_dim, self.key_dim, self.val_dim), dim=3)
        q, k, v = (part.permute(0, 2, 1, 3) for part in parts)
        return Projected(q, k, v, x, bias=self.get_attention_biases(x.device), present=present)

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        """`norm` is that of the tokens that enter, not one of the heads."""
        return self.proj(heads.transpose(1, 2).flatten(2))


class GraftedBlock(StillWindows, TinyVitBlock):
    """`timm.models.tiny_vit.TinyVitBlock`: a convolution of neighbours between attention and MLP."""

    def forward(self, x: Tensor) -> Tensor:
        grid = x.shape[1:3]
        x = x + self.drop_path1(self.branch(x, (self.window_size, self.window_size)))
        x = tokens_of(self.local_conv(x.permute(0, 3, 1, 2)))
        return cast(Tensor, x + self.drop_path2(self.mlp(x))).unflatten(1, grid)


class GraftedNormMlp(LinearEnds, MlpSite, NormMlp):
    """`timm.models.tiny_vit.NormMlp`: its own norm comes first, so its front is behind that."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.norm(x))

    def hidden(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.drop1(self.act(self.fc1(x))))

    def out(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.drop2(self.fc2(x)))


class TimmTinyViT(TimmFamily):
    """Sites `stages.<i>.blocks.<j>.attn` and `.mlp`."""

    name = "timm.tiny_vit"
    summary = "timm TinyViT of any size, features_only too"
    patched: ClassVar = {Attention: GraftedAttention, TinyVitBlock: GraftedBlock, NormMlp: GraftedNormMlp}
    models = (TinyVit,)
    blocks = (TinyVitBlock,)

    def read(self, block: Any, path: str, look: Look) -> Iterable[Site]:
        _, rows, columns, dim = look.entering(path)
        module, attn, grid = block.attn, f"{path}.attn", (rows, columns)
        check_known(
            block,
            path,
            arguments=("x",),
            children=("attn", "drop_path1", "mlp", "drop_path2", "local_conv"),
        )
        check_known(module, attn, arguments=("x", "args", "kwargs"), children=("norm", "qkv", "proj"))
        key, value = module.key_dim, module.val_dim
        starts = {"q": (0, key), "k": (key, key), "v": (2 * key, value)}
        yield windows_site(
            attn,
            path,
            window=(block.window_size, block.window_size),
            grid=grid,
            dim=dim,
            heads=module.num_heads,
            widths=(key, value),
            rows={
                role: head_rows(module, "qkv", start=start, width=width, step=2 * key + value)
                for role, (start, width) in starts.items()
            },
            biases=("attention_biases",),
        )
        yield _mlp_site(block.mlp, f"{path}.mlp", dim=dim, tokens=rows * columns, grid=grid)

    def forget(self, model: nn.Module) -> None:
        """The attention biases that an evaluation gathered: they have a graph, if there was one, and older timm (1.0.26)
        makes them anew only after training."""
        for module in model.modules():
            if isinstance(module, Attention):
                module.attention_bias_cache = {}


def _mlp_site(module: Any, path: str, **tokens: Any) -> Site:
    check_known(module, path, arguments=("x",), children=("norm", "fc1", "act", "drop1", "fc2", "drop2"))
    return mlp_site(path, MlpGeometry(hidden=module.fc2.in_features, **tokens))


register_host(TimmTinyViT())
