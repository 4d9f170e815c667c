"""Where latents look on the image, through the layers (BiXT, Figs. 1 and A1 to A3)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from attngraft.analysis.ask import Analysis, Ask, by_subject
from attngraft.analysis.asked.layers import captions, table_of
from attngraft.analysis.asked.offers import offered
from attngraft.analysis.asked.showing import backdrop, numbers_of, png
from attngraft.errors import RecordError
from attngraft.recording.record import record
from attngraft.results.analysis import Finding, Panel, Picture, Pictures, Row
from attngraft.results.sections import Cell
from attngraft.targets.handle import ModelHandle

_LOOKS = "latents_to_tokens"
_CHOSEN = 4  #: latents that are followed through the layers, where nobody names them
_WIDE = 8  #: of them in a row


@dataclass(frozen=True, kw_only=True)
class _Image:
    """Where the latents of one model look on one image."""

    name: str
    pixels: str
    under: str  #: the same, to lie under maps
    maps: dict[str, Tensor]  #: site to (H, M, rows, columns)

    def map(self, site: str, latent: int, head: int | None) -> list[list[float]]:
        """Of one head, or the mean of all."""
        of_latent = self.maps[site][:, latent]
        return numbers_of(of_latent.mean(0) if head is None else of_latent[head])


def _images(ask: Ask, subject: ModelHandle) -> list[_Image]:
    found: list[_Image] = []
    for name, view, inputs in ask.pictures(subject):
        if not found and not offered(subject, inputs, sites=ask.sites, called=(_LOOKS,)):
            raise RecordError("no chosen layer has latents that look at tokens; BiXT's cross-attention layers have")
        with record(subject.model, _LOOKS, sites=ask.sites) as recording:
            subject.model(inputs)
        on_image = {site: recording.keys_on_map(site, _LOOKS)[0].float().cpu() for site in recording}
        _refuse_unknown(ask.latents, on_image)
        found.append(_Image(name=name, pixels=png(view), under=backdrop(view), maps=on_image))
    return found


def _refuse_unknown(latents: Sequence[int], maps: Mapping[str, Tensor]) -> None:
    for site, each in maps.items():
        for latent in latents:
            if not 0 <= latent < each.shape[1]:
                raise RecordError(f"--latent {latent}: {site} has {each.shape[1]} latents, 0 to {each.shape[1] - 1}")


def _chosen(maps: Tensor, latents: Sequence[int]) -> list[int]:
    """Those that were named; else some, evenly."""
    if latents:
        return list(dict.fromkeys(latents))
    count = maps.shape[1]
    return sorted({int(place) for place in np.linspace(0, count - 1, min(_CHOSEN, count)).round()})


def _heads(maps: Tensor, *, apart: bool) -> list[int | None]:
    return list(range(len(maps))) if apart else [None]


def find(ask: Ask) -> Finding:
    found, left_out = by_subject(ask, lambda subject: _images(ask, subject))
    names = [subject.name for subject in ask.subjects]
    panels: list[Panel] = []
    for place, images in found.items():
        panels += [_through(names[place], image, latents=ask.latents, heads=ask.heads) for image in images]
        if not ask.latents:
            panels += [_all(names[place], images[0], head) for head in _heads_of_last(images[0], apart=ask.heads)]
    return Finding(
        name=ANALYSIS.name,
        title=ANALYSIS.title,
        source=ANALYSIS.source,
        note="Over the image, where latents look among its tokens, "
        + ("head by head" if ask.heads else "mean over heads (--heads shows them one by one)")
        + ": light is much. "
        + (
            "The latents that were named, through the layers. "
            if ask.latents
            else f"{_CHOSEN} latents, evenly chosen by their numbers, through the layers (--latent names others); and all "
            "latents of the last of the chosen layers on the first image. "
        )
        + "Each picture has its own scale of colors, so that a latent which looks everywhere alike shows small differences "
        "large: the table has the shares.",
        subjects=names,
        panels=panels,
        table=table_of(
            ["model", "image", "layer", "head", "latent", "row", "column", "share"],
            4,
            [row for place, images in found.items() for row in _rows(names[place], images, ask)],
        ),
        left_out=left_out,
    )


def _through(name: str, image: _Image, *, latents: Sequence[int], heads: bool) -> Pictures:
    """A latent (and head) a row, a layer a column."""
    sites = list(image.maps)
    first = image.maps[sites[0]]
    rows = [Row(name="image", pictures=[Picture(image=image.pixels)])]
    for latent in _chosen(first, latents):
        for head in _heads(first, apart=heads):
            maps = [
                Picture(image=image.under, values=image.map(site, latent, head), caption=caption)
                for site, caption in zip(sites, captions(sites), strict=True)
                if head is None or head < len(image.maps[site])
            ]
            title = f"latent {latent}" if head is None else f"latent {latent}, head {head}"
            rows.append(Row(name=title, pictures=maps))
    return Pictures(title=f"{name}: latents through the layers, {image.name}", rows=rows)


def _heads_of_last(image: _Image, *, apart: bool) -> list[int | None]:
    return _heads(list(image.maps.values())[-1], apart=apart)


def _all(name: str, image: _Image, head: int | None) -> Pictures:
    """Of the last layer."""
    site = list(image.maps)[-1]
    count = image.maps[site].shape[1]
    rows = []
    for start in range(0, count, _WIDE):
        stop = min(start + _WIDE, count)
        pictures = [Picture(image=image.under, values=image.map(site, each, head)) for each in range(start, stop)]
        rows.append(Row(name=f"latents {start} to {stop - 1}", pictures=pictures))
    of_head = "" if head is None else f", head {head}"
    return Pictures(title=f"{name}: all latents in {site}{of_head}, {image.name}", rows=rows)


def _rows(name: str, images: Sequence[_Image], ask: Ask) -> Iterator[list[Cell]]:
    """Of all maps that are shown."""
    for number, image in enumerate(images):
        for site, maps in image.maps.items():
            every = not ask.latents and number == 0 and site == list(image.maps)[-1]
            for latent in range(maps.shape[1]) if every else _chosen(maps, ask.latents):
                for head in _heads(maps, apart=ask.heads):
                    for row, line in enumerate(image.map(site, latent, head)):
                        for column, share in enumerate(line):
                            said = "mean" if head is None else str(head)
                            yield [name, image.name, site, said, latent, row, column, share]


ANALYSIS = Analysis(
    name="latents",
    title="Where latents look",
    what="maps of BiXT's latents on single images, through the layers and side by side",
    source="BiXT, Figs. 1 and A1 to A3",
    find=find,
    images="shown",
)
