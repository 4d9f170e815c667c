"""Structural similarity and sharpness of two models' feature maps.

BiSA, Figs. 4 to 7. The paper does not state how 96 channels are reduced to one picture; we use the first principal component
of both maps together.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from attngraft.analysis.panels import check_finite, map_values, png, table
from attngraft.analysis.request import Analysis, AnalysisRequest, Content
from attngraft.analysis.segmentation_masks import RADIUS, SegmentationMasks
from attngraft.analysis.tensors import feature_map, find_tensors, recorded
from attngraft.errors import RecordError, UsageError
from attngraft.results.analysis import Panel, Picture, PictureRow, Pictures
from attngraft.targets.handle import ModelHandle

_HOOK_POINT = "attn.end"
_COMPONENTS = {"common": "of both maps together", "own": "of each map by itself"}


class PicturePair(NamedTuple):
    """Two feature maps as pictures (B, rows, columns), with a common scale from 0 to 1 per image."""

    first: Tensor
    second: Tensor


def pictures(first: Tensor, second: Tensor) -> PicturePair:
    """Reduce feature maps (B, rows, columns, C) of two models to comparable pictures.

    For each image, take the first principal component of the pixels of both maps together, with the sign that correlates
    positively with the mean of the channels, and apply (x - min) / (max - min) over both maps.

    Raises:
        UsageError: the maps have different shapes.
    """
    if first.shape != second.shape or first.ndim != 4:
        raise UsageError(f"maps must have the same shape, got {tuple(first.shape)} and {tuple(second.shape)}")
    both = torch.stack([first, second], 1).double()  # (B, 2, rows, columns, C)
    pixels = both.flatten(1, 3)
    centered = pixels - pixels.mean(1, keepdim=True)
    direction = torch.linalg.eigh(centered.mT @ centered).eigenvectors[..., -1:]  # eigenvalues are ascending
    component = (centered @ direction).squeeze(2)
    correlation = (component * centered.mean(2)).sum(1, keepdim=True)
    component = torch.where(correlation < 0, -component, component)
    low, high = component.amin(1, keepdim=True), component.amax(1, keepdim=True)
    scaled = torch.where(high > low, (component - low) / torch.where(high > low, high - low, 1), 0)
    return PicturePair(*scaled.view(both.shape[:-1]).to(first.dtype).unbind(1))


def structural_similarity(
    first: Tensor, second: Tensor, *, sigma: float = 1.5, window: int = 11, value_range: float = 1.0
) -> Tensor:
    """Return the SSIM at every pixel of pictures (B, rows, columns), between -1 and 1 (Wang et al. 2004).

        SSIM = (2 m_x m_y + c1) (2 s_xy + c2) / ((m_x^2 + m_y^2 + c1) (s_x^2 + s_y^2 + c2))

    with means m and (co)variances s weighted by a Gaussian window, c1 = (0.01 R)^2 and c2 = (0.03 R)^2. Pictures are
    mirrored at the border. Wang et al.'s index is the mean over pixels. BiSA shows the dissimilarity (1 - SSIM) / 2.

    Args:
        sigma: standard deviation of the window in pixels.
        window: side of the window in pixels, odd.
        value_range: R, the largest possible difference between two values.

    Raises:
        UsageError: the shapes differ, or `window` is even.
    """
    if first.shape != second.shape or first.ndim != 3:
        raise UsageError(f"pictures must have the same shape, got {tuple(first.shape)} and {tuple(second.shape)}")
    if window % 2 == 0:
        raise UsageError(f"window must be odd, got {window}")
    x, y = first.double(), second.double()
    c1, c2 = (0.01 * value_range) ** 2, (0.03 * value_range) ** 2
    distance = torch.arange(window, dtype=x.dtype, device=x.device) - window // 2
    weights = torch.exp(-distance.square() / (2 * sigma**2))
    weights = weights / weights.sum()
    m_x, m_y, xx, yy, xy = (_blurred(each, weights) for each in (x, y, x.square(), y.square(), x * y))
    s_x, s_y, s_xy = xx - m_x.square(), yy - m_y.square(), xy - m_x * m_y
    similarity = (2 * m_x * m_y + c1) * (2 * s_xy + c2) / ((m_x.square() + m_y.square() + c1) * (s_x + s_y + c2))
    return similarity.to(first.dtype)


def gradient(picture: Tensor) -> Tensor:
    """Return the gradient magnitude at every pixel of pictures (B, rows, columns), from Sobel filters.

    A ramp of 1 per pixel has magnitude 1. The border is padded by replication.
    """
    across = picture.new_tensor([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8
    padded = F.pad(picture.unsqueeze(1), (1, 1, 1, 1), mode="replicate")
    return F.conv2d(padded, torch.stack([across, across.T]).unsqueeze(1)).norm(dim=1)


class Sharpness(NamedTuple):
    """Sharpness measures of pictures, one value per image (B,)."""

    mean: Tensor  #: mean gradient magnitude
    at_boundaries: Tensor  #: mean magnitude at boundaries / elsewhere; above 1 if edges lie on boundaries
    correlation: Tensor  #: correlation of the gradient magnitude with the boundary, over all pixels


def sharpness(picture: Tensor, boundary: Tensor) -> Sharpness:
    """Measure the sharpness of pictures (B, rows, columns) and its relation to boundaries.

    Args:
        picture: pictures, for example from `pictures`.
        boundary: degree from 0 to 1 to which each pixel is a boundary, (B, rows, columns), from labels
            (`tasks.images.boundaries.boundary`) or from the image's edges (`gradient`, scaled to a maximum of 1). If all
            pixels or none are boundaries, `at_boundaries` and `correlation` are NaN.

    Raises:
        UsageError: the shapes differ; resize the boundaries to the picture first.
    """
    if picture.shape != boundary.shape:
        raise UsageError(
            f"picture and boundary must have the same shape, got {tuple(picture.shape)} and {tuple(boundary.shape)}"
        )
    steep, weight = gradient(picture.double()).flatten(1), boundary.double().flatten(1)
    at_boundary = (steep * weight).sum(1) / weight.sum(1)
    elsewhere = (steep * (1 - weight)).sum(1) / (1 - weight).sum(1)
    a, b = (each - each.mean(1, keepdim=True) for each in (steep, weight))
    correlation = (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))
    return Sharpness(steep.mean(1), at_boundary / elsewhere, correlation)


def _blurred(picture: Tensor, weights: Tensor) -> Tensor:
    """Blur along both axes, with symmetric padding, which also works for pictures of a single pixel."""
    radius = len(weights) // 2
    rows, columns = (np.pad(np.arange(size), radius, mode="symmetric") for size in picture.shape[1:])
    padded = picture[:, rows][:, :, columns].unsqueeze(1)
    return F.conv2d(F.conv2d(padded, weights.view(1, 1, -1, 1)), weights.view(1, 1, 1, -1)).squeeze(1)


@dataclass(frozen=True, kw_only=True)
class _Comparison:
    """Pictures of some images (B, rows, columns) from 0 to 1, with their dissimilarity and sharpness."""

    pictures: PicturePair
    dissimilarity: Tensor
    measures: Tensor  #: mean dissimilarity, then the values of `sharpness`, by image and model, (B, 2, 4)


def run(request: AnalysisRequest) -> Content:
    known = request.label_maps is not None or request.images.label_map is not None
    labels = SegmentationMasks(request.label_maps, request.images) if known else None
    with torch.no_grad():
        sites = _common_sites(request)
        panels = _panels(request, sites, labels)
        measures = _compare_all(request, sites, labels)
    edges = "edges" if labels is None else "boundaries"
    columns = ("sharpness", f"at {edges} over elsewhere", f"correlation with {edges}")
    numbers = {}
    for component, description in _COMPONENTS.items():
        dissimilarity, *by_column = measures[component].unbind(2)
        numbers[f"{description}: dissimilarity"] = float(dissimilarity[:, 0].mean())
        for index, name in enumerate(request.names):
            for title, values in zip(columns, by_column, strict=True):
                if not values[:, index].isnan().all():
                    numbers[f"{description}: {title}, {name}"] = float(values[:, index].nanmean())
    images = [request.images.names[index] for index in request.images.sample(request.limit)]
    return Content(
        note="First principal component of the outputs of the first attention layer, inside its residual branch. The paper "
        "does not state how the channels are reduced to one picture. We use the component of both maps together, "
        "scaled from 0 to 1 per image over both. Models trained separately have different channels, and the map with "
        "the smaller numbers may look flat, so the component of each map by itself, scaled by itself, is also shown. "
        "Signs are those of the channels' mean. Dissimilarity is (1 - SSIM) / 2 with a Gaussian window (sigma 1.5, 11 "
        "x 11 positions): 0 is equal, 0.5 unrelated, 1 opposite. Sharpness is the mean gradient magnitude of a "
        "picture. "
        + (
            "Edges are those of the image at the size of the map, scaled to a maximum of 1. They are not object boundaries, "
            "which require labels (--label-maps)."
            if labels is None
            else f"Boundaries are from {labels.where}: the share of pixels of the model's input at each position of "
            f"the map with a different label at most {RADIUS} pixels away. The paper does not define its boundaries."
        ),
        panels=panels,
        table=table(
            ["model", "layer", "image", "component", "dissimilarity", *columns],
            [
                [name, sites[index], image, component, *(None if math.isnan(value) else value for value in values)]
                for component, by_image in measures.items()
                for index, name in enumerate(request.names)
                for image, values in zip(images, by_image[:, index].tolist(), strict=True)
            ],
        ),
        numbers=numbers,
    )


def _common_sites(request: AnalysisRequest) -> tuple[str, str]:
    """Return the first attention layer that has a map in both models, or else the first in each model."""
    first, second = (_maps_by_site(request, model) for model in request.models)
    common = next((site for site in first if site in second), None)
    pair = (common, common) if common is not None else (next(iter(first)), next(iter(second)))
    shapes = first[pair[0]], second[pair[1]]
    if shapes[0] != shapes[1]:
        a, b = (
            f"{name} has a map of {' x '.join(map(str, shape))} at {site}"
            for name, shape, site in zip(request.names, shapes, pair, strict=True)
        )
        raise RecordError(f"{a}, {b}: use --sites to choose a layer where both have maps of the same shape")
    return pair


def _maps_by_site(request: AnalysisRequest, model: ModelHandle) -> Mapping[str, tuple[int, ...]]:
    """Return the shape of each attention layer's output map by site, in the order of execution."""
    missing = f"{model.name}: no chosen attention layer has a map of the image"
    find_tensors(request, model, (_HOOK_POINT,), missing=f"{missing}: none has a recorded output")
    recording = recorded(model, next(request.pictures(model)).inputs, _HOOK_POINT, sites=request.sites)
    shapes: dict[str, tuple[int, ...]] = {}
    reasons = []
    for site in recording:
        try:
            shapes[site] = tuple(feature_map(recording, site, _HOOK_POINT).shape[1:])
        except RecordError as error:
            reasons.append(str(error))
    if not shapes:
        raise RecordError(f"{missing}: {reasons[0]}")
    return shapes


