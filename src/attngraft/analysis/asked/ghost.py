"""The static matrices of the ghost head, layer by layer (ELSA, Eq. 8)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attngraft.analysis.ask import Analysis, Ask, by_subject
from attngraft.analysis.asked.layers import captions, table_of
from attngraft.analysis.asked.offers import host_of, offered
from attngraft.analysis.asked.showing import numbers_of
from attngraft.attention import AttentionGeometry, Geometry
from attngraft.errors import RecordError
from attngraft.recording.record import record
from attngraft.results.analysis import Finding, Panel, Picture, Pictures, Row
from attngraft.results.sections import Cell
from attngraft.targets.handle import ModelHandle

_KINDS = {"ghost_mul": "multiplier", "ghost_add": "addend"}
_FEW = 10  #: channels of a layer that are shown beside their mean
_MOST = 64  #: with --heads
_WIDE = 16  #: of them in a row


@dataclass(frozen=True, kw_only=True)
class _Matrices:
    """Of one layer, by where the key lies as seen from the query: (channels or ghost heads, rows, columns)."""

    site: str
    kind: str
    of: str  #: what it has one of: a channel, or a ghost head
    values: Tensor


def _matrices(ask: Ask, subject: ModelHandle) -> list[_Matrices]:
    host = host_of(subject)
    geometries = {site.path: site.geometry for site in host.sites}
    like = next(subject.model.parameters())
    inputs = host.adapter.example_inputs(host.core, batch=1)[0].to(like)
    names = offered(subject, inputs, sites=ask.sites, called=tuple(_KINDS))
    if not names:
        raise RecordError("no chosen layer has a ghost head, which the grafts elsa and ghost give")
    with record(
        subject.model, sorted({name for each in names.values() for name in each}), sites=ask.sites
    ) as recording:
        subject.model(inputs)
    return [
        _Matrices(
            site=site,
            kind=_KINDS[name.rpartition(".")[2]],
            of="head" if name.startswith("ghost") else "channel",
            values=_by_offset(site, recording[site][name].float().cpu(), geometries[site]),
        )
        for site, each in names.items()
        for name in each
    ]


def _by_offset(site: str, values: Tensor, geometry: Geometry) -> Tensor:
    """Matrices of neighborhoods (channels, k, k) as they are; those of whole grids (H, N, N), which repeat the same numbers
    for every query, as (H, 2 rows - 1, 2 columns - 1)."""
    if not bool(values.isfinite().all()):
        raise RecordError(f"{site}: some numbers of its ghost head are NaN or infinite: the model did not train well")
    window = geometry.window if isinstance(geometry, AttentionGeometry) else None
    rows, columns = window or geometry.grid or (0, 0)
    if values.shape[1] != rows * columns:
        return values
    row, column = torch.arange(rows).repeat_interleave(columns), torch.arange(columns).repeat(rows)
    down, right = row[None] - row[:, None] + rows - 1, column[None] - column[:, None] + columns - 1
    table = values.new_zeros(len(values), 2 * rows - 1, 2 * columns - 1)
    table[:, down, right] = values
    return table if torch.equal(table[:, down, right], values) else values  # a neighborhood of as many rows


def find(ask: Ask) -> Finding:
    found, left_out = by_subject(ask, lambda subject: _matrices(ask, subject))
    names = [subject.name for subject in ask.subjects]
    panels: list[Panel] = []
    for place, each in found.items():
        panels += _all_channels(names[place], each) if ask.heads else _by_layer(names[place], each)
    return Finding(
        name=ANALYSIS.name,
        title=ANALYSIS.title,
        source=ANALYSIS.source,
        note="What multiplies attention (raised to lam) and what is added to it (times gamma), for each channel of elsa's "
        "values or each ghost head of the graft ghost, by where the neighbor lies as seen from the place in the middle. "
        "These are the same for every image. Red is above 0, blue below; each picture has its own scale of colors. "
        + (f"At most {_MOST} channels of a layer, evenly chosen. " if ask.heads else "")
        + "The table has the mean and the deviation over channels, of all offsets and of each. The multiplier starts as a "
        "normal of deviation 1, the addend of 0.02 (identity: 1 and 0).",
        subjects=names,
        panels=panels,
        table=table_of(
            ["model", "layer", "matrix", "down", "right", "mean", "deviation", "least", "largest"],
            3,
            [row for place, each in found.items() for row in _rows(names[place], each)],
        ),
        numbers={
            f"{names[place]}, {each.site}: deviation of the {each.kind}": float(each.values.std(correction=0))
            for place, layers in found.items()
            for each in layers
        },
        left_out=left_out,
    )


def _by_layer(name: str, layers: Sequence[_Matrices]) -> Iterator[Pictures]:
    """A panel for each kind: a layer a row, its mean over channels and then some of them."""
    for kind, of_kind in _by_kind(layers).items():
        names = captions([each.site for each in of_kind])
        rows = [
            Row(
                name=name_of_layer,
                pictures=[Picture(values=numbers_of(each.values.mean(0)), caption="mean"), *_channels(each, _FEW)],
            )
            for each, name_of_layer in zip(of_kind, names, strict=True)
        ]
        yield Pictures(title=f"{name}: {kind}", rows=rows, diverging=True)


def _all_channels(name: str, layers: Sequence[_Matrices]) -> Iterator[Pictures]:
    """A panel for each layer."""
    for each in layers:
        pictures = _channels(each, _MOST)
        rows = [Row(name="", pictures=pictures[start : start + _WIDE]) for start in range(0, len(pictures), _WIDE)]
        yield Pictures(title=f"{name}: {each.kind} of {each.site}", rows=rows, diverging=True)


def _by_kind(layers: Sequence[_Matrices]) -> Mapping[str, list[_Matrices]]:
    found: dict[str, list[_Matrices]] = {}
    for each in layers:
        found.setdefault(each.kind, []).append(each)
    return found


def _channels(layer: _Matrices, most: int) -> list[Picture]:
    count = len(layer.values)
    chosen = sorted({int(place) for place in np.linspace(0, count - 1, min(most, count)).round()})
    return [Picture(values=numbers_of(layer.values[place]), caption=f"{layer.of} {place}") for place in chosen]


def _rows(name: str, layers: Sequence[_Matrices]) -> Iterator[list[Cell]]:
    """Of all offsets first, then of each."""
    for each in layers:
        yield [name, each.site, each.kind, None, None, *_spread(each.values)]
    for each in layers:
        height, width = each.values.shape[1:]
        for down in range(height):
            for right in range(width):
                place = down - height // 2, right - width // 2
                yield [name, each.site, each.kind, *place, *_spread(each.values[:, down, right])]


def _spread(values: Tensor) -> tuple[float, float, float, float]:
    return float(values.mean()), float(values.std(correction=0)), float(values.min()), float(values.max())


ANALYSIS = Analysis(
    name="ghost",
    title="What the ghost head learned",
    what="multiplier and addend of the ghost head (elsa, ghost), layer by layer",
    source="ELSA, Eq. 8",
    find=find,
    images="none",
)
