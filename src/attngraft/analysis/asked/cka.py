"""How alike the layers of two models represent the same images (linear CKA)."""

from __future__ import annotations

import math

import torch

from attngraft.analysis.ask import Analysis, Ask
from attngraft.analysis.asked.layers import mean, table_of, ticks
from attngraft.analysis.similarity import CentredKernelAlignment
from attngraft.errors import UsageError
from attngraft.recording.record import record
from attngraft.results.analysis import Finding, Grid

_LEAST = 4  #: images that the unbiased estimate needs


def find(ask: Ask) -> Finding:
    first, second = ask.subjects[0], ask.subjects[-1]
    alignment, batches = CentredKernelAlignment(), 0
    with torch.no_grad():
        for ours, theirs in zip(ask.batches(first, least=_LEAST), ask.batches(second, least=_LEAST), strict=True):
            with (
                record(first.model, "mlp.end", sites=ask.sites) as a,
                record(second.model, "mlp.end", sites=ask.sites) as b,
            ):
                first.model(ours), second.model(theirs)
            alignment.add({site: a[site]["mlp.end"] for site in a}, {site: b[site]["mlp.end"] for site in b})
            batches += 1
    if not batches:
        raise UsageError(
            f"cka: {len(ask.images)} images, or --batch {ask.batch}, are too few; it needs {_LEAST} in a batch"
        )
    matrix = alignment.matrix().clamp(0, 1)
    cells = [[None if math.isnan(each) else each for each in row] for row in matrix.tolist()]
    along = mean(row[place] for place, row in enumerate(cells)) if matrix.shape[0] == matrix.shape[1] else None
    names = [subject.name for subject in ask.subjects]
    return Finding(
        name=ANALYSIS.name,
        title=ANALYSIS.title,
        source=ANALYSIS.source,
        note="Between what leaves the MLP of each layer (inside its residual branch) of both models, on the same "
        "images: 1 where they differ by a rotation and a scale. Unbiased estimate over batches, which may leave 0"
        " to 1 a little and is cut there. Two runs that differ by their seed alone say what unlike initial values"
        " make. Nothing stands where a layer is the same for all images.",
        subjects=names,
        panels=[
            Grid(
                title="CKA",
                rows=ticks(alignment.first),
                columns=ticks(alignment.second),
                row_axis=names[0],
                column_axis=names[-1],
                cells=cells,
                low=0.0,
                high=1.0,
            )
        ],
        table=table_of(
            [f"layer of {names[0]}", f"layer of {names[-1]}", "CKA"],
            2,
            [
                (ours, theirs, cells[row][column])
                for row, ours in enumerate(alignment.first)
                for column, theirs in enumerate(alignment.second)
            ],
        ),
        numbers={} if along is None else {"mean over layers of one depth": along},
    )


ANALYSIS = Analysis(
    name="cka",
    title="How alike layers represent images",
    what="CKA between the layers of two models, or of one with itself",
    source="Nguyen, Raghu and Kornblith 2021",
    find=find,
    models=(1, 2),
)
