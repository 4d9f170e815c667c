"""ELSA-Swin: Swin whose first three stages have Hadamard attention, the last one windows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, cast

import torch.nn.functional as F
from timm.layers import calculate_drop_path_rates, to_2tuple
from timm.models import checkpoint_seq
from timm.models._features import feature_take_indices  # what timm's own models use
from torch import Tensor, nn

from attngraft.models.elsa.blocks import PatchEmbed, PatchMerging, Residual, WindowAttention, elsa_block

Pool = Literal["avg", ""]


class Stage(nn.Module):
    """Blocks of one width, then, but in the last stage, the merging of patches."""

    def __init__(self, blocks: Iterable[nn.Module], downsample: nn.Module | None = None) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*blocks)
        self.downsample = downsample
        self.grad_checkpointing = False

    def forward(self, x: Tensor) -> Tensor:
        return self.merged(self.attended(x))

    def attended(self, x: Tensor) -> Tensor:
        """What leaves the blocks."""
        if self.grad_checkpointing:
            return cast(Tensor, checkpoint_seq(self.blocks, x))
        return cast(Tensor, self.blocks(x))

    def merged(self, x: Tensor) -> Tensor:
        """What the next stage gets."""
        return x if self.downsample is None else cast(Tensor, self.downsample(x))


class ElsaSwin(nn.Module):
    """Images (B, in_chans, H, W) to logits (B, num_classes).

        x = x + attn(norm1(x));  x = x + mlp(norm2(x))      attn: Hadamard attention, in the last stage that of windows
        logits = head(mean of norm(x) over the map)

    Images of any size are taken; where patches, merging or windows do not divide them they are filled up with zeros.

    Args:
        img_size: of the images that the model is for, one number or (rows, columns). Windows are no larger than the last
            stage's map of these, which sets the size of their table of biases.
        embed_dim: channels of the first stage; they double from stage to stage. depths: blocks of each. num_heads: of each.
        kernel_size: k of the neighborhoods. group_width: channels in a group of the convolution that makes the filters.
        lam, gamma: of the ghost head; the published models have its addend alone.
        window_size: of the last stage; every second block's windows are shifted, on maps that are larger than a window.
        global_pool: "avg" (the mean over the map), "" (the map itself).

    Source: ELSA, section 3.4, Table 6; names of parameters as in its published checkpoints.
    """

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        *,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: Pool = "avg",
        patch_size: int = 4,
        embed_dim: int = 96,
        depths: Sequence[int] = (2, 2, 6, 2),
        num_heads: Sequence[int] = (3, 6, 12, 24),
        kernel_size: int = 7,
        group_width: int = 8,
        lam: float = 0,
        gamma: float = 1,
        window_size: int = 7,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.1,
    ) -> None:
        super().__init__()
        self.num_classes, self.in_chans, self.global_pool = num_classes, in_chans, _known(global_pool)
        self.img_size = to_2tuple(img_size)
        self.patch_embed = PatchEmbed(patch_size, in_chans=in_chans, dim=embed_dim)
        last = len(depths) - 1
        widths = [embed_dim * 2**index for index in range(len(depths))]
        reductions = [patch_size * 2**index for index in range(len(depths))]
        window = min(window_size, *(-(-size // reductions[last]) for size in to_2tuple(img_size)))
        rates = iter(calculate_drop_path_rates(drop_path_rate, sum(depths)))
        shared: dict[str, Any] = {"mlp_ratio": mlp_ratio, "drop": proj_drop_rate}

        def local(dim: int, heads: int) -> Residual:
            return elsa_block(
                dim,
                heads,
                kernel_size=kernel_size,
                group_width=group_width,
                lam=lam,
                gamma=gamma,
                qkv_bias=qkv_bias,
                attn_drop=attn_drop_rate,
                drop_path=next(rates),
                **shared,
            )

        def windowed(dim: int, heads: int, number: int) -> Residual:
            attn = WindowAttention(
                dim,
                heads,
                window=window,
                shift=window // 2 if number % 2 else 0,
                qkv_bias=qkv_bias,
                attn_drop=attn_drop_rate,
                proj_drop=proj_drop_rate,
            )
            return Residual(dim, attn, drop_path=next(rates), **shared)

        stages = [
            Stage([local(dim, heads) for _ in range(depth)], PatchMerging(dim))
            for dim, heads, depth in zip(widths[:last], num_heads, depths, strict=False)
        ]
        stages.append(Stage(windowed(widths[last], num_heads[last], number) for number in range(depths[last])))
        self.layers = nn.Sequential(*stages)
        self.feature_info = [
            {"module": f"layers.{index}.blocks", "num_chs": dim, "reduction": reduction}
            for index, (dim, reduction) in enumerate(zip(widths, reductions, strict=True))
        ]
        self.num_features = self.head_hidden_size = widths[last]
        self.norm: nn.Module = nn.LayerNorm(self.num_features)
        self.head_drop = nn.Dropout(drop_rate)
        self.head = _head(self.num_features, num_classes)
        self.apply(_initialize)

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that are not decayed: none but what every optimizer leaves out by shape. The published recipe
        decays ghost heads and tables of biases too."""
        return set()

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """How timm groups the parameters in layers."""
        blocks = r"^layers\.(\d+)" if coarse else r"^layers\.(\d+)\.blocks\.(\d+)"
        return {
            "stem": r"^patch_embed",
            "blocks": [(blocks, None), (r"^layers\.(\d+)\.downsample", (99998,)), (r"^norm", (99999,))],
        }

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Compute the blocks again in the backward pass, to save memory."""
        for stage in self._stages():
            stage.grad_checkpointing = enable

    def get_classifier(self) -> nn.Module:
        """The head."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: Pool | None = None) -> None:
        """A new head for `num_classes`; 0: none."""
        self.num_classes = num_classes
        if global_pool is not None:
            self.global_pool = _known(global_pool)
        weight = self.patch_embed.proj.weight
        self.head = _head(self.num_features, num_classes).to(device=weight.device, dtype=weight.dtype)
        self.head.train(self.training)

    def forward_features(self, images: Tensor) -> Tensor:
        """Images to the normed map (B, Y, X, C)."""
        return cast(Tensor, self.norm(self.layers(self.patch_embed(images))))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """The map to logits, or to what enters the head."""
        if self.global_pool == "avg":
            x = x.mean((1, 2))
        x = self.head_drop(x)
        return x if pre_logits else cast(Tensor, self.head(x))

    def forward(self, images: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(images))

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """What leaves the blocks of some stages, as timm's models give it: (map, intermediates), or the latter alone.

        Args:
            indices: the last so many stages, those named, or all (None).
            norm: apply the final norm to the last stage's map, which alone has its width.
            stop_early: leave out the stages above.
            output_fmt: "NCHW" or "NHWC".

        Raises:
            ValueError: another format.
        """
        if output_fmt not in ("NCHW", "NHWC"):
            raise ValueError(f"output_fmt is NCHW or NHWC, not {output_fmt!r}")
        stages = self._stages()
        taken, highest = feature_take_indices(len(stages), indices)
        x, found = self.patch_embed(x), []
        for index, stage in enumerate(stages[: highest + 1] if stop_early else stages):
            x = stage.attended(x)
            if index in taken:
                kept = self.norm(x) if norm and stage.downsample is None else x
                found.append(kept.permute(0, 3, 1, 2).contiguous() if output_fmt == "NCHW" else kept)
            x = stage.merged(x)
        if intermediates_only:
            return found
        return (self.norm(x) if stage.downsample is None else x), found

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Take away the stages that `forward_intermediates` does not need for `indices`."""
        taken, highest = feature_take_indices(len(self.layers), indices)
        self.layers = self.layers[: highest + 1]
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0, "")
        return cast(list[int], taken)

    def _stages(self) -> list[Stage]:
        return cast(list[Stage], list(self.layers))


class ElsaSwinBackbone(nn.Module):
    """ELSA-Swin for dense tasks: every stage's map, normed, before its patches are merged.

    Windows of the last stage are shifted in every second block whatever the size of the map. No final norm, no head.

    Args:
        swin: whose parts are taken, without a copy. Its windows have the full size if its `img_size` is 224 or more.

    Source: ELSA, section 4.2; names of parameters as in its published checkpoints.
    """

    def __init__(self, swin: ElsaSwin) -> None:
        super().__init__()
        self.patch_embed, self.layers = swin.patch_embed, swin.layers
        self.feature_info = swin.feature_info
        for index, about in enumerate(self.feature_info):
            self.add_module(f"norm{index}", nn.LayerNorm(cast(int, about["num_chs"])))
        for module in self.layers.modules():
            if isinstance(module, WindowAttention):
                module.shift_small = True

    def forward(self, images: Tensor) -> list[Tensor]:
        """Maps (B, C, Y, X), of 4, 8, 16 and 32 pixels a patch."""
        x, found = self.patch_embed(images), []
        for index, stage in enumerate(cast(list[Stage], list(self.layers))):
            x = stage.attended(x)
            found.append(self.get_submodule(f"norm{index}")(x).permute(0, 3, 1, 2).contiguous())
            x = stage.merged(x)
        return found


def checkpoint_filter_fn(state_dict: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The published weights, or ours, made to fit `model`: without the buffers that every model computes, and the tables of
    windows' biases resampled where the model's windows have another size."""
    here = model.state_dict()
    found = {}
    for name, value in state_dict.items():
        last = name.rpartition(".")[2]
        if last in ("relative_id", "attn_mask"):
            continue
        if last == "rb" and name in here and value.ndim == 2:
            value = _resampled(value, here[name].shape[1])
        found[name] = value
    return found


def _resampled(table: Tensor, places: int) -> Tensor:
    """Biases (heads, (2w - 1)^2) of windows of another size, in the number type that they have."""
    if table.shape[1] == places:
        return table
    side, wanted = math.isqrt(table.shape[1]), math.isqrt(places)
    resized = F.interpolate(table.float().view(1, -1, side, side), size=(wanted, wanted), mode="bicubic")
    return resized.view(-1, places).to(table.dtype)


def _head(dim: int, classes: int) -> nn.Module:
    if not classes:
        return nn.Identity()
    head = nn.Linear(dim, classes)
    _initialize(head)
    return head


def _known(pool: Pool) -> Pool:
    if pool not in ("avg", ""):
        raise ValueError(f"global_pool is avg or '' here, not {pool!r}")
    return pool


def _initialize(module: nn.Module) -> None:
    """Linear layers as a truncated normal; convolutions, those that make filters among them, as torch starts them."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
