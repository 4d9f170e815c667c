"""How alike two feature maps look: their first principal component as a picture, structural similarity, sharpness.

BiSA, Figs. 4 to 7. How the paper makes one picture of 96 channels it does not say; ours is the first principal component of
both maps together.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from attngraft.errors import UsageError


class Pictures(NamedTuple):
    """Two feature maps as pictures (B, rows, columns), on one scale from 0 to 1 per image."""

    first: Tensor
    second: Tensor


def pictures(first: Tensor, second: Tensor) -> Pictures:
    """Feature maps (B, rows, columns, C) of two models to pictures that can be compared.

    Per image: the first principal component of the pixels of both maps together, its sign such that it goes with the mean
    of the channels, then (x - min) / (max - min) over both.

    Raises:
        UsageError: the maps are of unlike shapes.
    """
    if first.shape != second.shape or first.ndim != 4:
        raise UsageError(f"maps of {tuple(first.shape)} and {tuple(second.shape)} cannot be compared pixel by pixel")
    both = torch.stack([first, second], 1).double()  # (B, 2, rows, columns, C)
    pixels = both.flatten(1, 3)
    centred = pixels - pixels.mean(1, keepdim=True)
    direction = torch.linalg.eigh(centred.mT @ centred).eigenvectors[..., -1:]  # eigenvalues ascend
    component = (centred @ direction).squeeze(2)
    goes_with = (component * centred.mean(2)).sum(1, keepdim=True)
    component = torch.where(goes_with < 0, -component, component)
    low, high = component.amin(1, keepdim=True), component.amax(1, keepdim=True)
    scaled = torch.where(high > low, (component - low) / torch.where(high > low, high - low, 1), 0)
    return Pictures(*scaled.view(both.shape[:-1]).to(first.dtype).unbind(1))


def structural_similarity(
    first: Tensor, second: Tensor, *, sigma: float = 1.5, window: int = 11, value_range: float = 1.0
) -> Tensor:
    """SSIM at every pixel of pictures (B, rows, columns), between -1 and 1; its mean is the index of Wang et al. (2004).

        SSIM = (2 m_x m_y + c1) (2 s_xy + c2) / ((m_x^2 + m_y^2 + c1) (s_x^2 + s_y^2 + c2))

    with means m and (co)variances s under a Gaussian window, c1 = (0.01 R)^2 and c2 = (0.03 R)^2. At the border pictures
    are mirrored. The dissimilarity that BiSA shows is (1 - SSIM) / 2.

    Args:
        sigma: of the window, in pixels. window: its side, odd.
        value_range: R, the largest difference that two values can have.

    Raises:
        UsageError: unlike shapes, or an even window.
    """
    if first.shape != second.shape or first.ndim != 3:
        raise UsageError(
            f"pictures of {tuple(first.shape)} and {tuple(second.shape)} cannot be compared pixel by pixel"
        )
    if window % 2 == 0:
        raise UsageError(f"window={window}: give an odd number of pixels, so that it has a middle")
    x, y = first.double(), second.double()
    c1, c2 = (0.01 * value_range) ** 2, (0.03 * value_range) ** 2
    m_x, m_y, xx, yy, xy = (
        _blurred(each, _gaussian(window, sigma, x)) for each in (x, y, x.square(), y.square(), x * y)
    )
    s_x, s_y, s_xy = xx - m_x.square(), yy - m_y.square(), xy - m_x * m_y
    found = (2 * m_x * m_y + c1) * (2 * s_xy + c2) / ((m_x.square() + m_y.square() + c1) * (s_x + s_y + c2))
    return found.to(first.dtype)


def gradient(picture: Tensor) -> Tensor:
    """Length of the gradient at every pixel of (B, rows, columns), by Sobel's filters; a ramp of 1 per pixel has 1.

    At the border pictures are continued by their last pixel.
    """
    across = picture.new_tensor([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8
    padded = F.pad(picture.unsqueeze(1), (1, 1, 1, 1), mode="replicate")
    return F.conv2d(padded, torch.stack([across, across.T]).unsqueeze(1)).norm(dim=1)


class Sharpness(NamedTuple):
    """Of pictures, per image (B,)."""

    mean: Tensor  #: mean length of the gradient
    at_boundaries: Tensor  #: the same, at boundaries over elsewhere: above 1, edges of the picture lie on boundaries
    correlation: Tensor  #: of the gradient's length with being a boundary, over all pixels


def sharpness(picture: Tensor, boundary: Tensor) -> Sharpness:
    """How sharp pictures (B, rows, columns) are, and whether where boundaries are.

    Args:
        picture: for example one of `pictures`.
        boundary: how much of a boundary each pixel is, (B, rows, columns), 0 to 1: from labels
            (`evaluation.boundaries.boundary`), or an image's own edges (`gradient`, scaled to 1). Where there is none, or
            nothing else, there is nothing to compare: NaN.

    Raises:
        UsageError: the shapes differ; resize the boundaries to the picture first.
    """
    if picture.shape != boundary.shape:
        raise UsageError(
            f"pictures of {tuple(picture.shape)} and boundaries of {tuple(boundary.shape)}: resize one to the other first"
        )
    steep, weight = gradient(picture.double()).flatten(1), boundary.double().flatten(1)
    there = (steep * weight).sum(1) / weight.sum(1)
    elsewhere = (steep * (1 - weight)).sum(1) / (1 - weight).sum(1)
    a, b = (each - each.mean(1, keepdim=True) for each in (steep, weight))
    correlation = (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))
    return Sharpness(steep.mean(1), there / elsewhere, correlation)


def _gaussian(window: int, sigma: float, like: Tensor) -> Tensor:
    far = torch.arange(window, dtype=like.dtype, device=like.device) - window // 2
    weights = torch.exp(-far.square() / (2 * sigma**2))
    return weights / weights.sum()


def _blurred(picture: Tensor, weights: Tensor) -> Tensor:
    """Along both axes; the border mirrored with its last pixel doubled, so that pictures may be as small as one pixel."""
    reach = len(weights) // 2
    rows, columns = (_mirrored(size, reach, picture.device) for size in picture.shape[1:])
    padded = picture[:, rows][:, :, columns].unsqueeze(1)
    return F.conv2d(F.conv2d(padded, weights.view(1, 1, -1, 1)), weights.view(1, 1, 1, -1)).squeeze(1)


def _mirrored(size: int, reach: int, device: torch.device) -> Tensor:
    """Which pixel stands at each place from `-reach` to `size + reach`: d c b a | a b c d | d c b a."""
    place = torch.arange(-reach, size + reach, device=device) % (2 * size)
    return torch.where(place < size, place, 2 * size - 1 - place)
