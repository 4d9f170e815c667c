"""Attention of the latents to positions of the image, layer by layer (BiXT, Figs. 1 and A1 to A3)."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from attngraft.analysis.layers import captions
from attngraft.analysis.panels import Values, backdrop, cells, map_values, png, table
from attngraft.analysis.request import Analysis, AnalysisRequest, find_tensors, measure_models, recorded
from attngraft.errors import RecordError
from attngraft.results.analysis import AnalysisResult, Picture, PictureRow, Pictures
from attngraft.results.sections import Cell
from attngraft.targets.handle import ModelHandle

_ATTENTION = "latents_to_tokens"
_CHOSEN = 4  #: number of latents shown layer by layer by default
_PER_ROW = 8


@dataclass(frozen=True, kw_only=True)
class _Image:
    """Attention of the latents of one model on one image."""

    name: str
    pixels: str
    backdrop: str
    maps: dict[str, Tensor]  #: site -> maps (H, M, rows, columns)

    @property
    def last(self) -> str:
        return list(self.maps)[-1]

    def map(self, site: str, latent: int, head: int | None) -> Values:
        """Return the map of one head, or the mean over all heads."""
        of_latent = self.maps[site][:, latent]
        return map_values(of_latent.mean(0) if head is None else of_latent[head])


def _measure(request: AnalysisRequest, model: ModelHandle, left_out: dict[str, str]) -> list[_Image]:
    images: list[_Image] = []
    for name, view, inputs in request.pictures(model):
        if not images and not find_tensors(model, inputs, (_ATTENTION,), sites=request.sites):
            raise RecordError("no chosen layer has latents that attend to tokens; choose BiXT's cross-attention layers")
        recording = recorded(model, inputs, _ATTENTION, sites=request.sites)
        maps = {site: recording.keys_on_map(site, _ATTENTION)[0].float().cpu() for site in recording}
        for site, each in maps.items():
            for latent in request.latents:
                if not 0 <= latent < each.shape[1]:
                    raise RecordError(
                        f"--latent {latent}: out of range; the latents of {site} are 0 to {each.shape[1] - 1}"
                    )
        images.append(_Image(name=name, pixels=png(view), backdrop=backdrop(view), maps=maps))
    return images


def _chosen(maps: Tensor, request: AnalysisRequest) -> list[int]:
    """Return the requested latents; by default `_CHOSEN` of them, evenly spaced."""
    if request.latents:
        return list(dict.fromkeys(request.latents))
    count = maps.shape[1]
    return sorted({int(index) for index in np.linspace(0, count - 1, min(_CHOSEN, count)).round()})


def _heads(maps: Tensor, request: AnalysisRequest) -> list[int | None]:
    return list(range(len(maps))) if request.heads else [None]


def run(request: AnalysisRequest) -> AnalysisResult:
    models, left_out = measure_models(request, _measure)
    panels: list[Pictures] = []
    for _, name, images in models:
        panels += [_by_layer(name, image, request) for image in images]
        if not request.latents:
            heads = _heads(images[0].maps[images[0].last], request)
            panels += [_all_of_last(name, images[0], head) for head in heads]
    return ANALYSIS.result(
        request,
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
            4,
            [row for _, name, images in models for image in images for row in _rows(name, image, images[0], request)],
        ),
        left_out=left_out,
    )


def _by_layer(name: str, image: _Image, request: AnalysisRequest) -> Pictures:
    """Return a panel with one row per latent (and head) and one column per layer."""
    sites = list(image.maps)
    first = image.maps[sites[0]]
    rows = [PictureRow(name="image", pictures=[Picture(image=image.pixels)])]
    for latent in _chosen(first, request):
        for head in _heads(first, request):
            maps = [
                Picture(image=image.backdrop, values=image.map(site, latent, head), caption=caption)
                for site, caption in zip(sites, captions(sites), strict=True)
                if head is None or head < len(image.maps[site])
            ]
            title = f"latent {latent}" if head is None else f"latent {latent}, head {head}"
            rows.append(PictureRow(name=title, pictures=maps))
    return Pictures(title=f"{name}: latents through the layers, {image.name}", rows=rows)


def _all_of_last(name: str, image: _Image, head: int | None) -> Pictures:
    """Return a panel with all latents of the last layer."""
    count = image.maps[image.last].shape[1]
    rows = []
    for start in range(0, count, _PER_ROW):
        latents = range(start, min(start + _PER_ROW, count))
        pictures = [Picture(image=image.backdrop, values=image.map(image.last, latent, head)) for latent in latents]
        rows.append(PictureRow(name=f"latents {latents[0]} to {latents[-1]}", pictures=pictures))
    of_head = "" if head is None else f", head {head}"
    return Pictures(title=f"{name}: all latents in {image.last}{of_head}, {image.name}", rows=rows)


def _rows(name: str, image: _Image, first: _Image, request: AnalysisRequest) -> Iterator[list[Cell]]:
    """Yield table rows of all maps that are shown."""
    for site, maps in image.maps.items():
        every = not request.latents and image is first and site == image.last
        for latent in range(maps.shape[1]) if every else _chosen(maps, request):
            for head in _heads(maps, request):
                for row, column, share in cells(image.map(site, latent, head)):
                    yield [name, image.name, site, "mean" if head is None else str(head), latent, row, column, share]


ANALYSIS = Analysis(
    name="latents",
    title="Attention of the latents",
    summary="maps of BiXT's latents on single images, through the layers and side by side",
    source="BiXT, Figs. 1 and A1 to A3",
    run=run,
    images="shown",
)
