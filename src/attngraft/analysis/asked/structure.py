"""How alike the maps of two models' first attention layer look, and how sharp they are (BiSA, Figs. 4 to 7)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from attngraft.analysis.ask import Analysis, Ask
from attngraft.analysis.asked.boundary_maps import RADIUS, LabelMaps
from attngraft.analysis.asked.layers import table_of
from attngraft.analysis.asked.offers import features, offered
from attngraft.analysis.asked.showing import numbers_of, png
from attngraft.analysis.structure import gradient, pictures, sharpness, structural_similarity
from attngraft.errors import RecordError
from attngraft.recording.record import record
from attngraft.results.analysis import Finding, Panel, Picture, Pictures, Row
from attngraft.results.sections import Cell
from attngraft.targets.handle import ModelHandle

_STAGE = "attn.end"


#: of one image: by component, the mean dissimilarity, and the numbers of `_sharpness` of both models
_Numbers = Mapping[str, tuple[float, tuple[list[float | None], list[float | None]]]]

_COMPONENTS = {"common": "of both maps together", "own": "of each map by itself"}


@dataclass(frozen=True, kw_only=True)
class _Compared:
    """Pictures of some images (B, rows, columns) from 0 to 1, and for each model and image the numbers of `_sharpness`."""

    ours: Tensor
    theirs: Tensor
    unlike: Tensor
    sharp: tuple[list[list[float | None]], list[list[float | None]]]


def find(ask: Ask) -> Finding:
    with torch.no_grad():
        sites = _sites(ask, *ask.subjects)
        labels = None if ask.label_maps is None else LabelMaps(ask.label_maps, ask.images)
        panels = _shown(ask, sites, labels)
        rows = [row for batch in _measured(ask, sites, labels) for row in batch]
    lines = "edges" if labels is None else "boundaries"
    names = [subject.name for subject in ask.subjects]
    images = [ask.images.names[place] for place in ask.images.sample(ask.limit)]
    table: list[list[Cell]] = [
        [name, sites[place], image, component, row[component][0], *row[component][1][place]]
        for component in _COMPONENTS
        for place, name in enumerate(names)
        for image, row in zip(images, rows, strict=True)
    ]
    return Finding(
        name=ANALYSIS.name,
        title=ANALYSIS.title,
        source=ANALYSIS.source,
        note="Maps that leave the first attention layer, inside its residual branch, each as its first principal component. "
        "How the paper makes one picture of all channels it does not say. Ours is the component of both maps together, from "
        "0 to 1 per image over both; where models were trained apart, their channels are not the same ones and the map with "
        "the smaller numbers may look flat. So it is beside that of each map by itself, from 0 to 1 by itself. Signs are "
        "those of the channels' mean. Dissimilarity is (1 - SSIM) / 2 with a Gaussian window (sigma 1.5, 11 x 11 places): 0 "
        "alike, 0.5 unrelated, 1 opposite. Sharpness is the mean length of a picture's gradient. "
        + (
            "Edges are the image's own, at the size of the map, the strongest 1: they are no boundaries of objects, for "
            "which --label-maps names labels."
            if labels is None
            else f"Boundaries are those of {ask.label_maps}: pixels of the model's input with another label at most "
            f"{RADIUS} pixels away, and how much of each place of the map they are. What the paper takes for "
            "boundaries it does not say."
        ),
        subjects=names,
        panels=panels,
        table=table_of(["model", "layer", "image", "component", "dissimilarity", *_sharpness(lines)], 4, table),
        numbers=_means(names, rows, lines),
    )


def _sharpness(lines: str) -> tuple[str, str, str]:
    """What the numbers of `sharpness` are called, beside edges or boundaries."""
    return "sharpness", f"at {lines} over elsewhere", f"correlation with {lines}"


def _means(names: Sequence[str], rows: Sequence[_Numbers], lines: str) -> dict[str, float]:
    """Over images."""
    found = {}
    for component, said in _COMPONENTS.items():
        unlike = [row[component][0] for row in rows]
        found[f"{said}: dissimilarity"] = sum(unlike) / len(unlike)
        for place, name in enumerate(names):
            for column, what in enumerate(_sharpness(lines)):
                values = [value for row in rows if (value := row[component][1][place][column]) is not None]
                if values:
                    found[f"{said}: {what}, {name}"] = sum(values) / len(values)
    return found


def _sites(ask: Ask, first: ModelHandle, second: ModelHandle) -> tuple[str, str]:
    """The first attention layer on the map that both have by one name; where they share none, the first of each."""
    ours, theirs = (_on_map(ask, subject) for subject in (first, second))
    common = next((site for site in ours if site in theirs), None)
    pair = (common, common) if common is not None else (next(iter(ours)), next(iter(theirs)))
    shapes = ours[pair[0]], theirs[pair[1]]
    if shapes[0] != shapes[1]:
        said = [f"{rows} x {columns} x {channels}" for rows, columns, channels in shapes]
        raise RecordError(
            f"{first.name} has a map of {said[0]} at {pair[0]}, {second.name} one of {said[1]} at {pair[1]}, and these "
            "cannot be compared place by place; name a layer where both have maps of one shape with --sites"
        )
    return pair


def _on_map(ask: Ask, subject: ModelHandle) -> Mapping[str, tuple[int, ...]]:
    """Attention layers whose output is a map, with its shape, in the order in which they run."""
    _, _, inputs = next(ask.pictures(subject))
    reasons = ["none offers an output"]
    found: dict[str, tuple[int, ...]] = {}
    if offered(subject, inputs, sites=ask.sites, called=(_STAGE,)):
        with record(subject.model, _STAGE, sites=ask.sites) as recording:
            subject.model(inputs)
        reasons = []
        for site in recording:
            try:
                found[site] = tuple(features(recording, site, _STAGE).shape[1:])
            except RecordError as error:
                reasons.append(str(error))
    if not found:
        raise RecordError(f"{subject.name}: no chosen attention layer has a map of the image: {reasons[0]}")
    return found


def _maps(subject: ModelHandle, site: str, inputs: Tensor) -> Tensor:
    with record(subject.model, _STAGE, sites=site) as recording:
        subject.model(inputs)
    return features(recording, site, _STAGE).float().cpu()


def _edges(inputs: Tensor, like: Tensor) -> Tensor:
    """Of images (B, C, H, W), at the size of maps (B, rows, columns, C), the strongest 1."""
    steep = gradient(adaptive_avg_pool2d(inputs.float().cpu().mean(1), (like.shape[1], like.shape[2])))
    return steep / steep.amax((1, 2), keepdim=True).clamp_min(torch.finfo(steep.dtype).tiny)


def _compared(ours: Tensor, theirs: Tensor, edges: Tensor) -> dict[str, _Compared]:
    """By component."""
    if not bool(ours.isfinite().all() and theirs.isfinite().all()):
        raise RecordError("some numbers of a map are NaN or infinite: the model did not train well, or overflows")
    of_each = pictures(ours, ours).first, pictures(theirs, theirs).first
    found = {}
    for component, (first, second) in {"common": pictures(ours, theirs), "own": of_each}.items():
        ours_sharp, theirs_sharp = (
            [_finite(values) for values in torch.stack(sharpness(each, edges), 1).tolist()] for each in (first, second)
        )
        found[component] = _Compared(
            ours=first,
            theirs=second,
            unlike=(1 - structural_similarity(first, second)) / 2,
            sharp=(ours_sharp, theirs_sharp),
        )
    return found


def _finite(values: Sequence[float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in values]


def _lines(ask: Ask, labels: LabelMaps | None, places: Sequence[int], inputs: Tensor, like: Tensor) -> Tensor:
    """What sharpness is compared with: the boundaries of label maps, where there are; else the images' own edges."""
    if labels is None:
        return _edges(inputs, like)
    return labels.boundaries(places, ask.subjects[0], (like.shape[1], like.shape[2]))


