"""timm's LeViT: tokens or maps, batch norms behind every linear map, attention that subsamples between the stages."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, cast

import torch
from timm.layers import get_act_layer
from timm.models._features import FeatureDictNet, FeatureListNet
from timm.models.levit import (
    Attention,
    AttentionDownsample,
    ConvNorm,
    Levit,
    LevitBlock,
    LevitDistilled,
    LevitDownsample,
    LevitMlp,
    LinearNorm,
    NormLinear,
)
from torch import Tensor, nn

from attngraft.attention import (
    AttentionGeometry,
    AttentionSite,
    LinearLayer,
    MlpGeometry,
    Projected,
    Projection,
)
from attngraft.errors import HostError
from attngraft.hosts.adapter import (
    HostAdapter,
    Site,
    check_known,
    head_rows,
    norm_state,
    own_state,
    random_images,
)
from attngraft.hosts.linear_ends import LinearEnds
from attngraft.hosts.registry import register_host
from attngraft.hosts.sites import global_site, mlp_site
from attngraft.hosts.timm.maps import MapMlpSite, in_order_of, map_of, tokens_of

_ACTIVATIONS = ("hard_swish", "silu", "gelu", "relu", "relu6", "leaky_relu", "elu", "mish", "tanh", "sigmoid")


class LevitSite(AttentionSite):
    """What both attentions share. Grafts see tokens (B, N, C), also where the host has maps (`use_conv`)."""

    fused_attn = False
    use_conv: bool
    resolution: tuple[int, int]
    num_heads: int
    key_dim: int
    val_dim: int
    attention_biases: Tensor
    attention_bias_idxs: Tensor
    proj: nn.Sequential

    def forward(self, x: Tensor) -> Tensor:
        if not self.use_conv:
            return super().forward(x)
        return in_order_of(map_of(super().forward(tokens_of(x)), self.query_grid()), x)

    def query_grid(self) -> tuple[int, int]:
        """(rows, columns) of the map that leaves."""
        return self.resolution

    def get_attention_biases(self, device: torch.device) -> Tensor:
        """(H, Nq, Nk). The host keeps them between calls in evaluation mode; values and graphs of before would stay."""
        return self.attention_biases[:, self.attention_bias_idxs]

    def split(self, projection: nn.Module, x: Tensor, widths: tuple[int, ...]) -> tuple[Tensor, ...]:
        """Project tokens (B, N, C) and cut each head's rows: (B, H, N, width) each, in the host's own memory order."""
        if self.use_conv:
            y = projection(map_of(x, self.resolution)).flatten(2).unflatten(1, (self.num_heads, -1))
            return tuple(part.transpose(-2, -1) for part in y.split(widths, dim=2))
        y = projection(x).unflatten(-1, (self.num_heads, -1))
        return tuple(part.permute(0, 2, 1, 3) for part in y.split(widths, dim=3))

    def scores(self, projected: Projected) -> Tensor:
        return projected.q @ projected.k.transpose(-2, -1) * self.scale + cast(Tensor, projected.bias)

    def spread(self, weights: Tensor, projected: Projected) -> Tensor:
        if self.use_conv:
            return (projected.v.transpose(-2, -1) @ weights.transpose(-2, -1)).transpose(-2, -1)
        return weights @ projected.v

    def visible(self, projected: Projected) -> None:
        return None

    def dropped(self) -> float:
        return 0.0

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        if self.use_conv:
            maps = heads.transpose(-2, -1).reshape(heads.shape[0], -1, *self.query_grid())
            return tokens_of(self.proj(maps.contiguous()))  # as the host's own are, whatever a graft made of the heads
        return cast(Tensor, self.proj(heads.transpose(1, 2).flatten(2)))

    def drop(self, tokens: Tensor) -> Tensor:
        return tokens

    def output_layer(self) -> LinearLayer | None:
        return _linear(self.proj.ln)


class GraftedAttention(LevitSite, Attention):
    """`timm.models.levit.Attention`: rows of the projection are q, k, v of head 0, then of head 1, and so on."""

    def project(self, x: Tensor) -> Projected:
        q, k, v = self.split(self.qkv, x, (self.key_dim, self.key_dim, self.val_dim))
        return Projected(q, k, v, x, bias=self.get_attention_biases(x.device))


class GraftedAttentionDownsample(LevitSite, AttentionDownsample):
    """`timm.models.levit.AttentionDownsample`: every second row and column asks, all tokens answer."""

    def query_grid(self) -> tuple[int, int]:
        rows, columns = (-(-side // self.stride) for side in self.resolution)
        return rows, columns

    def project(self, x: Tensor) -> Projected:
        k, v = self.split(self.kv, x, (self.key_dim, self.val_dim))
        if self.use_conv:
            down = self.q.down(map_of(x, self.resolution))
            q = self.q.ln(down).flatten(2).unflatten(1, (self.num_heads, -1)).transpose(-2, -1)
            down = tokens_of(down)
        else:
            down = self.q.down(x)
            q = self.q.ln(down).unflatten(-1, (self.num_heads, -1)).permute(0, 2, 1, 3)
        return Projected(q, k, v, down, bias=self.get_attention_biases(x.device), keys=x)


class GraftedLevitMlp(LinearEnds, MapMlpSite, LevitMlp):
    """`timm.models.levit.LevitMlp`: grafts see tokens, also where the host has maps."""

    linear_names = ("ln1", "ln2")

    def hidden(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.drop(self.act(self.ln1(x))))

    def out(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.ln2(x))


class TimmLevit(HostAdapter):
    """Sites `stages.<i>.blocks.<j>.attn` and `.mlp`, `stages.<i>.downsample.attn_downsample` and `.mlp`."""

    name = "timm.levit"
    summary = "timm LeViT of any size, with linear layers or convolutions, distilled or not, features_only too"
    patched: ClassVar = {
        Attention: GraftedAttention,
        AttentionDownsample: GraftedAttentionDownsample,
        LevitMlp: GraftedLevitMlp,
    }

    def recognizes(self, model: nn.Module) -> bool:
        if type(model) in (FeatureListNet, FeatureDictNet):
            return any(type(module) is LevitBlock for module in model.modules())
        return type(model) in (Levit, LevitDistilled)

    def canonical(self, path: str) -> str:
        return re.sub(r"^(stages|stem)_", r"\1.", path)

    def sites(self, model: Any) -> list[Site]:
        return list(self._sites(model))

    def _sites(self, model: Any) -> Iterator[Site]:
        for path, module in model.named_modules():
            if type(module) is LevitBlock:
                yield self._attention_site(module.attn, f"{path}.attn")
                yield self._mlp_site(module.mlp, f"{path}.mlp", tuple(module.attn.resolution))
            elif type(module) is LevitDownsample:
                site = self._attention_site(module.attn_downsample, f"{path}.attn_downsample")
                yield site
                attention = module.attn_downsample
                yield self._mlp_site(module.mlp, f"{path}.mlp", _reduced(attention.resolution, attention.stride))

    def _attention_site(self, module: Any, path: str) -> Site:
        plain = type(module) in (Attention, GraftedAttention)
        projections = ("qkv",) if plain else ("q", "kv")
        check_known(module, path, arguments=("x",), children=(*projections, "proj"))
        rows, columns = module.resolution
        key, value = module.key_dim, module.val_dim
        at = {"q": ("qkv", 0), "k": ("qkv", key), "v": ("qkv", 2 * key)}
        if not plain:
            at = {"q": ("q", 0), "k": ("kv", 0), "v": ("kv", key)}
        steps = {"qkv": 2 * key + value, "q": key, "kv": key + value}
        out = _shape(module.proj.ln)[0]
        dim = _shape(module.qkv if plain else module.kv)[1]
        normed = not isinstance(module.proj.ln, nn.Linear | nn.Conv2d)
        geometry = AttentionGeometry(
            dim=dim,
            tokens=rows * columns,
            grid=(rows, columns),
            init="torch",
            heads=module.num_heads,
            key_width=key,
            value_width=value,
            query_tokens=None if plain else module.attention_bias_idxs.shape[0],
            out_dim=None if out == dim else out,
            projection=Projection(
                bias=not normed, norm="batch" if normed else None, activation=_activation(module.proj.act, path)
            ),
            rows={  # what batch norms have seen of a row is no part: it follows the images, also where nothing uses the row
                role: head_rows(module, name, start=start, width=value if role == "v" else key, step=steps[name])
                for role, (name, start) in at.items()
            },
            query_key_parameters=("attention_biases",),
            score_rows=("attention_biases",),
        )
        return replace(global_site(path, geometry), path=self.canonical(path))

    def _mlp_site(self, module: Any, path: str, grid: tuple[int, ...]) -> Site:
        check_known(module, path, arguments=("x",), children=("ln1", "act", "drop", "ln2"))
        hidden, dim = _shape(module.ln1)[:2]
        rows, columns = grid
        geometry = MlpGeometry(dim=dim, tokens=rows * columns, grid=(rows, columns), hidden=hidden, init="torch")
        return replace(mlp_site(path, geometry), path=self.canonical(path))

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        stem = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
        first = next(module for module in model.modules() if type(module) is LevitBlock)
        info = getattr(model.feature_info, "info", model.feature_info)
        rows, columns = (side * info[0]["reduction"] for side in first.attn.resolution)
        return random_images(model, (stem.in_channels, rows, columns), batch=batch)

    def parts(self, model: nn.Module) -> Mapping[str, tuple[str, ...]]:
        return {"head": own_state(model, "head", "head_dist"), "norms": norm_state(model)}

    def forget(self, model: nn.Module) -> None:
        """The attention biases that an evaluation gathered. They have a graph, if there was one, which cannot be copied; and
        older timm (1.0.26) makes them anew only after training: an average of weights would be evaluated with old ones."""
        for module in model.modules():
            if isinstance(module, Attention | AttentionDownsample):
                module.attention_bias_cache = {}

    @torch.no_grad()
    def fuse(self, model: nn.Module) -> str | None:
        """Batch norms into the linear maps: gamma (W x - mean) / std + beta = (gamma / std) W x + (beta - gamma mean / std),
        in the heads, where they stand before it, the other way round."""
        count = 0
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if type(child) in (ConvNorm, LinearNorm, NormLinear):
                    setattr(parent, name, _fused(child))
                    count += 1
        return f"{count} batch norms stand in the linear layers and convolutions next to them" if count else None


def _fused(module: Any) -> nn.Module:
    """The linear layer or convolution that does what `module` does in evaluation mode; computed in double precision."""
    weight = module.linear.weight
    exact = copy.deepcopy(module).double()
    with torch.device(weight.device):
        made = exact.fuse()
    return cast(nn.Module, made).to(dtype=weight.dtype).train(module.training)


def _linear(module: Any) -> LinearLayer | None:
    """`module` if it is a linear map without a batch norm of its own."""
    return module if isinstance(module, nn.Linear | nn.Conv2d) else None


def _shape(module: Any) -> torch.Size:
    """(out, in, ...) of the weight of a linear map, with or without its batch norm."""
    weight = module.weight if isinstance(module, nn.Linear | nn.Conv2d) else module.linear.weight
    return cast(torch.Size, weight.shape)


def _reduced(resolution: tuple[int, int], stride: int) -> tuple[int, ...]:
    return tuple(-(-side // stride) for side in resolution)


def _activation(module: nn.Module, path: str) -> str:
    """timm's name of an activation."""
    for name in _ACTIVATIONS:
        if type(module) is get_act_layer(name):
            return name
    raise HostError(
        f"{path} has the activation {type(module).__name__}; attngraft knows {', '.join(_ACTIVATIONS)} in LeViT's attention"
    )


register_host(TimmLevit())
