"""torchvision's Swin and Swin V2: one module cuts its windows, attends in them, and puts them back."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.swin_transformer import (
    ShiftedWindowAttention,
    ShiftedWindowAttentionV2,
    SwinTransformer,
    SwinTransformerBlock,
    SwinTransformerBlockV2,
)

from attngraft.attention import AttentionGeometry, Projected, Projection, plain_class, record_coordinates
from attngraft.errors import HostError
from attngraft.hosts.adapter import (
    HostAdapter,
    Site,
    check_known,
    norm_state,
    own_parameters,
    own_state,
    random_images,
)
from attngraft.hosts.registry import register_host
from attngraft.hosts.sites import fused_heads, window_site, windowed
from attngraft.hosts.timm.attention import by_role
from attngraft.hosts.timm.own_windows import OwnEnd
from attngraft.hosts.timm.windows import CosineWindowSite, WindowSite, cut, fill, put_back
from attngraft.hosts.torchvision import mlp


class _Windows(OwnEnd, WindowSite):
    """Maps (B, H, W, C) come in and leave; the sentence is about the windows in between."""

    window_size: list[int]
    shift_size: list[int]
    attention_dropout: float
    qkv: nn.Linear
    fused_attn = False

    def forward(self, x: Tensor) -> Tensor:
        """The host's own way, with the sentence for each window."""
        own, (height, width), window = x, x.shape[1:3], self.window
        x = fill(x, window)
        sides = x.shape[1:3]
        shift = [0 if high >= side else by for high, side, by in zip(window, sides, self.shift_size, strict=True)]

        def windows_of(maps: Tensor) -> Tensor:
            return cut(torch.roll(maps, (-shift[0], -shift[1]), (1, 2)) if any(shift) else maps, window)

        record_coordinates(self, own, lambda maps: windows_of(fill(maps, window)))
        mask = self._mask(x, shift) if any(shift) else None
        seen = None
        if sides != (height, width) and self.grafts_at("mix"):
            seen = windows_of(fill(x.new_ones(1, height, width, 1), window)).squeeze(-1) > 0

        def project(tokens: Tensor) -> Projected:
            return self.project(tokens, mask, seen)

        x = put_back(self.forward_projected(project(windows_of(x)), project), window, sides)
        if any(shift):
            x = torch.roll(x, (shift[0], shift[1]), (1, 2))
        return self.run("attn.end", x[:, :height, :width, :].contiguous())

    @property
    def window(self) -> tuple[int, int]:
        """(rows, columns) of a window."""
        return self.window_size[0], self.window_size[1]

    def _mask(self, x: Tensor, shift: list[int]) -> Tensor:
        """(windows of an image, N, N): -100 between tokens that the shift brought together."""
        regions = x.new_zeros(x.shape[1:3])
        down, across = (
            (slice(0, -window), slice(-window, -by), slice(-by, None))
            for window, by in zip(self.window_size, shift, strict=True)
        )
        for number, (rows, columns) in enumerate(itertools.product(down, across)):
            regions[rows, columns] = number
        windows = cut(regions[None, :, :, None], self.window).squeeze(-1)
        apart = windows.unsqueeze(1) - windows.unsqueeze(2)
        return apart.masked_fill(apart != 0, -100.0).masked_fill(apart == 0, 0.0)

    def position_bias(self) -> Tensor:
        return cast(Tensor, cast(Any, self).get_relative_position_bias())

    def dropped(self) -> float:
        return self.attention_dropout if self.training else 0.0

    def spread(self, weights: Tensor, projected: Projected) -> Tensor:
        return F.dropout(weights, p=self.attention_dropout, training=self.training).matmul(projected.v)

    def drop(self, tokens: Tensor) -> Tensor:
        return F.dropout(tokens, p=cast(Any, self).dropout, training=self.training)


