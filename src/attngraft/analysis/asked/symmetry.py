"""Whether latents and tokens look at each other, layer by layer, against chance (BiXT, Sec. 3.1 and Appendix A)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attngraft.analysis.ask import Analysis, Ask, by_subject
from attngraft.analysis.asked.layers import Layers, table_of
from attngraft.analysis.asked.offers import offered
from attngraft.analysis.symmetry import symmetry
from attngraft.errors import RecordError
from attngraft.recording.record import record
from attngraft.recording.recording import Recording
from attngraft.results.analysis import Curves, Finding, Line
from attngraft.results.sections import Cell
from attngraft.results.statistics import t_interval
from attngraft.targets.handle import ModelHandle

_DIRECTIONS = ("latents_to_tokens", "tokens_to_latents")
_NONE = "no chosen layer has latents and tokens that look at each other; BiXT's layers but the last one have"


@dataclass(kw_only=True)
class _Layer:
    """By image and head, (B, H) a batch."""

    chance: float = 0.0
    batches: dict[str, list[Tensor]] = field(default_factory=lambda: {"correlation": [], "agreement": []})

    def add(self, ours: Tensor, theirs: Tensor) -> None:
        found = symmetry(ours, theirs)
        self.chance = found.chance
        self.batches["correlation"].append(found.correlation_by_image.cpu())
        self.batches["agreement"].append(found.agreement_by_image.cpu())

    def measured(self) -> dict[str, _Measured]:
        return {name: _Measured.of(torch.cat(batches)) for name, batches in self.batches.items()}


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """Means over images, and the 95% interval of the mean over heads; None where there is none (one image)."""

    heads: list[float]
    mean: float
    interval: tuple[float, float] | None

    @classmethod
    def of(cls, numbers: Tensor) -> _Measured:
        """Of numbers by image and head, (B, H)."""
        if not bool(numbers.isfinite().all()):
            raise RecordError("some of its maps are NaN or infinite: the model did not train well, or overflows")
        over_heads = t_interval(numbers.mean(1).numpy())
        return cls(
            heads=numbers.mean(0).tolist(),
            mean=float(numbers.mean()),
            interval=None if over_heads is None else (over_heads.low, over_heads.high),
        )


def _pairs(recording: Recording) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Layers with both directions: of one site, or, where latents and tokens attend one after the other, of two in one
    block, named by the first."""
    for site in recording:
        if _DIRECTIONS[0] not in recording[site]:
            continue
        block = site.rpartition(".")[0]
        for other in (site, *(other for other in recording if other != site and other.rpartition(".")[0] == block)):
            if _DIRECTIONS[1] in recording[other]:
                yield site, recording[site][_DIRECTIONS[0]], recording[other][_DIRECTIONS[1]]
                break


def _layers(ask: Ask, subject: ModelHandle) -> dict[str, _Layer]:
    found: dict[str, _Layer] = {}
    for images in ask.batches(subject):
        if not found:
            _check(subject, images[:1], ask.sites)
        with record(subject.model, _DIRECTIONS, sites=ask.sites) as recording:
            subject.model(images)
        for site, ours, theirs in _pairs(recording):
            found.setdefault(site, _Layer()).add(ours, theirs)
    if not found:
        raise RecordError(_NONE)
    return found


def _check(subject: ModelHandle, inputs: Tensor, sites: str) -> None:
    names = offered(subject, inputs, sites=sites, called=_DIRECTIONS)
    if {name for each in names.values() for name in each} != set(_DIRECTIONS):
        raise RecordError(_NONE)


def find(ask: Ask) -> Finding:
    layers, left_out = by_subject(ask, lambda subject: _layers(ask, subject))
    measured = {place: {site: layer.measured() for site, layer in by_site.items()} for place, by_site in layers.items()}
    names = [subject.name for subject in ask.subjects]
    axis = Layers.of(list(by_site) for by_site in layers.values())
    bounds = {
        "correlation": axis.bounds("chance", (dict.fromkeys(by_site, 0.0) for by_site in layers.values())),
        "agreement": axis.bounds(
            "chance", ({site: each.chance for site, each in by_site.items()} for by_site in layers.values())
        ),
    }
    titles = {
        "correlation": "correlation of both directions",
        "agreement": "share of the most looked at tokens that look back most",
    }
    return Finding(
        name=ANALYSIS.name,
        title=ANALYSIS.title,
        source=ANALYSIS.source,
        note="Where a latent looks among the tokens, against which tokens look at it. Correlation over the tokens, and the "
        "share of the tenth of the tokens that a latent looks at most that is among the tenth that looks at it most; mean "
        "over images, latents and heads, the band its 95% interval (Student's t) over images. Dotted: what unrelated maps "
        "have. BiXT's two directions are softmaxes of one matrix of scores and so are alike by themselves; those of a model "
        "whose latents and tokens attend one after the other come from two. The last layer has one direction alone.",
        subjects=names,
        panels=[
            Curves(
                title=title,
                x_axis="layer",
                ticks=axis.ticks,
                lines=[
                    *(_line(axis, names[p], p, what, by_site) for p, by_site in measured.items()),
                    *bounds[what],
                ],
            )
            for what, title in titles.items()
        ],
        table=table_of(
            [
                "model",
                "layer",
                "head",
                "correlation",
                "correlation low",
                "correlation high",
                "agreement",
                "agreement low",
                "agreement high",
                "chance",
            ],
            3,
            _rows(names, layers, measured),
        ),
        numbers={
            f"{names[p]}: mean {what} over layers": sum(each[what].mean for each in by_site.values()) / len(by_site)
            for p, by_site in measured.items()
            for what in titles
        },
        left_out=left_out,
    )


def _line(axis: Layers, name: str, place: int, what: str, by_site: Mapping[str, Mapping[str, _Measured]]) -> Line:
    """The mean over heads, with its interval."""
    band = {site: each[what].interval for site, each in by_site.items()}
    return axis.line(
        name,
        place,
        {site: each[what].mean for site, each in by_site.items()},
        band={site: interval for site, interval in band.items() if interval is not None},
    )


def _rows(
    names: Sequence[str],
    layers: Mapping[int, Mapping[str, _Layer]],
    measured: Mapping[int, Mapping[str, Mapping[str, _Measured]]],
) -> Iterator[list[Cell]]:
    for place, by_site in measured.items():
        for site, each in by_site.items():
            chance, both = layers[place][site].chance, (each["correlation"], each["agreement"])
            means = [number for one in both for number in (one.mean, *(one.interval or (None, None)))]
            yield [names[place], site, "mean", *means, chance]
            for head, (correlation, agreement) in enumerate(zip(both[0].heads, both[1].heads, strict=True)):
                yield [names[place], site, str(head), correlation, None, None, agreement, None, None, chance]


ANALYSIS = Analysis(
    name="symmetry",
    title="Whether latents and tokens look at each other",
    what="correlation and agreement of both directions of BiXT's layers, against chance",
    source="BiXT, Sec. 3.1, App. A",
    find=find,
)
