"""torchvision's Swin and Swin V2: a single module partitions maps, attends in windows, and merges."""

import itertools
import math
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import swin_transformer as swin

from attngraft.attention import AttentionGeometry, Projected, Projection, plain_class, record_coordinates
from attngraft.errors import HostError
from attngraft.hosts.adapter import HostAdapter, Site, check_known, own_parameters, random_images
from attngraft.hosts.sites import fused_heads, window_site, windowed
from attngraft.hosts.timm.attention import split_qkv
from attngraft.hosts.timm.windows import CosineWindowSite, WindowSite, merge_windows, pad_to_windows, partition
from attngraft.hosts.torchvision import mlp


class MapWindowSite(WindowSite):
    """Window attention on maps (B, H, W, C); grafts before `attn.end` receive windows."""

    window_size: list[int]
    shift_size: list[int]
    attention_dropout: float
    qkv: nn.Linear
    fused_attn = False

    def forward(self, x: Tensor) -> Tensor:
        unpadded, (height, width), window = x, x.shape[1:3], self.window
        x = pad_to_windows(x, window)
        sides = x.shape[1:3]
        shift = [0 if high >= side else by for high, side, by in zip(window, sides, self.shift_size, strict=True)]

        def windows_of(maps: Tensor) -> Tensor:
            return partition(torch.roll(maps, (-shift[0], -shift[1]), (1, 2)) if any(shift) else maps, window)

        record_coordinates(self, unpadded, lambda maps: windows_of(pad_to_windows(maps, window)))
        mask = self._mask(x, shift) if any(shift) else None
        present = None
        if sides != (height, width) and self.grafts_at("mix"):
            present = windows_of(pad_to_windows(x.new_ones(1, height, width, 1), window)).squeeze(-1) > 0

        def project(tokens: Tensor) -> Projected:
            return self.project(tokens, mask, present)

        x = merge_windows(self.forward_projected(project(windows_of(x)), project), window, sides)
        if any(shift):
            x = torch.roll(x, (shift[0], shift[1]), (1, 2))
        return self.run("attn.end", x[:, :height, :width, :].contiguous())

    @property
    def window(self) -> tuple[int, int]:
        """Return (rows, columns) of a window."""
        return self.window_size[0], self.window_size[1]

    def _mask(self, x: Tensor, shift: list[int]) -> Tensor:
        """Return the shift mask (windows of an image, N, N), -100 between tokens from different regions."""
        regions = x.new_zeros(x.shape[1:3])
        down, across = (
            (slice(0, -window), slice(-window, -by), slice(-by, None))
            for window, by in zip(self.window_size, shift, strict=True)
        )
        for number, (rows, columns) in enumerate(itertools.product(down, across)):
            regions[rows, columns] = number
        windows = partition(regions[None, :, :, None], self.window).squeeze(-1)
        difference = windows.unsqueeze(1) - windows.unsqueeze(2)
        return difference.masked_fill(difference != 0, -100.0).masked_fill(difference == 0, 0.0)

    def position_bias(self) -> Tensor:
        return cast(Tensor, cast(Any, self).get_relative_position_bias())

    def dropped(self) -> float:
        return self.attention_dropout if self.training else 0.0

    def spread(self, weights: Tensor, projected: Projected) -> Tensor:
        return F.dropout(weights, p=self.attention_dropout, training=self.training).matmul(projected.v)

    def drop(self, tokens: Tensor) -> Tensor:
        return F.dropout(tokens, p=cast(Any, self).dropout, training=self.training)


class GraftedShiftedWindowAttention(MapWindowSite, swin.ShiftedWindowAttention):
    """`torchvision.models.swin_transformer.ShiftedWindowAttention`: a table of relative positions."""

    @property
    def scale(self) -> float:  # type: ignore[override]
        return cast(float, (self.qkv.in_features // self.num_heads) ** -0.5)


class GraftedShiftedWindowAttentionV2(MapWindowSite, CosineWindowSite, swin.ShiftedWindowAttentionV2):
    """`torchvision.models.swin_transformer.ShiftedWindowAttentionV2`: cosine scores, biases from an MLP."""

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        """Set the key part of the bias to zero, as the host does."""
        bias: Tensor | None = self.qkv.bias
        if bias is not None:
            third, bias = bias.numel() // 3, bias.clone()
            bias[third : 2 * third].zero_()
        return split_qkv(F.linear(x, self.qkv.weight, bias), self.num_heads)

    def temperature(self) -> Tensor:
        return torch.clamp(self.logit_scale, max=math.log(100.0)).exp()


class TorchvisionSwin(HostAdapter):
    """Sites `features.<i>.<j>.attn` and `.mlp`."""

    name = "torchvision.swin"
    summary = "torchvision SwinTransformer, V1 and V2, of any size"
    patched: ClassVar = {
        swin.ShiftedWindowAttention: GraftedShiftedWindowAttention,
        swin.ShiftedWindowAttentionV2: GraftedShiftedWindowAttentionV2,
        **mlp.PATCHED,
    }

    def recognizes(self, model: nn.Module) -> bool:
        return type(model) is swin.SwinTransformer

    def sites(self, model: Any) -> list[Site]:
        stages = [(name, stage) for name, stage in model.features.named_children() if type(stage) is nn.Sequential]
        sites: list[Site] = []
        for depth, (name, stage) in enumerate(stages[1:]):  # the first is the patch embedding
            rows, columns = (-(-side // 2**depth) for side in self._grid(model))
            for number, block in stage.named_children():
                path, host = f"features.{name}.{number}", cast(Any, block)
                if type(block) not in (swin.SwinTransformerBlock, swin.SwinTransformerBlockV2):
                    raise HostError(
                        f"{path} is a {type(block).__name__}, which is not supported; supported are SwinTransformerBlock "
                        "and SwinTransformerBlockV2"
                    )
                sites.append(_attention_site(host.attn, f"{path}.attn", (rows, columns)))
                fields = {"dim": host.attn.qkv.in_features, "tokens": rows * columns, "grid": (rows, columns)}
                sites.extend(mlp.mlp_sites(host.mlp, f"{path}.mlp", **fields))
        return sites

    def _grid(self, model: Any) -> tuple[int, int]:
        """Return (rows, columns) of the first stage's map.

        The model does not store its image size; the last stage's map is assumed to be one window.
        """
        window = next(each.window_size for each in model.modules() if isinstance(each, swin.ShiftedWindowAttention))
        merged = sum(type(stage) is nn.Sequential for stage in model.features) - 2
        return window[0] * 2**merged, window[1] * 2**merged

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        patches = model.features[0][0]
        rows, columns = (side * step for side, step in zip(self._grid(model), patches.stride, strict=True))
        return random_images(model, (patches.in_channels, rows, columns), batch=batch)


def _attention_site(module: Any, path: str, grid: tuple[int, int]) -> Site:
    if plain_class(module) not in TorchvisionSwin.patched:
        raise HostError(f"{path} is a {type(module).__name__}, which is not supported; use torchvision's own attention")
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
