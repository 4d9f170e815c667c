"""Tokenizers of BiXT, and local interaction of tokens on their grid."""

import math
from itertools import pairwise
from typing import Literal, TypeVar

from timm.layers import to_2tuple
from torch import Tensor, nn

from attngraft.attention.tracing import fx_leaf
from attngraft.errors import UsageError

LocalNorm = Literal["bn", "ln"]
Tokenizer = Literal["linear", "conv"]
Choice = TypeVar("Choice", bound=str)


def check_choice(name: str, value: Choice, choices: tuple[str, ...]) -> Choice:
    """Check `value`, the argument `name`, and return it.

    Raises:
        UsageError: `value` is not one of `choices`.
    """
    if value not in choices:
        raise UsageError(f"{name} of BiXT must be {' or '.join(map(repr, choices))}, not {value!r}")
    return value


class PatchEmbedding(nn.Module):
    """A linear map of patches that may overlap: (B, in_chans, H, W) to (B, N, dim), row by row.

    With padding (patch - stride) / 2 on all sides, N = H / stride * W / stride for any patch size.

    Args:
        patch_size: side of a patch in pixels.
        stride: pixels from one patch to the next; None: the patch size.

    Raises:
        UsageError: the padding is not an integer.
    """

    def __init__(self, patch_size: int = 16, stride: int | None = None, *, in_chans: int = 3, dim: int = 192) -> None:
        super().__init__()
        self.stride = stride or patch_size
        padding, odd = divmod(patch_size - self.stride, 2)
        if odd or padding < 0:
            raise UsageError(
                f"patches of {patch_size} at stride {self.stride} do not form a grid of image / stride; "
                "set a stride that is smaller than the patch size by an even number"
            )
        self.proj = nn.Conv2d(in_chans, dim, patch_size, stride=self.stride, padding=padding)

    def forward(self, images: Tensor) -> Tensor:
        return self.proj(images).flatten(2).transpose(1, 2)


class ConvolutionalEmbedding(nn.Module):
    """3x3 convolutions of stride 2 with batch norms, and GELU between them.

    Shapes: (B, in_chans, H, W) to (B, N, dim), row by row.

    N = H / patch * W / patch; the width doubles with each convolution, up to `dim`.

    Args:
        patch_size: 4, 8 or 16: 2 to the power of the number of convolutions.

    Raises:
        UsageError: `patch_size` has another value, or `dim` cannot be halved often enough.

    Source: the tokenizer of XCiT, as described in BiXT's appendix B.3.
    """

    def __init__(self, patch_size: int = 16, *, in_chans: int = 3, dim: int = 192) -> None:
        super().__init__()
        stages = patch_size.bit_length() - 1
        if patch_size not in (4, 8, 16):
            raise UsageError(f"patch_size of the convolutional tokenizer must be 4, 8 or 16, not {patch_size}")
        if dim % 2 ** (stages - 1):
            raise UsageError(
                f"patches of {patch_size} require a width that can be halved {stages - 1} times, not {dim}"
            )
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
    """Create the tokenizer called "linear" or "conv".

    Raises:
        UsageError: `kind` is unknown, a size is invalid, or the convolutional tokenizer's stride is not its patch size.
    """
    if check_choice("tokenizer", kind, ("linear", "conv")) == "linear":
        return PatchEmbedding(patch_size, stride, in_chans=in_chans, dim=dim)
    if stride not in (None, patch_size):
        raise UsageError(
            f"the convolutional tokenizer's stride must equal its patch size, {patch_size}, not {stride}; set stride to None"
        )
    return ConvolutionalEmbedding(patch_size, in_chans=in_chans, dim=dim)


class LocalPatchInteraction(nn.Module):
    """Mix each channel with its 5x5 neighborhood: depthwise 3x3, GELU, norm, depthwise 3x3.

    Args:
        dim: C of the tokens (B, N, C).
        norm: "bn", batch norm, or "ln", layer norm over the channels.

    Raises:
        UsageError: `norm` is unknown.

    Source: XCiT's module, as in BiXT's code; the layer norm's eps is 1e-5, unlike in the rest of the model.
    """

    def __init__(self, dim: int, *, norm: LocalNorm = "bn") -> None:
        super().__init__()
        check_choice("norm", norm, ("bn", "ln"))
        self.conv1 = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)
        self.act = nn.GELU()
        self.bn: nn.Module = nn.BatchNorm2d(dim) if norm == "bn" else ChannelNorm(dim)
        self.conv2 = nn.Conv2d(dim, dim, 3, padding=1, groups=dim)

    @fx_leaf
    def forward(self, tokens: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        """Mix tokens (B, N, C) with their neighbors; the shape is unchanged.

        Args:
            grid: (rows, columns) of the tokens; None: a square.

        Raises:
            UsageError: N is not a square number, and `grid` is not set.
        """
        maps = tokens.transpose(1, 2).unflatten(2, grid or square(tokens.shape[1]))
        return self.conv2(self.bn(self.act(self.conv1(maps)))).flatten(2).transpose(1, 2)


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of (B, C, H, W)."""

    def forward(self, maps: Tensor) -> Tensor:
        return super().forward(maps.movedim(1, -1)).movedim(-1, 1)


def square(tokens: int) -> tuple[int, int]:
    """Return (rows, columns) of a square grid.

    Raises:
        UsageError: the number of tokens is not a square.
    """
    side = math.isqrt(tokens)
    if side * side != tokens:
        raise UsageError(f"{tokens} tokens do not form a square grid; pass grid=(rows, columns)")
    return side, side


def token_grid(img_size: int | tuple[int, int], stride: int) -> tuple[int, int]:
    """Return (rows, columns) of the tokens of an image.

    Raises:
        UsageError: the image size is not divisible by the stride.
    """
    height, width = to_2tuple(img_size)
    if height % stride or width % stride or not height or not width:
        raise UsageError(
            f"images of {height} x {width} are not divisible by the stride {stride}; use multiples of {stride}"
        )
    return height // stride, width // stride
