"""timm's SwinTransformer: windows, shift, relative position bias; as a whole model or with `features_only`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from timm.models._features import FeatureDictNet, FeatureListNet
from timm.models.swin_transformer import (
    SwinTransformer,
    SwinTransformerBlock,
    WindowAttention,
    window_partition,
    window_reverse,
)
from torch import Tensor, nn

from attngraft.anatomy import (
    AttentionGeometry,
    AttentionSite,
    GraftedModule,
    LinearLayer,
    MlpGeometry,
    Projected,
    Stage,
)
from attngraft.hosts.adapter import (
    HostAdapter,
    Site,
    check_known,
    fused_rows,
    norm_state,
    own_parameters,
    random_images,
)
from attngraft.hosts.registry import register_host
from attngraft.hosts.timm import mlp as timm_mlp


class GraftedWindowAttention(AttentionSite, WindowAttention):
    """`timm` WindowAttention: B counts windows, those of one image side by side."""

    end_stage: Stage = "attn.window"

    def project(self, x: Tensor, mask: Tensor | None = None, present: Tensor | None = None) -> Projected:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return Projected(q, k, v, x, bias=self._get_rel_pos_bias(), rest=mask, present=present)

    def fused_bias(self, projected: Projected) -> Tensor | None:
        bias, mask = cast(Tensor, projected.bias), projected.rest
        if mask is None:
            return bias
        windows, tokens = mask.shape[0], mask.shape[-1]
        images = projected.q.shape[0] // windows
        mask = mask.view(1, windows, 1, tokens, tokens).expand(images, -1, self.num_heads, -1, -1)
        return bias + mask.reshape(-1, self.num_heads, tokens, tokens)

    def shared_bias(self, projected: Projected) -> Tensor:
        bias, mask = cast(Tensor, projected.bias), projected.rest
        return bias if mask is None else bias + mask.unsqueeze(1)

    def scores(self, projected: Projected) -> Tensor:
        scores = (projected.q * self.scale) @ projected.k.transpose(-2, -1) + cast(Tensor, projected.bias)
        mask = projected.rest
        if mask is None:
            return scores
        # one axis for the windows of an image, which share their mask with those of every other image
        by_image = scores.view(-1, mask.shape[0], *scores.shape[1:]) + mask.unsqueeze(1).unsqueeze(0)
        return by_image.view(scores.shape)

    def visible(self, projected: Projected) -> Tensor | None:
        mask = projected.rest
        if mask is None:
            return None
        images = projected.q.shape[0] // mask.shape[0]
        return cast(Tensor, (mask == 0).unsqueeze(1).repeat(images, 1, 1, 1))

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        return cast(Tensor, self.proj(heads.transpose(1, 2).flatten(2)))

    def drop(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, self.proj_drop(tokens))

    def output_layer(self) -> LinearLayer | None:
        return self.proj if isinstance(self.proj, nn.Linear) else None


class GraftedSwinBlock(GraftedModule, SwinTransformerBlock):
    """The block puts windows back: here, on (B, H, W, C), the attention branch ends.

    It alone knows which tokens are zeros that fill up a window, and tells the mix graft of its attention.
    """

    @property
    def in_use(self) -> bool:
        return super().in_use or self._mixes()

    def _mixes(self) -> bool:
        return isinstance(self.attn, GraftedWindowAttention) and bool(self.attn.grafts_at("mix"))

    def _attn(self, x: Tensor) -> Tensor:
        rows, columns = (-side % window for side, window in zip(x.shape[1:3], self.window_size, strict=True))
        filled = (rows or columns) and self._mixes()
        return self.run("attn.end", self._filled(x, rows, columns) if filled else super()._attn(x))

    def _filled(self, x: Tensor, rows: int, columns: int) -> Tensor:
        """The host's own way, with one argument more to its attention; the map grows by `rows` and `columns` of zeros."""
        height, width = x.shape[1:3]
        x = torch.roll(x, [-shift for shift in self.shift_size], (1, 2))
        present = F.pad(x.new_ones(1, height, width, 1), (0, 0, 0, columns, 0, rows))
        x = F.pad(x, (0, 0, 0, columns, 0, rows))
        mask = self.get_attn_mask(x) if getattr(self, "dynamic_mask", False) else self.attn_mask
        windows = self.attn(
            window_partition(x, self.window_size).flatten(1, 2),
            mask=mask,
            present=window_partition(present, self.window_size).flatten(1) > 0,
        )
        x = window_reverse(windows.unflatten(1, self.window_size), self.window_size, height + rows, width + columns)
        return torch.roll(x[:, :height, :width], list(self.shift_size), (1, 2))

    def between(self, stage: Stage) -> str | None:
        module = self.attn
        if stage != "attn.end" or not isinstance(module, GraftedWindowAttention):  # a plain one has no grafts
            return None
        if module.grafts_at("attn.window"):
            return "another graft stands between it and the host's output projection"
        return module.between("attn.window")

    def linear_before(self, stage: Stage) -> LinearLayer | None:
        module = self.attn
        if stage != "attn.end" or self.between(stage):
            return None
        if isinstance(module, GraftedWindowAttention):
            return module.linear_before("attn.window")
        return module.proj if type(module) is WindowAttention and isinstance(module.proj, nn.Linear) else None


