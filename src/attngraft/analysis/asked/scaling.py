"""What CB_S learned: its scale, layer by layer (CB, Fig. 6)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch import Tensor

from attngraft.analysis.ask import Analysis, Ask, by_subject
from attngraft.analysis.asked.layers import Layers, table_of
from attngraft.errors import RecordError
from attngraft.grafting.apply import grafted
from attngraft.hosts import find_host
from attngraft.recording.measures import ScaleStatistics, scale_statistics
from attngraft.results.analysis import Curves, Finding
from attngraft.targets.handle import ModelHandle


def _scales(ask: Ask, subject: ModelHandle) -> dict[str, ScaleStatistics]:
    """By site; where one has several, by site and instance."""
    scales = list(_learned(subject))
    if not scales:
        raise RecordError("it has no cb_s: graft cb_s, whose scale is learned, and train it")
    count = Counter(path for path, _, _ in scales)
    return {
        path if count[path] == 1 else f"{path}, {instance}": scale_statistics(scale.float().cpu())
        for path, instance, scale in scales
    }


def _learned(subject: ModelHandle) -> Iterator[tuple[str, str, Tensor]]:
    host = find_host(subject.model)
    for path, _, instance, graft in grafted(host.core):
        scale = getattr(graft, "scale", None)
        if isinstance(scale, Tensor) and instance.startswith("cb_s"):
            yield host.adapter.canonical(path), instance, scale


def find(ask: Ask) -> Finding:
    found, left_out = by_subject(ask, lambda subject: _scales(ask, subject))
    names = [subject.name for subject in ask.subjects]
    axis = Layers.of(list(scales) for scales in found.values())
    return Finding(
        name=ANALYSIS.name,
        title=ANALYSIS.title,
        source=ANALYSIS.source,
        note="Left: |10% quantile| / |90% quantile| of a layer's scale over the channels (none where the 90% quantile "
        "is 0). Right: its mean. A scale begins at 0; the paper finds that both grow with depth.",
        subjects=names,
        panels=[
            Curves(
                title="ratio of quantiles",
                x_axis="layer",
                ticks=axis.ticks,
                lines=[
                    axis.line(names[place], place, {site: _finite(each.ratio) for site, each in scales.items()})
                    for place, scales in found.items()
                ],
            ),
            Curves(
                title="mean of the scale",
                x_axis="layer",
                ticks=axis.ticks,
                lines=[
                    axis.line(names[place], place, {site: float(each.mean) for site, each in scales.items()})
                    for place, scales in found.items()
                ],
            ),
        ],
        table=table_of(
            ["model", "layer", "ratio", "mean"],
            2,
            [
                (names[place], site, _finite(each.ratio), float(each.mean))
                for place, scales in found.items()
                for site, each in scales.items()
            ],
        ),
        left_out=left_out,
    )


def _finite(number: Tensor) -> float | None:
    return float(number) if bool(number.isfinite()) else None


ANALYSIS = Analysis(
    name="scaling",
    title="How much of the mean token each layer takes",
    what="the scale that cb_s learned, by layer",
    source="CB, Fig. 6",
    find=find,
    images="none",
)
