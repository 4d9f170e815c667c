"""timm's LeViT: tokens or maps, a batch norm after every linear layer, attention that subsamples between the stages."""

import copy
import re
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import torch
from timm.layers import get_act_layer
from timm.models import levit
from torch import Tensor, nn

from attngraft.attention import (
    AttentionGeometry,
    HookPoint,
    LinearLayer,
    MlpGeometry,
    Projected,
    Projection,
    plain_class,
)
from attngraft.errors import HostError
from attngraft.hosts.adapter import Site, check_known, head_rows, norm_state, own_state, random_images
from attngraft.hosts.patched import TwoLinearEnds, as_linear
from attngraft.hosts.sites import global_site, mlp_site, projected_heads
from attngraft.hosts.timm.attention import (
    HeadwiseQkv,
    ScaledProducts,
    map_to_tokens,
    match_memory_format,
    tokens_to_map,
)
from attngraft.hosts.timm.family import ShapeProbe, Sites, TimmFamily
from attngraft.hosts.timm.mlp import MapMlpSite

if not hasattr(levit.Attention, "init_non_persistent_buffers"):  # its attention does not store the size of its map
    raise ImportError("LeViT requires timm 1.0.23 or later")

_ACTIVATIONS = ("hard_swish", "silu", "gelu", "relu", "relu6", "leaky_relu", "elu", "mish", "tanh", "sigmoid")


class LevitSite(ScaledProducts, HeadwiseQkv):
    """LeViT's attention on tokens (B, N, C), also where the host has maps (`use_conv`)."""

    ends: tuple[HookPoint, ...] = ("attn.end",)
    fused_attn = False
    use_conv: bool
    resolution: tuple[int, int]
    proj: nn.Sequential

    def forward(self, x: Tensor) -> Tensor:
        if not self.use_conv:
            return super().forward(x)
        return match_memory_format(tokens_to_map(super().forward(map_to_tokens(x)), self.query_grid()), x)

    def query_grid(self) -> tuple[int, int]:
        """Return (rows, columns) of the output map."""
        return self.resolution

    def split(self, projection: nn.Module, x: Tensor, widths: tuple[int, ...]) -> tuple[Tensor, ...]:
        """Project tokens (B, N, C) and split each head's rows: (B, H, N, width) each, in the host's memory order."""
        if not self.use_conv:
            return super().split(projection, x, widths)
        y = projection(tokens_to_map(x, self.resolution)).flatten(2).unflatten(1, (self.num_heads, -1))
        return tuple(part.transpose(-2, -1) for part in y.split(widths, dim=2))

    def spread(self, weights: Tensor, projected: Projected) -> Tensor:
        if self.use_conv:
            return (projected.v.transpose(-2, -1) @ weights.transpose(-2, -1)).transpose(-2, -1)
        return super().spread(weights, projected)

    def visible(self, projected: Projected) -> None:
        return None

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        if self.use_conv:
            maps = heads.transpose(-2, -1).reshape(heads.shape[0], -1, *self.query_grid())
            return map_to_tokens(self.proj(maps.contiguous()))  # contiguous as in the host, also after a graft
        return cast(Tensor, self.proj(heads.transpose(1, 2).flatten(2)))

    def output_layer(self) -> LinearLayer | None:
        return as_linear(self.proj.ln)


class GraftedAttention(LevitSite, levit.Attention):
    """`timm.models.levit.Attention`: the rows of the projection are q, k, v of head 0, then of head 1, and so on."""


