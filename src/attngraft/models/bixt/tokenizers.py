"""Images to tokens, and tokens to their neighbours: the parts of BiXT that see the grid."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal

from timm.layers import to_2tuple
from torch import Tensor, nn

from attngraft.errors import UsageError
from attngraft.models.bixt.words import known

LocalNorm = Literal["bn", "ln"]
Tokenizer = Literal["linear", "conv"]


class PatchEmbedding(nn.Module):
    """A linear map of patches that may overlap: (B, in_chans, H, W) to (B, N, dim), row by row.

    With padding (patch - stride) / 2 on all sides, N = H / stride * W / stride whatever the patch.

    Args:
        patch_size: side of a patch. stride: from one to the next; the patch's size where not given.

    Raises:
        UsageError: the padding is no whole number.
    """

    def __init__(self, patch_size: int = 16, stride: int | None = None, *, in_chans: int = 3, dim: int = 192) -> None:
        super().__init__()
        self.stride = stride or patch_size
        padding, odd = divmod(patch_size - self.stride, 2)
        if odd or padding < 0:
            raise UsageError(
                f"patches of {patch_size} at stride {self.stride} do not lie on a grid of image / stride; "
                "give a stride that is smaller by an even number"
            )
        self.proj = nn.Conv2d(in_chans, dim, patch_size, stride=self.stride, padding=padding)

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(images).flatten(2).transpose(1, 2)


class ConvolutionalEmbedding(nn.Module):
    """3x3 convolutions of stride 2 with batch norm, GELU between: (B, in_chans, H, W) to (B, N, dim), row by row.

    N = H / patch * W / patch; the widths double up to `dim`.

    Args:
        patch_size: 4, 8, 16: two to the number of convolutions.

    Raises:
        UsageError: another size, or a width that cannot be halved as often.

    Source: the tokenizer of XCiT, as BiXT's appendix B.3 has it.
    """

    def __init__(self, patch_size: int = 16, *, in_chans: int = 3, dim: int = 192) -> None:
        super().__init__()
        stages = patch_size.bit_length() - 1
        if patch_size not in (4, 8, 16):
            raise UsageError(f"the convolutional tokenizer makes patches of 4, 8 or 16, not of {patch_size}")
        if dim % 2 ** (stages - 1):
            raise UsageError(f"a width of {dim} cannot be halved {stages - 1} times; patches of {patch_size} need that")
        self.stride = patch_size
        widths = [in_chans, *(dim >> stage for stage in reversed(range(stages)))]
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            convolution = nn.Conv2d(before, after, 3, stride=2, padding=1, bias=False)
            layers += [nn.Sequential(convolution, nn.BatchNorm2d(after)), nn.GELU()]
        self.proj = nn.Sequential(*layers[:-1])

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(images).flatten(2).transpose(1, 2)


def make_tokenizer(
    kind: Tokenizer, patch_size: int, stride: int | None = None, *, in_chans: int, dim: int
) -> PatchEmbedding | ConvolutionalEmbedding:
    """The tokenizer called "linear" or "conv".

    Raises:
        UsageError: as they do; another word; or a stride for convolutions, whose patches lie side by side.
    """
    if known("tokenizer", kind, ("linear", "conv")) == "linear":
        return PatchEmbedding(patch_size, stride, in_chans=in_chans, dim=dim)
    if stride not in (None, patch_size):
        raise UsageError(f"the convolutional tokenizer's patches of {patch_size} lie side by side; give no stride")
    return ConvolutionalEmbedding(patch_size, in_chans=in_chans, dim=dim)


class LocalPatchInteraction(nn.Module):
    """Each channel of a token from its 5x5 neighbours: depthwise 3x3, GELU, norm, depthwise 3x3.

    Args:
        dim: C of the tokens (B, N, C).
        norm: "bn", batch norm, or "ln", layer norm over the channels.

    Raises:
        UsageError: another norm.

    Source: XCiT's module as BiXT's code has it; the layer norm's eps is 1e-5, unlike the rest of the model's.
    """

    def __init__(self, dim: int, *, norm: LocalNorm = "bn") -> None:
        super().__init__()
        known("norm", norm, ("bn", "ln"))
        self.conv1 = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)
        self.act = nn.GELU()
        self.bn: nn.Module = nn.BatchNorm2d(dim) if norm == "bn" else ChannelNorm(dim)
        self.conv2 = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)

    def forward(self, tokens: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        """(B, N, C) to (B, N, C).

        Args:
            grid: rows and columns of the tokens; a square one where not given.

        Raises:
            UsageError: N is no square, and there is no grid.
        """
        maps = tokens.transpose(1, 2).unflatten(2, grid or square(tokens.shape[1]))
        return self.conv2(self.bn(self.act(self.conv1(maps)))).flatten(2).transpose(1, 2)


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of (B, C, H, W)."""

    def forward(self, maps: Tensor) -> Tensor:
        return super().forward(maps.movedim(1, -1)).movedim(-1, 1)


def square(tokens: int) -> tuple[int, int]:
    """Rows and columns of a square grid.

    Raises:
        UsageError: there is none of so many tokens.
    """
    side = math.isqrt(tokens)
    if side * side != tokens:
        raise UsageError(f"{tokens} tokens make no square grid; give its rows and columns")
    return side, side


def token_grid(img_size: int | tuple[int, int], stride: int) -> tuple[int, int]:
    """Rows and columns of the tokens of an image.

    Raises:
        UsageError: the stride does not divide the image.
    """
    height, width = to_2tuple(img_size)
    if height % stride or width % stride or not height or not width:
        raise UsageError(f"images of {height} x {width} do not divide into steps of {stride}; give sizes that do")
    return height // stride, width // stride
