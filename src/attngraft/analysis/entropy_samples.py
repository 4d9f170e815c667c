"""Attention maps of single patches in order of entropy (CB, Fig. 3b)."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from attngraft.analysis.entropy_maps import entropies_on_maps
from attngraft.analysis.panels import Values, backdrop, cells, image_row, map_values, table
from attngraft.analysis.request import Analysis, AnalysisRequest, Content, Measured, ShownImage, by_model
from attngraft.analysis.tensors import recorded, sites_without_maps
from attngraft.recording.recording import Recording
from attngraft.results.analysis import Picture, PictureRow, Pictures
from attngraft.targets.handle import ModelHandle

_SAMPLES = 8  #: number of maps per image, evenly spaced by the rank of their entropy


class _Sample(NamedTuple):
    """The attention map of one query patch in one head."""

    layer: str
    head: int
    query: tuple[int, int]  #: (row, column)
    entropy: float  #: nats
    values: Values  #: shares of the patches, which sum to 1


_Image = tuple[ShownImage, list[_Sample]]


def _measure(request: AnalysisRequest, model: ModelHandle, left_out: dict[str, str]) -> list[_Image]:
    images = []
    for image in request.pictures(model):
        recording = recorded(model, image.inputs, "weights", sites=request.sites)
        entropies = entropies_on_maps(recording, left_out)
        left_out |= sites_without_maps(recording, model)
        images.append((image, list(_samples(recording, entropies))))
    return images


def _samples(recording: Recording, entropies: Mapping[str, Tensor]) -> Iterator[_Sample]:
    """Yield maps from the smallest to the largest entropy; `entropies` are (H, rows, columns) by site."""
    maps = [
        (site, head, row, column) for site, each in entropies.items() for head, row, column in np.ndindex(*each.shape)
    ]
    values = torch.cat([each.flatten() for each in entropies.values()])
    order = values.argsort(stable=True)
    for rank in np.unique(np.linspace(0, len(maps) - 1, _SAMPLES).round().astype(int)):
        chosen = int(order[rank])
        site, head, row, column = maps[chosen]
        share = recording.attention_map_for_query(site, (row, column))[0, head].float()
        yield _Sample(site, head, (row, column), float(values[chosen]), map_values(share / share.sum()))


def _present(request: AnalysisRequest, models: Measured[list[_Image]]) -> Content:
    return Content(
        note=f"{_SAMPLES} attention maps of single patches (queries), from all layers and heads, evenly spaced by the rank "
        "of their entropy, from the smallest to the largest. The number above a map is its entropy -sum a ln a in nats. "
        "Prefix tokens are excluded, and maps normalized to sum to 1. Each map has its own color scale; light is much "
        "attention.",
        panels=[_panel(name, *image) for _, name, images in models for image in images],
        table=table(
            ["model", "image", "layer", "head", "query row", "query column", "entropy", "row", "column", "share"],
            [
                (name, image.name, each.layer, each.head, *each.query, each.entropy, *cell)
                for _, name, images in models
                for image, samples in images
                for each in samples
                for cell in cells(each.values)
            ],
        ),
    )


def _panel(name: str, image: ShownImage, samples: list[_Sample]) -> Pictures:
    under = backdrop(image.view)
    pictures = [Picture(image=under, values=each.values, caption=f"{each.entropy:.2f}") for each in samples]
    return Pictures(
        title=f"{name}: maps by entropy, {image.name}",
        rows=[image_row([image]), PictureRow(name="entropy", pictures=pictures)],
    )


ANALYSIS = Analysis(
    name="entropy-samples",
    title="Attention maps by entropy",
    summary="attention maps of single patches from the smallest to the largest entropy, each with its value",
    source="CB, Fig. 3b",
    run=by_model(_measure, _present),
    images="shown",
)