class GraftedShiftedWindowAttention(_Windows, ShiftedWindowAttention):
    """`torchvision.models.swin_transformer.ShiftedWindowAttention`: a table of relative positions."""

    @property
    def scale(self) -> float:  # type: ignore[override]
        """What queries are multiplied by."""
        return cast(float, (self.qkv.in_features // self.num_heads) ** -0.5)


class GraftedShiftedWindowAttentionV2(_Windows, CosineWindowSite, ShiftedWindowAttentionV2):
    """`torchvision.models.swin_transformer.ShiftedWindowAttentionV2`: cosines, positions through a network."""

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keys have no bias: its part of the parameter is not used."""
        bias: Tensor | None = self.qkv.bias
        if bias is not None:
            third, bias = bias.numel() // 3, bias.clone()
            bias[third : 2 * third].zero_()
        return by_role(F.linear(x, self.qkv.weight, bias), self.num_heads)

    def temperature(self) -> Tensor:
        return torch.clamp(self.logit_scale, max=math.log(100.0)).exp()


class TorchvisionSwin(HostAdapter):
    """Sites `features.<i>.<j>.attn` and `.mlp`."""

    name = "torchvision.swin"
    summary = "torchvision SwinTransformer, V1 and V2, of any size"
    patched: ClassVar = {
        ShiftedWindowAttention: GraftedShiftedWindowAttention,
        ShiftedWindowAttentionV2: GraftedShiftedWindowAttentionV2,
        **mlp.PATCHED,
    }

    def recognizes(self, model: nn.Module) -> bool:
        return type(model) is SwinTransformer

    def sites(self, model: Any) -> list[Site]:
        return list(self._sites(model))

    def _sites(self, model: Any) -> Iterator[Site]:
        grid = self._grid(model)
        stages = [(name, stage) for name, stage in model.features.named_children() if type(stage) is nn.Sequential]
        for depth, (name, stage) in enumerate(stages[1:]):  # the first one makes the patches
            rows, columns = (-(-side // 2**depth) for side in grid)
            for number, block in stage.named_children():
                path = f"features.{name}.{number}"
                if type(block) not in (SwinTransformerBlock, SwinTransformerBlockV2):
                    raise HostError(
                        f"{path} is a {type(block).__name__}, which attngraft does not know; it knows "
                        "SwinTransformerBlock and SwinTransformerBlockV2"
                    )
                yield _attention_site(block.attn, f"{path}.attn", (rows, columns))
                known = {
                    "dim": cast(Any, block).attn.qkv.in_features,
                    "tokens": rows * columns,
                    "grid": (rows, columns),
                }
                yield from mlp.mlp_sites(block.mlp, f"{path}.mlp", **known)

    def _grid(self, model: Any) -> tuple[int, int]:
        """The map of the first stage. The model names no input size: say that the last stage's map is one window."""
        window = next(each.window_size for each in model.modules() if isinstance(each, ShiftedWindowAttention))
        merged = sum(type(stage) is nn.Sequential for stage in model.features) - 2
        return window[0] * 2**merged, window[1] * 2**merged

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        patches = model.features[0][0]
        rows, columns = (side * step for side, step in zip(self._grid(model), patches.stride, strict=True))
        return random_images(model, (patches.in_channels, rows, columns), batch=batch)

    def parts(self, model: nn.Module) -> Mapping[str, tuple[str, ...]]:
        return {"head": own_state(model, "head"), "norms": norm_state(model)}


def _attention_site(module: Any, path: str, grid: tuple[int, int]) -> Site:
    if plain_class(module) not in TorchvisionSwin.patched:
        raise HostError(f"{path} is a {type(module).__name__}, which attngraft does not know")
    check_known(module, path, arguments=("x",), children=("qkv", "proj", "cpb_mlp"))
    geometry = AttentionGeometry(
        dim=module.qkv.in_features,
        **windowed(grid, (module.window_size[0], module.window_size[1])),
        **fused_heads(module),
        projection=Projection(bias=module.qkv.bias is not None),
        query_key_parameters=own_parameters(module, "relative_position_bias_table", "logit_scale", "cpb_mlp"),
        score_rows=own_parameters(module, "logit_scale", "cpb_mlp.2"),
        score_columns=own_parameters(module, "relative_position_bias_table"),
    )
    return window_site(path, geometry)


register_host(TorchvisionSwin())
