"""The filters that places make for their neighborhoods, at some places of the map (ELSA)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from attngraft.analysis.ask import Analysis, Ask, by_subject
from attngraft.analysis.asked.layers import captions, table_of
from attngraft.analysis.asked.offers import offered
from attngraft.analysis.asked.showing import marked, numbers_of
from attngraft.errors import RecordError
from attngraft.recording.record import record
from attngraft.recording.recording import FILTER_NDIM
from attngraft.results.analysis import Finding, Picture, Pictures, Row
from attngraft.results.sections import Cell
from attngraft.targets.handle import ModelHandle

_NAME = "local_filters"

Places = Sequence[tuple[float, float]]  #: (row, column) in parts of the map's sides

#: where nobody names places: the middle, then row by row
PLACES: Places = ((1 / 2, 1 / 2), *((y / 6, x / 6) for y in (1, 3, 5) for x in (1, 3, 5) if (y, x) != (3, 3)))


@dataclass(frozen=True, kw_only=True)
class _Filters:
    """Of one layer at some places, on one image."""

    at: list[tuple[int, int]]  #: row and column on the layer's map
    values: Tensor  #: (places, H, k, k)
    own: float  #: what a place gives to itself, mean over the whole map and heads

    def shown(self, *, heads: bool) -> list[tuple[str, Tensor]]:
        """Of each head, or their mean: what it is called, and (places, k, k)."""
        if not heads:
            return [("mean", self.values.mean(1))]
        return [(str(head), self.values[:, head]) for head in range(self.values.shape[1])]


@dataclass(frozen=True, kw_only=True)
class _Image:
    """The filters of one model on one image."""

    name: str
    pixels: str  #: with the places marked
    layers: dict[str, _Filters] = field(default_factory=dict)


def _images(ask: Ask, subject: ModelHandle) -> list[_Image]:
    found: list[_Image] = []
    names: dict[str, str] = {}
    for image, view, inputs in ask.pictures(subject):
        names = names or _named(subject, inputs, ask.sites)
        with record(subject.model, sorted(set(names.values())), sites=ask.sites) as recording:
            subject.model(inputs)
        filters = {
            site: recording[site][name][0].float().cpu()
            for site, name in names.items()
            if recording[site][name].ndim == FILTER_NDIM
        }
        if not filters:
            raise RecordError("its filters are the same at every place of an image; those of elsa differ")
        places = _places(ask.at, filters)
        layers = {site: _at_places(each, places) for site, each in filters.items()}
        found.append(_Image(name=image, pixels=marked(view, places), layers=layers))
    return found


def _named(subject: ModelHandle, inputs: Tensor, sites: str) -> dict[str, str]:
    """Site to the name of its filters."""
    found = offered(subject, inputs, sites=sites, called=(_NAME,))
    if not found:
        raise RecordError("no chosen layer makes filters for neighborhoods; elsa, lsa(area=neighborhood) and others do")
    return {site: names[0] for site, names in found.items()}


def _places(at: Sequence[tuple[int, int]], filters: Mapping[str, Tensor]) -> Places:
    """The middles of places that were named on the map of the first layer; else `PLACES`."""
    if not at:
        return PLACES
    site, first = next(iter(filters.items()))
    rows, columns = first.shape[2:]
    for row, column in at:
        if not (0 <= row < rows and 0 <= column < columns):
            raise RecordError(
                f"--at {row},{column}: the map of {site} is {rows} x {columns}: rows go from 0 to {rows - 1}, columns from "
                f"0 to {columns - 1}"
            )
    return [((row + 0.5) / rows, (column + 0.5) / columns) for row, column in dict.fromkeys(at)]


def _at_places(filters: Tensor, places: Places) -> _Filters:
    """From (H, K, rows, columns)."""
    rows, columns = filters.shape[2:]
    at = [(int(y * rows), int(x * columns)) for y, x in places]
    side = math.isqrt(filters.shape[1])
    chosen = [filters[:, :, row, column].unflatten(1, (side, side)) for row, column in at]
    own = float(filters[:, filters.shape[1] // 2].mean())
    values = filters.new_empty(len(at), len(filters), side, side)
    for place, each in enumerate(chosen):
        values[place] = each
    return _Filters(at=at, values=values, own=own)


def find(ask: Ask) -> Finding:
    found, left_out = by_subject(ask, lambda subject: _images(ask, subject))
    names = [subject.name for subject in ask.subjects]
    return Finding(
        name=ANALYSIS.name,
        title=ANALYSIS.title,
        source=ANALYSIS.source,
        note=(
            "At the places that were named, on the map of the first layer with filters,"
            if ask.at
            else f"At {len(PLACES)} places, the middle first (--at names others),"
        )
        + " what each gives to its neighborhood of k x k, itself in the "
        + ("middle; head by head" if ask.heads else "mean over heads (--heads shows them one by one)")
        + ". With ELSA after the softmax and before the ghost head. Each picture has its own scale of colors, light is "
        "much: the table has the weights. Weights for neighbors beyond the map's border count in the softmax and are "
        "shown. A place of the image is another one on each layer's map, the one that its mark falls on.",
        subjects=names,
        panels=[_panel(names[place], image, heads=ask.heads) for place, images in found.items() for image in images],
        table=table_of(
            ["model", "image", "layer", "head", "row", "column", "down", "right", "weight"],
            4,
            [row for place, images in found.items() for row in _rows(names[place], images, heads=ask.heads)],
        ),
        numbers={
            f"{names[place]}, {site}: mean weight of the place itself": sum(image.layers[site].own for image in images)
            / len(images)
            for place, images in found.items()
            for site in images[0].layers
        },
        left_out=left_out,
    )


def _panel(name: str, image: _Image, *, heads: bool) -> Pictures:
    """The image with its places, then a layer (and head) a row, a place a column."""
    sites = list(image.layers)
    rows = [Row(name="places", pictures=[Picture(image=image.pixels)])]
    signed = False
    for site, caption in zip(sites, captions(sites), strict=True):
        for head, filters in image.layers[site].shown(heads=heads):
            signed = signed or bool((filters < 0).any())
            pictures = [
                Picture(values=numbers_of(each), caption=str(number)) for number, each in enumerate(filters, start=1)
            ]
            rows.append(Row(name=f"{caption}, head {head}" if heads else caption, pictures=pictures))
    return Pictures(title=f"{name}: filters on {image.name}", rows=rows, diverging=signed)


def _rows(name: str, images: Sequence[_Image], *, heads: bool) -> Iterator[list[Cell]]:
    for image in images:
        for site, each in image.layers.items():
            for head, filters in each.shown(heads=heads):
                for (row, column), values in zip(each.at, filters, strict=True):
                    reach = len(values) // 2
                    for down, line in enumerate(numbers_of(values)):
                        for right, weight in enumerate(line):
                            yield [name, image.name, site, head, row, column, down - reach, right - reach, weight]


ANALYSIS = Analysis(
    name="filters",
    title="What filters places make",
    what="local filters of elsa and its family at some places of single images",
    source="ELSA, Eq. 7",
    find=find,
    images="shown",
)
