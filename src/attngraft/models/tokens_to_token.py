"""Tokens-to-token module (T2T): overlapping patches of an image, and cheap attention between them.

    x_0 = image
    x_i = attention_i(split_i(x_{i-1})), reshaped to its grid     i = 1, 2
    tokens = project(split_3(x_2))

A split unfolds the map: every token is the kernel x kernel neighborhood of its position. Both attentions have one head and
project tokens to `width`; they are a `TokenPerformer` or a `TokenTransformer`.

Source: L. Yuan et al., "Tokens-to-Token ViT: Training Vision Transformers from Scratch on ImageNet", 2021; the performer:
K. Choromanski et al., "Rethinking Attention with Performers", 2021, positive random features. Sub-modules and tensors have
the names of the authors' weights.
"""

import math
from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from timm.layers import Mlp
from torch import Tensor, nn

from attngraft.attention.tracing import fx_leaf

#: (kernel, stride, padding) of each split; together the splits have a stride of 16 pixels
SPLITS = ((7, 4, 2), (3, 2, 1), (3, 2, 1))


class TokenPerformer(nn.Module):
    """Attention by positive random features: linear in the number of tokens, without an attention map.

        k, q, v = kqv(norm1(x))
        phi(x) = exp(W x - |x|^2 / 2) / sqrt(m)
        y      = phi(q) (sum_j phi(k_j) v_j^T) / (phi(q) . sum_j phi(k_j) + 1e-8)
        x      = v + drop(proj(y));  x = x + mlp(norm2(x))

    W (m, width) has orthogonal rows of length sqrt(m), m = width / 2; it is drawn once and never trained. The output is
    added to the values, not to the incoming tokens, which have another width. Features are computed in float32 at least,
    since they exceed the range of half precision.

    Shapes: (B, N, dim) to (B, N, width).
    """

    w: Tensor

    def __init__(self, dim: int, width: int, *, drop: float = 0.1) -> None:
        super().__init__()
        features = width // 2
        self.norm1 = nn.LayerNorm(dim)
        self.kqv = nn.Linear(dim, 3 * width)
        self.proj = nn.Linear(width, width)
        self.proj_drop = nn.Dropout(drop)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.Dropout(drop))
        self.register_buffer("w", nn.init.orthogonal_(torch.empty(features, width)) * features**0.5)

    def forward(self, x: Tensor) -> Tensor:
        k, q, v = self.kqv(self.norm1(x)).chunk(3, dim=-1)
        x = v + self.proj_drop(self.proj(self.mix(q, k, v)))
        return cast(Tensor, x + self.mlp(self.norm2(x)))

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the output of attention (B, N, width) for queries, keys and values (B, N, width)."""
        phi_q, phi_k = self.features(q), self.features(k)
        numerator = phi_q @ (phi_k.transpose(1, 2) @ v.to(phi_k.dtype))
        denominator = phi_q @ phi_k.sum(dim=1).unsqueeze(-1)
        # `features` omits 1 / sqrt(m), so both are m times those in the formula; torch's ONNX exporter would round 1e-8 to 0
        return (numerator / (denominator + len(self.w) * 1e-8)).to(v.dtype)

    def features(self, x: Tensor) -> Tensor:
        """Return sqrt(m) phi(x): (B, N, width) to (B, N, m)."""
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        return (x @ self.w.to(x.dtype).T - x.square().sum(dim=-1, keepdim=True) / 2).exp()


class TokenAttention(nn.Module):
    """Softmax attention with one head whose output is narrower than its input.

        y = v + proj(softmax(q k^T / sqrt(dim)) v)

    Scores are scaled by the width of the incoming tokens, not of the head, and q, k, v have no biases.

    Shapes: (B, N, dim) to (B, N, width).
    """

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.scale = dim**-0.5
        self.qkv = nn.Linear(dim, 3 * width, bias=False)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unsqueeze(1).chunk(3, dim=-1)
        y = F.scaled_dot_product_attention(q, k, v, scale=self.scale)
        return cast(Tensor, v.squeeze(1) + self.proj(y.squeeze(1)))


class TokenTransformer(nn.Module):
    """Transformer block of `TokenAttention`: `x = attn(norm1(x)); x = x + mlp(norm2(x))`.

    The attention map is N x N: 3136 x 3136 for images of 224 pixels.

    Shapes: (B, N, dim) to (B, N, width).
    """

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = TokenAttention(dim, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = Mlp(width, hidden_features=width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attn(self.norm1(x))
        return cast(Tensor, x + self.mlp(self.norm2(x)))


class TokensToToken(nn.Module):
    """Tokens-to-token module: images (B, in_chans, height, width) to tokens (B, N, embed_dim) on `grid_size`.

    Raises:
        ValueError: `splits` does not have three entries (kernel, stride, padding), `token_width` is odd, `attention` is
            unknown, or the image is too small for the splits.
    """

    def __init__(
        self,
        img_size: tuple[int, int],
        *,
        in_chans: int = 3,
        embed_dim: int = 384,
        token_width: int = 64,
        splits: Sequence[Sequence[int]] = SPLITS,
        attention: str = "performer",
        drop: float = 0.1,
    ) -> None:
        super().__init__()
        if len(splits) != 3 or any(len(split) != 3 for split in splits):
            raise ValueError(f"splits must have three entries (kernel, stride, padding), as in {SPLITS}, not {splits}")
        if token_width < 2 or token_width % 2:
            raise ValueError(f"token_width must be an even number of channels, not {token_width}")
        self.img_size, self.in_chans, self.token_width = img_size, in_chans, token_width
        self.splits = tuple((int(kernel), int(stride), int(padding)) for kernel, stride, padding in splits)
        self.grids = _grids(img_size, self.splits)
        dims = [
            channels * kernel**2
            for channels, (kernel, _, _) in zip((in_chans, *2 * [token_width]), self.splits, strict=True)
        ]
        self.attention1, self.attention2 = (
            _attention(attention, dim, width=token_width, drop=drop) for dim in dims[:2]
        )
        self.project = nn.Linear(dims[2], embed_dim)

    @property
    def grid_size(self) -> tuple[int, int]:
        """Return (rows, columns) of the tokens."""
        return self.grids[-1]

    @property
    def stride(self) -> int:
        """Pixels between neighboring tokens."""
        return math.prod(stride for _, stride, _ in self.splits)

    @fx_leaf
    def forward(self, x: Tensor) -> Tensor:
        torch._assert(
            tuple(x.shape[-2:]) == self.img_size,
            f"this model takes images of {self.img_size}; create it with the img_size of yours",
        )
        for attention, split, grid in zip((self.attention1, self.attention2), self.splits, self.grids, strict=False):
            x = attention(_unfold(x, split)).transpose(1, 2).unflatten(2, grid)
        return cast(Tensor, self.project(_unfold(x, self.splits[-1])))


def _attention(kind: str, dim: int, *, width: int, drop: float) -> nn.Module:
    if kind == "performer":
        return TokenPerformer(dim, width, drop=drop)
    if kind == "transformer":
        return TokenTransformer(dim, width)
    raise ValueError(f"token_attention must be 'performer' or 'transformer', not {kind!r}")


def _unfold(x: Tensor, split: tuple[int, int, int]) -> Tensor:
    """Unfold a map (B, C, h, w) into tokens (B, N, C kernel^2)."""
    kernel, stride, padding = split
    return F.unfold(x, kernel, stride=stride, padding=padding).transpose(1, 2)


def _grids(size: tuple[int, int], splits: Sequence[tuple[int, int, int]]) -> tuple[tuple[int, int], ...]:
    """Return (rows, columns) after each split."""
    grids = []
    rows, columns = size
    for kernel, stride, padding in splits:
        rows, columns = ((side + 2 * padding - kernel) // stride + 1 for side in (rows, columns))
        grids.append((rows, columns))
    if min(min(grid) for grid in grids) < 1:
        raise ValueError(f"images of {size} are too small for the splits {tuple(splits)}")
    return tuple(grids)