class GraftedAttentionDownsample(LevitSite, levit.AttentionDownsample):
    """`timm.models.levit.AttentionDownsample`: queries are every second row and column, keys are all tokens."""

    def query_grid(self) -> tuple[int, int]:
        rows, columns = (-(-side // self.stride) for side in self.resolution)
        return rows, columns

    def project(self, x: Tensor, present: Tensor | None = None) -> Projected:
        k, v = self.split(self.kv, x, (self.key_dim, self.val_dim))
        if self.use_conv:
            down = self.q.down(tokens_to_map(x, self.resolution))
            q = self.q.ln(down).flatten(2).unflatten(1, (self.num_heads, -1)).transpose(-2, -1)
            down = map_to_tokens(down)
        else:
            down = self.q.down(x)
            q = self.q.ln(down).unflatten(-1, (self.num_heads, -1)).permute(0, 2, 1, 3)
        return Projected(q, k, v, down, bias=self.get_attention_biases(x.device), keys=x)


class GraftedLevitMlp(TwoLinearEnds, MapMlpSite, levit.LevitMlp):
    """`timm.models.levit.LevitMlp`, on tokens or maps."""

    linear_names = ("ln1", "ln2")
    before_mid, after_mid = ("ln1", "act", "drop"), ("ln2",)


def _block_sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    yield _attention_site(block.attn, f"{path}.attn")
    yield _mlp_site(block.mlp, f"{path}.mlp", *block.attn.resolution)


def _downsample_sites(block: Any, path: str, shapes: ShapeProbe) -> Sites:
    attention = block.attn_downsample
    yield _attention_site(attention, f"{path}.attn_downsample")
    yield _mlp_site(block.mlp, f"{path}.mlp", *(-(-side // attention.stride) for side in attention.resolution))


def _attention_site(module: Any, path: str) -> Site:
    plain = plain_class(module) is levit.Attention
    check_known(module, path, arguments=("x",), children=(*(("qkv",) if plain else ("q", "kv")), "proj"))
    rows, columns = module.resolution
    key, value = module.key_dim, module.val_dim
    if plain:
        projections, step = {"q": ("qkv", 0), "k": ("qkv", key), "v": ("qkv", 2 * key)}, 2 * key + value
    else:
        projections, step = {"k": ("kv", 0), "v": ("kv", key)}, key + value
    # running statistics are left out: they change with the images even in unused rows
    heads = projected_heads(module, projections, width=key, value_width=value, step=step)
    if not plain:
        heads["rows"]["q"] = head_rows(module, "q", start=0, width=key, step=key)
    out, last = _shape(module.proj.ln)[0], module.proj.ln
    dim = _shape(module.qkv if plain else module.kv)[1]
    normed = not isinstance(last, nn.Linear | nn.Conv2d)
    geometry = AttentionGeometry(
        dim=dim,
        tokens=rows * columns,
        grid=(rows, columns),
        init="torch",
        **heads,
        query_tokens=None if plain else module.attention_bias_idxs.shape[0],
        out_dim=None if out == dim else out,
        projection=Projection(
            bias=not normed, norm="batch" if normed else None, activation=_activation(module.proj.act, path)
        ),
        query_key_parameters=("attention_biases",),
        score_rows=("attention_biases",),
    )
    return global_site(path, geometry)


def _mlp_site(module: Any, path: str, rows: int, columns: int) -> Site:
    check_known(module, path, arguments=("x",), children=("ln1", "act", "drop", "ln2"))
    hidden, dim = _shape(module.ln1)[:2]
    geometry = MlpGeometry(dim=dim, tokens=rows * columns, grid=(rows, columns), hidden=hidden, init="torch")
    return mlp_site(path, geometry)


def _shape(module: Any) -> torch.Size:
    """Return the shape (out, in, ...) of the weight of a linear map, with or without a batch norm."""
    weight = module.weight if isinstance(module, nn.Linear | nn.Conv2d) else module.linear.weight
    return cast(torch.Size, weight.shape)


def _activation(module: nn.Module, path: str) -> str:
    """Return timm's name of an activation.

    Raises:
        HostError: the activation is not supported.
    """
    for name in _ACTIVATIONS:
        if type(module) is get_act_layer(name):
            return name
    raise HostError(
        f"{path} has the unsupported activation {type(module).__name__}; supported: {', '.join(_ACTIVATIONS)}"
    )


class TimmLevit(TimmFamily):
    """Sites `stages.<i>.blocks.<j>.attn` and `.mlp`, `stages.<i>.downsample.attn_downsample` and `.mlp`."""

    name = "timm.levit"
    summary = "timm LeViT of any size, with linear layers or convolutions, distilled or not, including features_only"
    patched: ClassVar = {
        levit.Attention: GraftedAttention,
        levit.AttentionDownsample: GraftedAttentionDownsample,
        levit.LevitMlp: GraftedLevitMlp,
    }
    models = (levit.Levit, levit.LevitDistilled)
    blocks: ClassVar = {levit.LevitBlock: _block_sites, levit.LevitDownsample: _downsample_sites}

    def canonical(self, path: str) -> str:
        """Undo the renaming of `features_only`, which also flattens the stem."""
        return re.sub(r"^(stages|stem)_", r"\1.", path)

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        stem = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
        first = next(module for module in model.modules() if type(module) is levit.LevitBlock)
        info = getattr(model.feature_info, "info", model.feature_info)
        rows, columns = (side * info[0]["reduction"] for side in first.attn.resolution)
        return random_images(model, (stem.in_channels, rows, columns), batch=batch)

    def parts(self, model: nn.Module) -> Mapping[str, tuple[str, ...]]:
        return {"head": own_state(model, "head", "head_dist"), "norms": norm_state(model)}

    @torch.no_grad()
    def fuse(self, model: nn.Module) -> str | None:
        """Fuse batch norms into the linear layers.

        gamma (W x - mean) / std + beta = (gamma / std) W x + (beta - gamma mean / std); in the heads the norm comes first.
        """
        count = 0
        for parent in list(model.modules()):
            for name, child in list(parent.named_children()):
                if type(child) in (levit.ConvNorm, levit.LinearNorm, levit.NormLinear):
                    setattr(parent, name, _fused(child))
                    count += 1
        return f"{count} batch norms are fused into the linear layers and convolutions next to them" if count else None


def _fused(module: Any) -> nn.Module:
    """Return the linear layer or convolution equal to `module` in evaluation mode, computed in double precision."""
    weight = module.linear.weight
    exact = copy.deepcopy(module).double()
    with torch.device(weight.device):
        fused = exact.fuse()
    return cast(nn.Module, fused).to(dtype=weight.dtype).train(module.training)
