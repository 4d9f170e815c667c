"""How spread the attention of each patch is, on the image, layer by layer (CB, Fig. 3b)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attngraft.analysis.ask import Analysis, Ask, by_subject
from attngraft.analysis.asked.layers import captions, table_of
from attngraft.analysis.asked.offers import without_maps
from attngraft.analysis.asked.showing import backdrop, numbers_of, png
from attngraft.errors import RecordError
from attngraft.recording.attention_maps import tokens_to_map
from attngraft.recording.measures import entropy, without_prefix
from attngraft.recording.record import record
from attngraft.recording.recording import Recording
from attngraft.results.analysis import Finding, Picture, Pictures, Row
from attngraft.results.sections import Cell
from attngraft.targets.handle import ModelHandle


@dataclass(frozen=True, kw_only=True)
class _Image:
    """The entropies of one model's attention on one image."""

    name: str
    pixels: str
    under: str  #: the same, to lie under maps
    maps: dict[str, Tensor]  #: site to (H, rows, columns), nats

    def shown(self, site: str, *, heads: bool) -> list[tuple[str, list[list[float]]]]:
        """Of each head, or their mean: what it is called, and the map."""
        maps = self.maps[site]
        if not heads:
            return [("mean", numbers_of(maps.mean(0)))]
        return [(str(head), numbers_of(each)) for head, each in enumerate(maps)]


@dataclass(frozen=True, kw_only=True)
class _Model:
    images: list[_Image]
    no_map: dict[str, str]  #: layers that have no map, or whose tokens have no places on the image, and why


def _model(ask: Ask, subject: ModelHandle) -> _Model:
    images: list[_Image] = []
    no_map: dict[str, str] = {}
    for name, view, inputs in ask.pictures(subject):
        with record(subject.model, "weights", sites=ask.sites) as recording:
            subject.model(inputs)
        maps: dict[str, Tensor] = {}
        for site in recording:
            try:
                maps[site] = _on_map(recording, site)
            except RecordError as error:
                no_map[site] = str(error)
        if not maps:
            raise RecordError(next(iter(no_map.values())))
        no_map.update(without_maps(recording, subject))
        images.append(_Image(name=name, pixels=png(view), under=backdrop(view), maps=maps))
    return _Model(images=images, no_map=no_map)


def _on_map(recording: Recording, site: str) -> Tensor:
    """(H, rows, columns) of the one image that was shown: entropies of rows among spatial tokens, windows in their places.

    Raises:
        RecordError: the host does not say where these tokens stand, or they are not as many as it says.
    """
    places, prefix = recording.token_indices(site), len(recording.prefix(site))
    weights = recording[site]["weights"].float()
    windows, _, queries, keys = weights.shape
    if queries != keys or (windows == 1 and queries != prefix + places.numel()):
        raise RecordError(
            f"{site!r} has maps of {queries} x {keys} tokens, and the image has {places.numel()} places there; each token "
            "must look at all others to be drawn at its own place"
        )
    rows = entropy(without_prefix(weights, prefix) if prefix else weights)  # (W, H, N), without the prefix
    tokens = torch.nn.functional.pad(rows, (prefix, 0)).transpose(1, 2)  # places count the prefix too
    return tokens_to_map(tokens, places.to(tokens.device))[0].movedim(2, 0).cpu()


def find(ask: Ask) -> Finding:
    found, left_out = by_subject(ask, lambda subject: _model(ask, subject))
    names = [subject.name for subject in ask.subjects]
    rows = [row for place, model in found.items() for row in _rows(names[place], model.images, heads=ask.heads)]
    every = [float(row[-1]) for row in rows if row[-1] is not None]
    return Finding(
        name=ANALYSIS.name,
        title=ANALYSIS.title,
        source=ANALYSIS.source,
        note="Over the image, at each patch the entropy -sum a ln a of its own row of the map, in nats, "
        + ("head by head" if ask.heads else "mean over heads (--heads shows them one by one)")
        + ": light looks at much alike, dark at little. Among patches: leading tokens are left out and rows sum to 1 again. "
        "All pictures have one scale of colors, from the least to the most that there is. Within windows a row has their "
        "tokens only, and can be no larger than ln of their number.",
        subjects=names,
        panels=[
            _panel(names[place], image, heads=ask.heads, low=min(every), high=max(every))
            for place, model in found.items()
            for image in model.images
        ],
        table=table_of(["model", "image", "layer", "head", "row", "column", "entropy"], 4, rows),
        left_out={
            **left_out,
            **{f"{names[place]}, {site}": why for place, model in found.items() for site, why in model.no_map.items()},
        },
    )


def _panel(name: str, image: _Image, *, heads: bool, low: float, high: float) -> Pictures:
    """The image, then its layers side by side; head by head a layer a row."""
    sites = list(image.maps)
    rows = [Row(name="image", pictures=[Picture(image=image.pixels)])]
    by_layer = [
        [
            Picture(image=image.under, values=values, caption=f"head {head}" if heads else caption)
            for head, values in image.shown(site, heads=heads)
        ]
        for site, caption in zip(sites, captions(sites), strict=True)
    ]
    if heads:
        rows += [Row(name=caption, pictures=maps) for caption, maps in zip(captions(sites), by_layer, strict=True)]
    else:
        rows.append(Row(name="entropy", pictures=[picture for maps in by_layer for picture in maps]))
    return Pictures(title=f"{name}: entropy by patch, {image.name}", rows=rows, low=low, high=high)


def _rows(name: str, images: Sequence[_Image], *, heads: bool) -> Iterator[list[Cell]]:
    for image in images:
        for site in image.maps:
            for head, values in image.shown(site, heads=heads):
                for row, line in enumerate(values):
                    for column, value in enumerate(line):
                        yield [name, image.name, site, head, row, column, value]


ANALYSIS = Analysis(
    name="entropy-maps",
    title="Where attention is spread",
    what="entropy of each patch's attention, drawn on single images, layer by layer",
    source="CB, Fig. 3b",
    find=find,
    images="shown",
)