def _compare(
    request: AnalysisRequest,
    sites: tuple[str, str],
    labels: SegmentationMasks | None,
    indices: Sequence[int],
    inputs: tuple[Tensor, Tensor],
) -> tuple[dict[str, _Comparison], Tensor]:
    """Compare both models on some images, by component; also return the edges or boundaries."""
    first, second = (
        feature_map(recorded(model, batch, _HOOK_POINT, sites=site), site, _HOOK_POINT).float().cpu()
        for model, site, batch in zip(request.models, sites, inputs, strict=True)
    )
    for name, maps in zip(request.names, (first, second), strict=True):
        check_finite(maps, f"the map of {name} contains")
    size = (first.shape[1], first.shape[2])
    if labels is None:
        edges = gradient(F.adaptive_avg_pool2d(inputs[0].float().cpu().mean(1), size))
        edges = edges / edges.amax((1, 2), keepdim=True).clamp_min(torch.finfo(edges.dtype).tiny)
    else:
        edges = labels.boundaries(indices, request.models[0], size)
    own = PicturePair(pictures(first, first).first, pictures(second, second).first)
    comparisons = {}
    for component, pair in {"common": pictures(first, second), "own": own}.items():
        dissimilarity = (1 - structural_similarity(*pair)) / 2
        mean = dissimilarity.mean((1, 2)).double()
        by_model = [torch.stack([mean, *sharpness(picture, edges)], 1) for picture in pair]
        measures = torch.stack(by_model, 1).nan_to_num(posinf=math.nan, neginf=math.nan, nan=math.nan)
        comparisons[component] = _Comparison(pictures=pair, dissimilarity=dissimilarity, measures=measures)
    return comparisons, edges


