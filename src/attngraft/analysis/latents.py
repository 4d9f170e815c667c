"""Attention between latents and positions of the image, layer by layer (BiXT, Figs. 1 and A1 to A3)."""

from collections.abc import Iterator

import numpy as np
from torch import Tensor

from attngraft.analysis.layers import captions
from attngraft.analysis.panels import backdrop, cells, head_maps, map_values, png, table
from attngraft.analysis.request import Analysis, AnalysisRequest, Content, Measured, ShownImage, by_model
from attngraft.analysis.tensors import find_tensors, recorded
from attngraft.errors import RecordError
from attngraft.recording.recording import Recording
from attngraft.results.analysis import Panel, Picture, PictureRow, Pictures
from attngraft.results.sections import Cell
from attngraft.targets.handle import ModelHandle

#: recorded tensor -> its name in titles and the table
_DIRECTIONS = {"latents_to_tokens": "latents to tokens", "tokens_to_latents": "tokens to latents"}
_CHOSEN = 4  #: number of latents shown layer by layer by default
_PER_ROW = 8


_Maps = dict[str, dict[str, Tensor]]  #: site -> head (or "mean") -> maps (M, rows, columns)
_Image = tuple[ShownImage, dict[str, _Maps]]  #: maps by direction


def _measure(request: AnalysisRequest, model: ModelHandle, left_out: dict[str, str]) -> list[_Image]:
    missing = "no chosen layer has latents that attend to tokens; choose BiXT's cross-attention layers"
    found = find_tensors(request, model, _DIRECTIONS, missing=missing)
    names = list(dict.fromkeys(name for each in found.values() for name in each))
    images = []
    for image in request.pictures(model):
        recording = recorded(model, image.inputs, names, sites=request.sites)
        maps: dict[str, _Maps] = {}
        for name, direction in _DIRECTIONS.items():
            for site in (site for site in recording if name in recording[site]):
                by_head = _on_map(recording, site, name)[0].float().cpu()
                maps.setdefault(direction, {})[site] = dict(head_maps(by_head, heads=request.heads))
                for latent in request.latents:
                    if not 0 <= latent < by_head.shape[1]:
                        raise RecordError(
                            f"--latent {latent}: out of range; the latents of {site} are 0 to {by_head.shape[1] - 1}"
                        )
        images.append((image, maps))
    return images


def _on_map(recording: Recording, site: str, name: str) -> Tensor:
    """Return the weights of each latent at the positions of the tokens, (B, H, M, rows, columns)."""
    if name == "latents_to_tokens":
        return recording.keys_on_map(site, name)
    if "latents_to_tokens" not in recording[site]:  # the queries of this layer are the tokens
        return recording.on_map(site, name).movedim(-1, 2)
    grid = recording.keys_on_map(site, "latents_to_tokens").shape[-2:]  # one layer computes both directions
    return recording[site][name].transpose(-2, -1).unflatten(-1, grid)


def _chosen(count: int, request: AnalysisRequest) -> list[int]:
    """Return the requested latents; by default, `_CHOSEN` of the `count` latents, evenly spaced."""
    if request.latents:
        return list(dict.fromkeys(request.latents))
    return sorted({int(index) for index in np.linspace(0, count - 1, min(_CHOSEN, count)).round()})


def _present(request: AnalysisRequest, models: Measured[list[_Image]]) -> Content:
    panels: list[Panel] = []
    for _, name, images in models:
        for image, directions in images:
            panels += [_by_layer(f"{name}: {each}", image, maps, request) for each, maps in directions.items()]
        if not request.latents:
            image, maps = images[0][0], _first(images[0][1])
            last = list(maps)[-1]
            panels += [_all_latents(f"{name}: all latents in {last}", image, *each) for each in maps[last].items()]
    return Content(
        note="Attention of the latents to the tokens, and attention of each token to the latents, shown on the image, "
        + ("by head" if request.heads else "mean over heads (--heads shows them separately)")
        + ". Light is much attention. "
        + (
            "The requested latents, through the layers. "
            if request.latents
            else f"{_CHOSEN} latents, evenly spaced by index, through the layers (--latent chooses others); and all latents "
            "of the last chosen layer on the first image. "
        )
        + "A map of tokens to latents has the share of each token's attention that the latent receives; the sequential "
        "model computes it in separate layers. "
        "Each picture has its own color scale, so small differences look large for a latent with near-uniform attention; "
        "the table has the shares.",
        panels=panels,
        table=table(
            ["model", "image", "layer", "head", "latent", "row", "column", "share", "direction"],
            [
                [name, image.name, *row, direction]
                for _, name, images in models
                for number, (image, directions) in enumerate(images)
                for direction, maps in directions.items()
                for row in _rows(
                    maps, request, every=number == 0 and not request.latents and maps is _first(directions)
                )
            ],
        ),
    )


def _first(directions: dict[str, _Maps]) -> _Maps:
    return next(iter(directions.values()))


def _by_layer(title: str, image: ShownImage, maps: _Maps, request: AnalysisRequest) -> Pictures:
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
            named = f"latent {latent}, head {head}" if request.heads else f"latent {latent}"
            rows.append(PictureRow(name=named, pictures=pictures))
    return Pictures(title=f"{title}, through the layers, {image.name}", rows=rows)


def _all_latents(title: str, image: ShownImage, head: str, maps: Tensor) -> Pictures:
    """Return a panel with the maps of all latents of a layer."""
    rows, under = [], backdrop(image.view)
    for start in range(0, len(maps), _PER_ROW):
        shown = maps[start : start + _PER_ROW]
        pictures = [Picture(image=under, values=map_values(each)) for each in shown]
        rows.append(PictureRow(name=f"latents {start} to {start + len(shown) - 1}", pictures=pictures))
    of_head = "" if head == "mean" else f", head {head}"
    return Pictures(title=f"{title}{of_head}, {image.name}", rows=rows)


def _rows(maps: _Maps, request: AnalysisRequest, *, every: bool) -> Iterator[list[Cell]]:
    """Yield the table rows of all shown maps; `every` adds all latents of the last layer."""
    for site, by_head in maps.items():
        count = len(next(iter(by_head.values())))
        for latent in range(count) if every and site == list(maps)[-1] else _chosen(count, request):
            for head, each in by_head.items():
                for row, column, share in cells(map_values(each[latent])):
                    yield [site, head, latent, row, column, share]


ANALYSIS = Analysis(
    name="latents",
    title="Attention of the latents",
    summary="maps of BiXT's latents on single images, in both directions, through the layers and side by side",
    source="BiXT, Figs. 1 and A1 to A3",
    run=by_model(_measure, _present),
    images="shown",
)
