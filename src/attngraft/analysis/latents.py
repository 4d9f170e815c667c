"""Attention of the latents to positions of the image, layer by layer (BiXT, Figs. 1 and A1 to A3)."""

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from attngraft.analysis.layers import captions
from attngraft.analysis.panels import backdrop, cells, head_maps, map_values, png, table
from attngraft.analysis.request import Analysis, AnalysisRequest, Content, Measured, ShownImage, by_model
from attngraft.analysis.tensors import find_tensors, recorded
from attngraft.errors import RecordError
from attngraft.results.analysis import Panel, Picture, PictureRow, Pictures
from attngraft.results.sections import Cell
from attngraft.targets.handle import ModelHandle

_ATTENTION = "latents_to_tokens"
_CHOSEN = 4  #: number of latents shown layer by layer by default
_PER_ROW = 8


_Maps = dict[str, dict[str, Tensor]]  #: site -> head (or "mean") -> maps (M, rows, columns)


def _measure(request: AnalysisRequest, model: ModelHandle, left_out: dict[str, str]) -> list[tuple[ShownImage, _Maps]]:
    missing = "no chosen layer has latents that attend to tokens; choose BiXT's cross-attention layers"
    find_tensors(request, model, (_ATTENTION,), missing=missing)
    images = []
    for image in request.pictures(model):
        recording = recorded(model, image.inputs, _ATTENTION, sites=request.sites)
        maps = {}
        for site in recording:
            by_head = recording.keys_on_map(site, _ATTENTION)[0].float().cpu()
            maps[site] = dict(head_maps(by_head, heads=request.heads))
            for latent in request.latents:
                if not 0 <= latent < by_head.shape[1]:
                    raise RecordError(
                        f"--latent {latent}: out of range; the latents of {site} are 0 to {by_head.shape[1] - 1}"
                    )
        images.append((image, maps))
    return images


def _chosen(count: int, request: AnalysisRequest) -> list[int]:
    """Return the requested latents; by default, `_CHOSEN` of the `count` latents, evenly spaced."""
    if request.latents:
        return list(dict.fromkeys(request.latents))
    return sorted({int(index) for index in np.linspace(0, count - 1, min(_CHOSEN, count)).round()})


def _present(request: AnalysisRequest, models: Measured[list[tuple[ShownImage, _Maps]]]) -> Content:
    panels: list[Panel] = []
    for _, name, images in models:
        panels += [_by_layer(name, *image, request) for image in images]
        if not request.latents:
            image, maps = images[0]
            last = list(maps)[-1]
            panels += [_all_latents(f"{name}: all latents in {last}", image, *each) for each in maps[last].items()]
    return Content(
        note="Attention of the latents to the tokens, shown on the image, "
        + ("by head" if request.heads else "mean over heads (--heads shows them separately)")
        + ". Light is much attention. "
        + (
            "The requested latents, through the layers. "
            if request.latents
            else f"{_CHOSEN} latents, evenly spaced by index, through the layers (--latent chooses others); and all latents "
            "of the last chosen layer on the first image. "
        )
        + "Each picture has its own color scale, so small differences look large for a latent with near-uniform attention; "
        "the table has the shares.",
        panels=panels,
        table=table(
            ["model", "image", "layer", "head", "latent", "row", "column", "share"],
            [
                row
                for _, name, images in models
                for number, image in enumerate(images)
                for row in _rows(name, *image, request, every=number == 0 and not request.latents)
            ],
        ),
    )


def _by_layer(name: str, image: ShownImage, maps: _Maps, request: AnalysisRequest) -> Pictures:
    """Return a panel with one row per latent (and head) and one column per layer."""
    rows, under = [PictureRow(name="image", pictures=[Picture(image=png(image.view))])], backdrop(image.view)
    first = next(iter(maps.values()))
    for latent in _chosen(len(next(iter(first.values()))), request):
        for head in first:
            pictures = [
                Picture(image=under, values=map_values(by_head[head][latent]), caption=caption)
                for by_head, caption in zip(maps.values(), captions(list(maps)), strict=True)
                if head in by_head
            ]
            title = f"latent {latent}, head {head}" if request.heads else f"latent {latent}"
            rows.append(PictureRow(name=title, pictures=pictures))
    return Pictures(title=f"{name}: latents through the layers, {image.name}", rows=rows)


def _all_latents(title: str, image: ShownImage, head: str, maps: Tensor) -> Pictures:
    """Return a panel with the maps of all latents of a layer."""
    rows, under = [], backdrop(image.view)
    for start in range(0, len(maps), _PER_ROW):
        shown = maps[start : start + _PER_ROW]
        pictures = [Picture(image=under, values=map_values(each)) for each in shown]
        rows.append(PictureRow(name=f"latents {start} to {start + len(shown) - 1}", pictures=pictures))
    of_head = "" if head == "mean" else f", head {head}"
    return Pictures(title=f"{title}{of_head}, {image.name}", rows=rows)


def _rows(name: str, image: ShownImage, maps: _Maps, request: AnalysisRequest, *, every: bool) -> Iterator[list[Cell]]:
    """Yield the table rows of all shown maps; `every` adds all latents of the last layer."""
    for site, by_head in maps.items():
        count = len(next(iter(by_head.values())))
        for latent in range(count) if every and site == list(maps)[-1] else _chosen(count, request):
            for head, each in by_head.items():
                for row, column, share in cells(map_values(each[latent])):
                    yield [name, image.name, site, head, latent, row, column, share]


ANALYSIS = Analysis(
    name="latents",
    title="Attention of the latents",
    summary="maps of BiXT's latents on single images, through the layers and side by side",
    source="BiXT, Figs. 1 and A1 to A3",
    run=by_model(_measure, _present),
    images="shown",
)
