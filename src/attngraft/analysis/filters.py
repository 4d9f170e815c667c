"""Local filters (attention over neighborhoods) at some positions of an image (ELSA)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from attngraft.analysis.layers import captions
from attngraft.analysis.panels import cells, head_maps, map_values, marked, table
from attngraft.analysis.request import Analysis, AnalysisRequest, Content, Measured, ShownImage, by_model
from attngraft.analysis.tensors import find_tensors, recorded
from attngraft.errors import RecordError
from attngraft.recording.recording import FILTER_NDIM
from attngraft.results.analysis import Picture, PictureRow, Pictures
from attngraft.targets.handle import ModelHandle

Positions = Sequence[tuple[float, float]]  #: (row, column) as fractions of the map's sides

#: default positions: the center, then the others row by row
POSITIONS: Positions = ((1 / 2, 1 / 2), *((y / 6, x / 6) for y in (1, 3, 5) for x in (1, 3, 5) if (y, x) != (3, 3)))


@dataclass(frozen=True, kw_only=True)
class _Filters:
    """Filters of one layer at some positions of one image."""

    at: list[tuple[int, int]]  #: row and column of each position on the layer's map
    by_head: list[tuple[str, Tensor]]  #: head (or "mean") and filters (positions, k, k)
    center: float  #: weight of the center, averaged over the map and the heads


_Image = tuple[ShownImage, Positions, dict[str, _Filters]]  #: image, positions, and filters by site


def _measure(request: AnalysisRequest, model: ModelHandle, left_out: dict[str, str]) -> list[_Image]:
    missing = "no chosen layer has filters over neighborhoods; graft elsa or lsa(area=neighborhood)"
    found = find_tensors(request, model, ("local_filters",), missing=missing)
    names = {site: tensors[0] for site, tensors in found.items()}
    images = []
    for image in request.pictures(model):
        recording = recorded(model, image.inputs, set(names.values()), sites=request.sites)
        filters = {
            site: recording[site][name][0].float().cpu()
            for site, name in names.items()
            if recording[site][name].ndim == FILTER_NDIM
        }
        if not filters:
            raise RecordError(
                "this model's filters are the same at every position of an image; use a model whose filters depend on the "
                "position, such as a model with elsa"
            )
        positions = _positions(request.positions, filters)
        layers = {site: _at_positions(each, positions, heads=request.heads) for site, each in filters.items()}
        images.append((image, positions, layers))
    return images


def _positions(chosen: Sequence[tuple[int, int]], filters: Mapping[str, Tensor]) -> Positions:
    """Return the chosen positions as fractions of the map's sides, or `POSITIONS` if none are chosen.

    Chosen positions are (row, column) on the map of the first layer.
    """
    if not chosen:
        return POSITIONS
    site, first = next(iter(filters.items()))
    rows, columns = first.shape[2:]
    for row, column in chosen:
        if not (0 <= row < rows and 0 <= column < columns):
            raise RecordError(
                f"--at {row},{column}: outside of the map of {site}, which has rows 0 to {rows - 1} and columns 0 to "
                f"{columns - 1}"
            )
    return [((row + 0.5) / rows, (column + 0.5) / columns) for row, column in dict.fromkeys(chosen)]


def _at_positions(filters: Tensor, positions: Positions, *, heads: bool) -> _Filters:
    """Extract the filters at some positions from filters (H, K, rows, columns)."""
    rows, columns = filters.shape[2:]
    at = [(int(y * rows), int(x * columns)) for y, x in positions]
    side = math.isqrt(filters.shape[1])
    values = torch.stack([filters[:, :, row, column].unflatten(1, (side, side)) for row, column in at], 1)
    center = float(filters[:, filters.shape[1] // 2].mean())
    return _Filters(at=at, by_head=head_maps(values, heads=heads), center=center)


def _present(request: AnalysisRequest, models: Measured[list[_Image]]) -> Content:
    return Content(
        note=(
            "At the chosen positions on the map of the first layer with filters,"
            if request.positions
            else f"At {len(POSITIONS)} positions, the center first (--at chooses others),"
        )
        + " the weights over the surrounding neighborhood of k x k, "
        + ("by head" if request.heads else "mean over heads (--heads shows them separately)")
        + ". ELSA: after the softmax and before the ghost head. Each picture has its own color scale, with light for large "
        "weights; the table has the weights. Weights of neighbors beyond the map's border are part of the softmax and are "
        "shown. A position in the image is mapped to the map of each layer.",
        panels=[_panel(name, *image, heads=request.heads) for _, name, images in models for image in images],
        table=table(
            ["model", "image", "layer", "head", "row", "column", "down", "right", "weight"],
            [
                (name, image.name, site, head, row, column, down - len(values) // 2, right - len(values) // 2, weight)
                for _, name, images in models
                for image, _, layers in images
                for site, each in layers.items()
                for head, filters in each.by_head
                for (row, column), values in zip(each.at, filters, strict=True)
                for down, right, weight in cells(map_values(values))
            ],
        ),
        numbers={
            f"{name}, {site}: mean weight of the place itself": fmean(layers[site].center for *_, layers in images)
            for _, name, images in models
            for site in images[0][-1]
        },
    )


def _panel(
    name: str, image: ShownImage, positions: Positions, layers: Mapping[str, _Filters], *, heads: bool
) -> Pictures:
    """Return a panel with the image, then one row per layer (and head) with one column per position."""
    rows = [PictureRow(name="positions", pictures=[Picture(image=marked(image.view, positions))])]
    signed = False
    for caption, layer in zip(captions(list(layers)), layers.values(), strict=True):
        for head, filters in layer.by_head:
            signed = signed or bool((filters < 0).any())
            pictures = [
                Picture(values=map_values(each), caption=str(number)) for number, each in enumerate(filters, start=1)
            ]
            rows.append(PictureRow(name=f"{caption}, head {head}" if heads else caption, pictures=pictures))
    return Pictures(title=f"{name}: filters on {image.name}", rows=rows, diverging=signed)


ANALYSIS = Analysis(
    name="filters",
    title="Local filters",
    summary="local filters of elsa and its family at some positions of single images",
    source="ELSA, Eq. 7",
    run=by_model(_measure, _present),
    images="shown",
)
