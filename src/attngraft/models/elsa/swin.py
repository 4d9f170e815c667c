"""ELSA-Swin: Swin with Hadamard attention in the first three stages, window attention in the last."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch.nn.functional as F
from timm.layers import PatchEmbed, to_2tuple
from timm.models import checkpoint_seq
from timm.models._features import feature_take_indices  # private, but used by all models in timm
from timm.models.swin_transformer import PatchMerging
from torch import Tensor, nn

from attngraft.models.elsa.blocks import Residual, WindowAttention, elsa_block
from attngraft.models.timm_model import TimmModel, drop_path_rates


class Stage(nn.Module):
    """Blocks of one width, then patch merging, except in the last stage."""

    def __init__(self, blocks: Iterable[nn.Module], downsample: nn.Module | None = None) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*blocks)
        self.downsample = downsample
        self.grad_checkpointing = False

    def forward(self, x: Tensor) -> Tensor:
        return self.merged(self.attended(x))

    def attended(self, x: Tensor) -> Tensor:
        """Return the output of the blocks."""
        if self.grad_checkpointing:
            return cast(Tensor, checkpoint_seq(self.blocks, x))
        return cast(Tensor, self.blocks(x))

    def merged(self, x: Tensor) -> Tensor:
        """Return the input of the next stage."""
        return x if self.downsample is None else cast(Tensor, self.downsample(x))


class ElsaSwin(TimmModel):
    """ELSA-Swin classifier: images (B, in_chans, H, W) to logits (B, num_classes).

        x = x + attn(norm1(x));  x = x + mlp(norm2(x))      attn: Hadamard attention; window attention in the last stage
        logits = head(mean of norm(x) over the map)

    Images of any size are accepted; they are padded with zeros where patches, merging or windows require it.

    Args:
        img_size: expected image size, one number or (rows, columns). Windows are at most as large as the last stage's map at
            this size, which determines the size of their bias table.
        embed_dim: channels of the first stage, doubled from stage to stage.
        depths, num_heads: blocks and heads of each stage.
        kernel_size: k of the neighborhoods.
        group_width: channels per group of the convolution that computes the filters.
        lam, gamma: settings of the ghost head; the published models have only its addend.
        window_size: window of the last stage; every second block shifts its windows if the map is larger than a window.
        global_pool: "avg" (the mean over the map), "" (the map itself).

    Source: ELSA, section 3.4, Table 6; names of parameters as in the published checkpoints.
    """

    pools = ("avg", "")
    layers_name = "layers"
    output_fmt = "NHWC"  #: layout of `forward_features`

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        *,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
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
        self.num_classes, self.in_chans, self.global_pool = num_classes, in_chans, self.check_pool(global_pool)
        self.img_size = to_2tuple(img_size)
        self.patch_embed = PatchEmbed(
            None, patch_size, in_chans, embed_dim, nn.LayerNorm, output_fmt="NHWC", dynamic_img_pad=True
        )
        last = len(depths) - 1
        widths = [embed_dim * 2**index for index in range(len(depths))]
        reductions = [patch_size * 2**index for index in range(len(depths))]
        window = min(window_size, *(-(-size // reductions[last]) for size in to_2tuple(img_size)))
        rates = iter(drop_path_rates(drop_path_rate, sum(depths)))
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
        self.head = self.make_head(num_classes)
        self.apply(_initialize)

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return timm's patterns for grouping parameters by layer."""
        blocks = r"^layers\.(\d+)" if coarse else r"^layers\.(\d+)\.blocks\.(\d+)"
        return {
            "stem": r"^patch_embed",
            "blocks": [(blocks, None), (r"^layers\.(\d+)\.downsample", (99998,)), (r"^norm", (99999,))],
        }

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Enable activation checkpointing of the blocks."""
        for stage in self._stages():
            stage.grad_checkpointing = enable

    def make_head(self, classes: int) -> nn.Module:
        """Return a new head, initialized like the model's."""
        head = super().make_head(classes)
        _initialize(head)
        return head

    def forward_features(self, images: Tensor) -> Tensor:
        """Return the normalized map (B, Y, X, C) of the last stage."""
        return cast(Tensor, self.norm(self.layers(self.patch_embed(images))))

    def pooled(self, x: Tensor) -> Tensor:
        """Return the mean over the map, or the map itself."""
        return x.mean((1, 2)) if self.global_pool == "avg" else x

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """Return (output, maps of some stages before patch merging), as timm's models do.

        Args:
            indices: a number n for the last n stages, a list of stages, or None for all.
            norm: apply the final norm to the last stage's map; the other maps have another width.
            stop_early: stop after the last stage in `indices`.
            output_fmt: "NCHW" or "NHWC".
            intermediates_only: return only the maps.

        Raises:
            ValueError: `output_fmt` is unknown.
        """
        if output_fmt not in ("NCHW", "NHWC"):
            raise ValueError(f"output_fmt must be NCHW or NHWC, not {output_fmt!r}")
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

    def _stages(self) -> list[Stage]:
        return cast(list[Stage], list(self.layers))


class ElsaSwinBackbone(nn.Module):
    """ELSA-Swin for dense tasks: returns every stage's map, normalized, before patch merging.

    Windows of the last stage are shifted in every second block for any size of the map. No final norm, no head.

    Args:
        swin: the model whose modules are used, without a copy. Create it with an `img_size` of 224 or more, so that its
            windows have the full size.

    Source: ELSA, section 4.2; names of parameters as in the published checkpoints.
    """

    def __init__(self, swin: ElsaSwin) -> None:
        super().__init__()
        self.patch_embed, self.layers = swin.patch_embed, swin.layers
        self.feature_info = swin.feature_info
        for index, info in enumerate(self.feature_info):
            self.add_module(f"norm{index}", nn.LayerNorm(cast(int, info["num_chs"])))
        for module in self.layers.modules():
            if isinstance(module, WindowAttention):
                module.shift_small = True

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return the maps (B, C, Y, X) of all stages, at strides of 4, 8, 16 and 32 pixels."""
        x, found = self.patch_embed(images), []
        for index, stage in enumerate(cast(list[Stage], list(self.layers))):
            x = stage.attended(x)
            found.append(self.get_submodule(f"norm{index}")(x).permute(0, 3, 1, 2).contiguous())
            x = stage.merged(x)
        return found


def checkpoint_filter_fn(state_dict: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Adapt the published weights, or ours, to `model`.

    Buffers that the model computes itself are ignored, and bias tables for another window size are resampled.
    """
    own = model.state_dict()
    found = {}
    for name, value in state_dict.items():
        last = name.rpartition(".")[2]
        if last in ("relative_id", "attn_mask"):
            continue
        if last == "rb" and name in own and value.ndim == 2:
            value = _resampled(value, own[name].shape[1])
        found[name] = value
    return found


def _resampled(table: Tensor, size: int) -> Tensor:
    """Resample a bias table (heads, (2w - 1)^2) to `size` columns, for another window."""
    if table.shape[1] == size:
        return table
    side, wanted = math.isqrt(table.shape[1]), math.isqrt(size)
    resized = F.interpolate(table.float().view(1, -1, side, side), size=(wanted, wanted), mode="bicubic")
    return resized.view(-1, size).to(table.dtype)


def _initialize(module: nn.Module) -> None:
    """Initialize a linear layer from a truncated normal; convolutions keep PyTorch's initialization."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