class TimmSwin(HostAdapter):
    """Sites `layers.<i>.blocks.<j>.attn` and `layers.<i>.blocks.<j>.mlp`."""

    name = "timm.swin"
    summary = "timm SwinTransformer of any size, features_only too"
    richer: ClassVar = {
        WindowAttention: GraftedWindowAttention,
        SwinTransformerBlock: GraftedSwinBlock,
        **timm_mlp.RICHER,
    }

    def recognizes(self, model: nn.Module) -> bool:
        if type(model) in (FeatureListNet, FeatureDictNet):
            return any(type(module) in (SwinTransformerBlock, GraftedSwinBlock) for module in model.modules())
        return type(model) is SwinTransformer

    def sites(self, model: Any) -> list[Site]:
        return list(self._sites(model))

    def canonical(self, path: str) -> str:
        return re.sub(r"^layers_(\d+)", r"layers.\1", path)

    def _sites(self, model: Any) -> Iterator[Site]:
        for path, block in model.named_modules():
            if type(block) in (SwinTransformerBlock, GraftedSwinBlock):
                grid = self._grid(model, path)
                yield self._attention_site(block, path, grid)
                site = timm_mlp.mlp_site(block.mlp, f"{path}.mlp", self._mlp_geometry(block, grid))
                if site is not None:
                    yield replace(site, path=self.canonical(site.path))

    def _grid(self, model: Any, path: str) -> tuple[int, int]:
        """The map of the stage; the block's own `input_resolution` rounds odd maps down in older timm (1.0.26)."""
        stage = int(self.canonical(path).split(".")[1])
        rows, columns = (-(-side // 2**stage) for side in model.patch_embed.grid_size)
        return rows, columns

    def _attention_site(self, block: Any, path: str, grid: tuple[int, int]) -> Site:
        module = block.attn
        check_known(
            module,
            f"{path}.attn",
            arguments=("x", "mask", "args", "kwargs"),
            children=("qkv", "attn_drop", "proj", "proj_drop", "softmax"),
        )
        window = tuple(module.window_size)
        width = module.qkv.out_features // 3
        geometry = AttentionGeometry(
            dim=module.dim,
            tokens=window[0] * window[1],
            sequences=-(-grid[0] // window[0]) * -(-grid[1] // window[1]),
            grid=grid,
            window=window,
            heads=module.num_heads,
            key_width=width // module.num_heads,
            value_width=width // module.num_heads,
            rows=fused_rows(module, "qkv", heads=module.num_heads),
            query_key_parameters=("relative_position_bias_table",),
            score_columns=("relative_position_bias_table",),
        )
        attn = f"{path}.attn"
        inside: tuple[Stage, ...] = ("mix", "weights", "heads", "tokens", "attn.window")
        return Site(
            path=self.canonical(attn),
            kind="attention",
            geometry=geometry,
            carriers={**dict.fromkeys(inside, attn), "attn.end": path},
            informants={"mix": (path,)},
        )

    @staticmethod
    def _mlp_geometry(block: Any, grid: tuple[int, int]) -> MlpGeometry:
        hidden = block.mlp.fc1.out_features
        return MlpGeometry(dim=block.dim, tokens=grid[0] * grid[1], grid=grid, hidden=hidden)

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        channels = model.patch_embed.proj.in_channels
        return random_images(model, (channels, *model.patch_embed.img_size), batch=batch)

    def parts(self, model: nn.Module) -> Mapping[str, tuple[str, ...]]:
        return {"head": own_parameters(model, "head"), "norms": norm_state(model)}


register_host(TimmSwin())