def _compare_all(
    request: AnalysisRequest, sites: tuple[str, str], labels: SegmentationMasks | None
) -> dict[str, Tensor]:
    """Return the measures of all images by component, (images, 2, 4)."""
    batches = []
    indices = iter(request.images.sample(request.limit))
    for first, second in zip(*(request.batches(model) for model in request.models), strict=True):
        comparisons, _ = _compare(request, sites, labels, list(islice(indices, len(first))), (first, second))
        batches.append({component: each.measures for component, each in comparisons.items()})
    return {component: torch.cat([batch[component] for batch in batches]) for component in _COMPONENTS}


def _panels(request: AnalysisRequest, sites: tuple[str, str], labels: SegmentationMasks | None) -> list[Panel]:
    rows: dict[str, list[PictureRow]] = {component: [] for component in _COMPONENTS}
    a, b = request.models
    shown = zip(request.images.sample(request.shown), request.pictures(a), request.pictures(b), strict=True)
    for index, (name, view, first), (_, _, second) in shown:
        comparisons, edges = _compare(request, sites, labels, [index], (first, second))
        for component, each in comparisons.items():
            captioned = (
                ("its edges" if labels is None else "boundaries of its labels", edges),
                (a.name, each.pictures.first),
                (b.name, each.pictures.second),
                ("dissimilarity", each.dissimilarity),
            )
            maps = [Picture(values=map_values(values[0]), caption=caption) for caption, values in captioned]
            rows[component].append(PictureRow(name=name, pictures=[Picture(image=png(view), caption="image"), *maps]))
    where = sites[0] if sites[0] == sites[1] else f"{sites[0]} and {sites[1]}"
    return [
        Pictures(title=f"first component {description}, {where}", rows=rows[component], low=0.0, high=1.0)
        for component, description in _COMPONENTS.items()
    ]


ANALYSIS = Analysis(
    name="structure",
    title="Structural similarity of feature maps",
    summary="first principal component, structural dissimilarity and sharpness of two models' maps",
    source="BiSA, Figs. 4 to 7",
    run=run,
    models=(2, 2),
)