def _measured(ask: Ask, sites: tuple[str, str], labels: LabelMaps | None) -> Iterator[list[_Numbers]]:
    first, second = ask.subjects
    places = iter(ask.images.sample(ask.limit))
    for ours, theirs in zip(ask.batches(first), ask.batches(second), strict=True):
        maps = _maps(first, sites[0], ours), _maps(second, sites[1], theirs)
        found = _compared(*maps, _lines(ask, labels, list(islice(places, len(ours))), ours, maps[0]))
        unlike = {component: each.unlike.mean((1, 2)).tolist() for component, each in found.items()}
        yield [
            {
                component: (unlike[component][image], (each.sharp[0][image], each.sharp[1][image]))
                for component, each in found.items()
            }
            for image in range(len(ours))
        ]


def _shown(ask: Ask, sites: tuple[str, str], labels: LabelMaps | None) -> list[Panel]:
    first, second = ask.subjects
    rows: dict[str, list[Row]] = {component: [] for component in _COMPONENTS}
    what = "its edges" if labels is None else "boundaries of its labels"
    pairs = zip(ask.images.sample(ask.shown), ask.pictures(first), ask.pictures(second), strict=True)
    for place, (name, view, ours), (_, _, theirs) in pairs:
        maps = _maps(first, sites[0], ours), _maps(second, sites[1], theirs)
        edges = _lines(ask, labels, [place], ours, maps[0])
        for component, found in _compared(*maps, edges).items():
            pair = [
                Picture(values=numbers_of(found.ours[0]), caption=first.name),
                Picture(values=numbers_of(found.theirs[0]), caption=second.name),
                Picture(values=numbers_of(found.unlike[0]), caption="dissimilarity"),
            ]
            image = Picture(image=png(view), caption="image")
            rows[component].append(
                Row(name=name, pictures=[image, Picture(values=numbers_of(edges[0]), caption=what), *pair])
            )
    where = sites[0] if sites[0] == sites[1] else f"{sites[0]} and {sites[1]}"
    return [
        Pictures(title=f"first component {said}, {where}", rows=rows[component], low=0.0, high=1.0)
        for component, said in _COMPONENTS.items()
    ]


ANALYSIS = Analysis(
    name="structure",
    title="How alike two models' maps look",
    what="first principal component, structural dissimilarity and sharpness of two models' maps",
    source="BiSA, Figs. 4 to 7",
    find=find,
    models=(2, 2),
)
