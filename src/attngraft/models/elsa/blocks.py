"""Blocks of ELSA-Swin and ELSA-VOLO, on maps (B, Y, X, C), with the published names of parameters.

Norms have an eps of 1e-5. The Swin parts keep the parameter names and layouts of the published code: in the window
attention of the last stage, the fused projection has rows for values, queries and keys, in this order. The bias table has
shape (heads, (2w - 1)^2) and is indexed by the key's position minus the query's.

Source: ELSA, section 3.4 and its published code.
"""

from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import DropPath, Mlp
from torch import Tensor, nn

from attngraft.attention.recorder import Recordable, record_coordinates
from attngraft.errors import UsageError
from attngraft.mechanisms.local.geometry import join_windows, relative_positions, shifted_window_mask, split_windows
from attngraft.mechanisms.local.hadamard import HadamardAttention


class Residual(nn.Module):
    """Residual block: x + attn(norm1(x)), then x + mlp(norm2(x)), each with drop path."""

    def __init__(
        self, dim: int, attn: nn.Module, *, mlp_ratio: float, drop: float = 0.0, drop_path: float = 0.0
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = attn
        self.drop_path1 = DropPath(drop_path)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), drop=drop)
        self.drop_path2 = DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_path1(self.attn(self.norm1(x)))
        found: Tensor = x + self.drop_path2(self.mlp(self.norm2(x)))
        return found


class WindowAttention(Recordable, nn.Module):
    """Self-attention in windows of a map, shifted in every second block, as in Swin.

    Records `weights` (B * windows, heads, w * w, w * w) and `places`, the coordinates of the windows' tokens.

    Maps that are not divisible by the window are padded with zeros, after the norm, to the right and below; padding
    takes part in attention, as in the published dense models.

    Args:
        window: rows (and columns) of a window.
        shift: shift of the windows, less than `window`; maps with at most `window` rows or columns are not shifted.

    The published dense models also shift small maps; `ElsaSwinBackbone` sets `shift_small` for this.
    """

    relative_id: Tensor
    shift_small = False

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        window: int,
        shift: int = 0,
        qkv_bias: bool = True,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
    ) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise UsageError(f"the width {dim} is not divisible by {heads} heads; change one of them")
        self.heads, self.window, self.attn_drop = heads, window, attn_drop
        self.shift = shift
        self.pre_proj = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.rb = nn.Parameter(nn.init.trunc_normal_(torch.empty(heads, (2 * window - 1) ** 2), std=0.02))
        self.register_buffer("relative_id", relative_positions(window, window).flatten(), persistent=False)
        self.post_proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x: Tensor) -> Tensor:
        rows, columns = x.shape[1:3]
        shift = self.shift if self.shift_small or min(rows, columns) > self.window else 0
        record_coordinates(self, x, lambda maps: self._cut(maps, shift).flatten(0, 1))
        windows = self._cut(x, shift)
        padded = (rows + -rows % self.window, columns + -columns % self.window)
        v, q, k = self.pre_proj(windows).unflatten(-1, (3, self.heads, -1)).permute(3, 0, 1, 4, 2, 5)
        bias = self.rb[:, self.relative_id].unflatten(1, (self.window**2, -1))
        if shift:
            visible = shifted_window_mask(padded, self.window, shift, x.device).unsqueeze(1)
            bias = torch.where(visible, bias, bias - 100)  # as published: reduced by 100 instead of masked
        if self.is_recording("weights"):
            scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5 + bias.to(q.dtype)
            self.record("weights", scores.softmax(-1).flatten(0, 1))
        out = self._attended(q, k, v, bias.to(q.dtype))
        x = join_windows(self.post_proj(out.transpose(2, 3).flatten(3)), padded)
        if shift:
            x = x.roll((shift, shift), (1, 2))
        found: Tensor = self.proj_drop(x[:, :rows, :columns])
        return found

    def _cut(self, x: Tensor, shift: int) -> Tensor:
        """Pad, shift and partition a map into windows (B, nW, w * w, C)."""
        x = F.pad(x, (0, 0, 0, -x.shape[2] % self.window, 0, -x.shape[1] % self.window))
        return split_windows(x.roll((-shift, -shift), (1, 2)) if shift else x, self.window)

    def _attended(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        """Compute attention in windows: q, k, v and the result are (B, nW, heads, w * w, D).

        `bias` is (heads, w * w, w * w), or (nW, heads, w * w, w * w) if windows differ. Torch's ONNX export and fused
        kernels require four axes, so the window axis is merged with the batch if windows share the bias, otherwise with
        the heads. The bias is broadcast, never copied.
        """
        axis = bias.ndim - 3
        sizes = q.shape[axis : axis + 2]
        q, k, v = (each.flatten(axis, axis + 1) for each in (q, k, v))
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=bias.flatten(0, axis), dropout_p=self.attn_drop if self.training else 0.0
        )
        return out.unflatten(axis, sizes)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, window={self.window}, shift={self.shift}"


def elsa_block(
    dim: int,
    heads: int,
    *,
    kernel_size: int = 7,
    group_width: int = 8,
    lam: float = 0,
    gamma: float = 1,
    mlp_ratio: float = 4.0,
    drop: float = 0.0,
    drop_path: float = 0.0,
    **others: Any,
) -> Residual:
    """Create a block with Hadamard attention, whose products are not scaled; defaults as in ELSA-Swin.

    Args:
        others: qkv_bias and attn_drop of `HadamardAttention`.
    """
    attention: dict[str, Any] = {"kernel_size": kernel_size, "group_width": group_width, "lam": lam, "gamma": gamma}
    attn = HadamardAttention(dim, heads, proj_drop=drop, **attention, **others)
    return Residual(dim, attn, mlp_ratio=mlp_ratio, drop=drop, drop_path=drop_path)
