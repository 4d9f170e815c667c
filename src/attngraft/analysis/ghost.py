"""Learned static matrices of the ghost head, layer by layer (ELSA, Eq. 8)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from attngraft.analysis.layers import captions
from attngraft.analysis.panels import check_finite, map_values, table
from attngraft.analysis.request import Analysis, AnalysisRequest, Content, Measured, by_model
from attngraft.analysis.tensors import find_tensors, host_of, recorded
from attngraft.attention import AttentionGeometry, Geometry
from attngraft.results.analysis import Panel, Picture, PictureRow, Pictures
from attngraft.results.sections import Cell
from attngraft.targets.handle import ModelHandle

_KINDS = {"ghost_mul": "multiplier", "ghost_add": "addend"}
_FEW = 10  #: number of channels of a layer to show, in addition to the mean
_MOST = 64  #: number of channels of a layer to show with --heads
_PER_ROW = 16


@dataclass(frozen=True, kw_only=True)
class _Matrices:
    """Matrices of one layer, indexed by the key's offset from the query."""

    site: str
    kind: str
    unit: str  #: "channel" or "head"
    values: Tensor  #: (channels or ghost heads, rows, columns)

    def pictures(self, most: int) -> list[Picture]:
        """Return pictures of at most `most` matrices, evenly spaced by index."""
        count = len(self.values)
        chosen = sorted({int(index) for index in np.linspace(0, count - 1, min(most, count)).round()})
        return [Picture(values=map_values(self.values[index]), caption=f"{self.unit} {index}") for index in chosen]


def _measure(request: AnalysisRequest, model: ModelHandle, left_out: dict[str, str]) -> list[_Matrices]:
    host = host_of(model)
    geometries = {site.path: site.geometry for site in host.sites}
    inputs = host.adapter.example_inputs(host.core, batch=1)[0].to(next(model.model.parameters()))
    missing = "no chosen layer has a ghost head; the grafts elsa and ghost add one"
    tensors = find_tensors(request, model, _KINDS, missing=missing, inputs=inputs)
    recording = recorded(model, inputs, {name for names in tensors.values() for name in names}, sites=request.sites)
    return [
        _Matrices(
            site=site,
            kind=_KINDS[name.rpartition(".")[2]],
            unit="head" if name.startswith("ghost") else "channel",
            values=_by_offset(site, recording[site][name].float().cpu(), geometries[site]),
        )
        for site, names in tensors.items()
        for name in names
    ]


def _by_offset(site: str, values: Tensor, geometry: Geometry) -> Tensor:
    """Return matrices indexed by the key's offset from the query.

    Matrices over neighborhoods (channels, k, k) are returned unchanged. Matrices over whole grids (H, N, N) depend only on
    the offset and are returned as (H, 2 rows - 1, 2 columns - 1).
    """
    check_finite(values, f"the ghost head of {site} contains")
    window = geometry.window if isinstance(geometry, AttentionGeometry) else None
    rows, columns = window or geometry.grid or (0, 0)
    if values.shape[1] != rows * columns:
        return values
    row, column = torch.arange(rows).repeat_interleave(columns), torch.arange(columns).repeat(rows)
    down, right = row[None] - row[:, None] + rows - 1, column[None] - column[:, None] + columns - 1
    by_offset = values.new_zeros(len(values), 2 * rows - 1, 2 * columns - 1)
    by_offset[:, down, right] = values
    return by_offset if torch.equal(by_offset[:, down, right], values) else values  # else: a neighborhood with k = N


def _present(request: AnalysisRequest, models: Measured[list[_Matrices]]) -> Content:
    panels = _by_channel if request.heads else _by_layer
    return Content(
        note="Factors of the attention (raised to lam) and terms added to it (times gamma), for each channel of elsa's "
        "values or each ghost head of the graft ghost, by the offset of the neighbor from the central position. They "
        "are the same for every image. Red is above 0, blue below; each picture has its own color scale. "
        + (f"At most {_MOST} channels of a layer, evenly spaced. " if request.heads else "")
        + "The table has the mean and standard deviation over channels, over all offsets and for each. The multiplier is "
        "initialized from a normal distribution with standard deviation 1, the addend with 0.02 (identity: 1 and 0).",
        panels=[panel for _, name, layers in models for panel in panels(name, layers)],
        table=table(
            ["model", "layer", "matrix", "down", "right", "mean", "deviation", "least", "largest"],
            [row for _, name, layers in models for row in _rows(name, layers)],
        ),
        numbers={
            f"{name}, {each.site}: deviation of the {each.kind}": float(each.values.std(correction=0))
            for _, name, layers in models
            for each in layers
        },
    )


def _by_layer(name: str, layers: Sequence[_Matrices]) -> Iterator[Panel]:
    """Yield one panel per kind of matrix; each row is a layer: mean over channels, then some channels."""
    for kind in dict.fromkeys(each.kind for each in layers):
        of_kind = [each for each in layers if each.kind == kind]
        rows = []
        for each, caption in zip(of_kind, captions([each.site for each in of_kind]), strict=True):
            mean = Picture(values=map_values(each.values.mean(0)), caption="mean")
            rows.append(PictureRow(name=caption, pictures=[mean, *each.pictures(_FEW)]))
        yield Pictures(title=f"{name}: {kind}", rows=rows, diverging=True)


def _by_channel(name: str, layers: Sequence[_Matrices]) -> Iterator[Panel]:
    """Yield one panel of channels per layer and kind of matrix."""
    for each in layers:
        pictures = each.pictures(_MOST)
        rows = [
            PictureRow(name="", pictures=pictures[start : start + _PER_ROW])
            for start in range(0, len(pictures), _PER_ROW)
        ]
        yield Pictures(title=f"{name}: {each.kind} of {each.site}", rows=rows, diverging=True)


def _rows(name: str, layers: Sequence[_Matrices]) -> Iterator[list[Cell]]:
    """Yield table rows with the statistics of each layer over all offsets, then at each offset."""
    for each in layers:
        yield [name, each.site, each.kind, None, None, *_statistics(each.values)]
    for each in layers:
        height, width = each.values.shape[1:]
        for row, column in np.ndindex(height, width):
            offset = row - height // 2, column - width // 2
            yield [name, each.site, each.kind, *offset, *_statistics(each.values[:, row, column])]


def _statistics(values: Tensor) -> tuple[float, float, float, float]:
    return float(values.mean()), float(values.std(correction=0)), float(values.min()), float(values.max())


ANALYSIS = Analysis(
    name="ghost",
    title="Matrices of the ghost head",
    summary="multiplier and addend of the ghost head (elsa, ghost), layer by layer",
    source="ELSA, Eq. 8",
    run=by_model(_measure, _present),
    images="none",
)
