"""Which pixels move what the last layer says of the middle of the image (effective receptive fields)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attngraft.analysis.ask import Analysis, Ask, by_subject
from attngraft.analysis.asked.layers import table_of
from attngraft.analysis.asked.offers import features, offered
from attngraft.analysis.asked.showing import numbers_of
from attngraft.analysis.receptive_field import area_holding, pixel_gradient
from attngraft.errors import RecordError
from attngraft.recording.record import record
from attngraft.results.analysis import Curves, Finding, Line, Picture, Pictures, Row
from attngraft.targets.handle import ModelHandle

_STAGES = ("attn.end", "mlp.end")
_SHARES = (0.2, 0.3, 0.5, 0.99)  #: as Ding et al. report them
_CURVE = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
_LEAST = -4.0  #: log10 of what is drawn as nothing
_BATCH = 8  #: images at most whose gradients are taken at a time


@dataclass(frozen=True, kw_only=True)
class _Field:
    """Of one model."""

    site: str
    stage: str
    values: Tensor  #: (H, W), largest 1
    areas: dict[float, float]  #: share to the part of the image that holds it


def _field(ask: Ask, subject: ModelHandle) -> _Field:
    site, stage = _last(ask, subject)

    def at_site(images: Tensor) -> Tensor:
        with record(subject.model, stage, sites=site, detach=False) as recording:
            subject.model(images)
        return features(recording, site, stage)

    total, count = torch.zeros(()), 0
    for images in replace(ask, batch=min(ask.batch, _BATCH)).batches(subject):
        total = total + len(images) * pixel_gradient(at_site, images).double().cpu()
        count += len(images)
    if not bool(total.isfinite().all()) or not bool((total > 0).any()):
        raise RecordError(f"{site}: no pixel moves its features, or by numbers that are not finite")
    values = total / total.max()
    return _Field(
        site=site,
        stage=stage,
        values=values,
        areas={share: area_holding(values, share) for share in dict.fromkeys((*_SHARES, *_CURVE))},
    )


def _last(ask: Ask, subject: ModelHandle) -> tuple[str, str]:
    """Site and stage of the last layer whose output is a map."""
    _, _, inputs = next(ask.pictures(subject))
    stages = offered(subject, inputs, sites=ask.sites, called=_STAGES)
    wanted = {stage for each in stages.values() for stage in each}
    with record(subject.model, wanted, sites=ask.sites) as recording:
        subject.model(inputs)
    reasons = []
    for site, each in reversed(stages.items()):
        for stage in reversed([stage for stage in _STAGES if stage in each]):
            try:
                features(recording, site, stage)
            except RecordError as error:
                reasons.append(str(error))
            else:
                return site, stage
    raise RecordError("; ".join(("no chosen layer has a map of the image", *reasons[:1])))


def find(ask: Ask) -> Finding:
    found, left_out = by_subject(ask, lambda subject: _field(ask, subject))
    names = [subject.name for subject in ask.subjects]
    pictures = [
        Picture(values=numbers_of(field.values.log10().clamp_min(_LEAST)), caption=names[place])
        for place, field in found.items()
    ]
    return Finding(
        name=ANALYSIS.name,
        title=ANALYSIS.title,
        source=ANALYSIS.source,
        note="How much each pixel moves the features in the middle of the last layer's map (inside its residual branch): "
        "the gradient of the sum of the rectified channels, its negative part 0, summed over colors, mean over images, "
        "as Ding et al. have it but for the rectification. Of maps with an even number of rows or columns the middle is "
        f"the place below and right of it. Colors: its decimal logarithm from {_LEAST:g} to 0, the largest. Area: the "
        "smallest centred rectangle that holds a share of it, as a part of the image; large where far pixels count as "
        "much as near ones, and a share of a field that is everywhere alike holds as much area, the dotted line.",
        subjects=names,
        panels=[
            Pictures(title="log10 of the field", rows=[Row(name="", pictures=pictures)], low=_LEAST, high=0.0),
            Curves(
                title="area that holds a share of the field",
                x_axis="share of the field",
                y_axis="part of the image",
                lines=[
                    *(
                        Line(name=names[p], subject=p, x=list(_CURVE), y=[field.areas[share] for share in _CURVE])
                        for p, field in found.items()
                    ),
                    Line(name="everywhere alike", x=list(_CURVE), y=list(_CURVE)),
                ],
            ),
        ],
        table=table_of(
            ["model", "layer", "stage", "share", "area"],
            3,
            [
                (names[place], field.site, field.stage, share, field.areas[share])
                for place, field in found.items()
                for share in sorted(field.areas)
            ],
        ),
        numbers={
            f"{names[place]}: area that holds {share:.0%}": field.areas[share]
            for place, field in found.items()
            for share in _SHARES
        },
        left_out=left_out,
    )


ANALYSIS = Analysis(
    name="receptive-field",
    title="Which pixels move the last layer",
    what="effective receptive field of the last layer with a map, and the area that holds shares of it",
    source="Luo et al. 2016; Ding et al. 2022",
    find=find,
)
