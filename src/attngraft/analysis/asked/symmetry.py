"""Whether latents and tokens look at each other, layer by layer, against chance (BiXT, Sec. 3.1 and Appendix A)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attngraft.analysis.ask import Analysis, Ask, by_subject
from attngraft.analysis.asked.layers import layer_line, longest, table_of
from attngraft.analysis.asked.offers import offered
from attngraft.analysis.record import record
from attngraft.analysis.recording import Recording
from attngraft.analysis.subjects import Subject
from attngraft.analysis.symmetry import symmetry
from attngraft.errors import RecordError
from attngraft.finding import Curves, Finding, Line
from attngraft.sections import Cell

_DIRECTIONS = ("latents_to_tokens", "tokens_to_latents")
_NONE = "no chosen layer has latents and tokens that look at each other; BiXT's layers but the last one have"


@dataclass(kw_only=True)
class _Layer:
    """Sums over images, by head."""

    chance: float = 0.0
    images: int = 0
    correlation: Tensor = field(default_factory=lambda: torch.zeros(()))
    agreement: Tensor = field(default_factory=lambda: torch.zeros(()))

    def add(self, ours: Tensor, theirs: Tensor) -> None:
        found, count = symmetry(ours, theirs), len(ours)
        self.chance, self.images = found.chance, self.images + count
        self.correlation = self.correlation + count * found.correlation.cpu()
        self.agreement = self.agreement + count * found.agreement.cpu()

    def means(self) -> dict[str, list[float]]:
        """By head."""
        found = {"correlation": self.correlation / self.images, "agreement": self.agreement / self.images}
        if not all(bool(each.isfinite().all()) for each in found.values()):
            raise RecordError("some of its maps are NaN or infinite: the model did not train well, or overflows")
        return {name: each.tolist() for name, each in found.items()}


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


def _layers(ask: Ask, subject: Subject) -> dict[str, _Layer]:
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


def _check(subject: Subject, inputs: Tensor, sites: str) -> None:
    names = offered(subject, inputs, sites=sites, called=_DIRECTIONS)
    if {name for each in names.values() for name in each} != set(_DIRECTIONS):
        raise RecordError(_NONE)


def find(ask: Ask) -> Finding:
    layers, left_out = by_subject(ask, lambda subject: _layers(ask, subject))
    means = {place: {site: layer.means() for site, layer in by_site.items()} for place, by_site in layers.items()}
    names = [subject.name for subject in ask.subjects]
    ticks = longest({place: list(by_site) for place, by_site in layers.items()})
    chances = {tuple(layer.chance for layer in by_site.values()) for by_site in layers.values()}
    bounds = {
        "correlation": [layer_line("chance", None, [0.0] * len(ticks))],
        "agreement": [layer_line("chance", None, way) for way in sorted(chances)],
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
        "over images, latents and heads, the band from the least head to the largest. Dotted: what unrelated maps have. "
        "BiXT's two directions are softmaxes of one matrix of scores and so are alike by themselves; those of a model "
        "whose latents and tokens attend one after the other come from two. The last layer has one direction alone.",
        subjects=names,
        panels=[
            Curves(
                title=title,
                x_axis="layer",
                ticks=ticks,
                lines=[
                    *(_line(names[p], p, [each[what] for each in by_site.values()]) for p, by_site in means.items()),
                    *bounds[what],
                ],
            )
            for what, title in titles.items()
        ],
        table=table_of(
            ["model", "layer", "head", "correlation", "agreement", "chance"], 3, _rows(names, layers, means)
        ),
        numbers={
            f"{names[p]}: mean {what} over layers": _mean([_mean(each[what]) for each in by_site.values()])
            for p, by_site in means.items()
            for what in titles
        },
        left_out=left_out,
    )


def _line(name: str, place: int, heads: Sequence[Sequence[float]]) -> Line:
    """The mean over heads, with a band over all of them."""
    return Line(
        name=name,
        subject=place,
        x=[float(layer) for layer in range(len(heads))],
        y=[_mean(each) for each in heads],
        low=[min(each) for each in heads],
        high=[max(each) for each in heads],
    )


def _rows(
    names: Sequence[str],
    layers: Mapping[int, Mapping[str, _Layer]],
    means: Mapping[int, Mapping[str, dict[str, list[float]]]],
) -> Iterator[list[Cell]]:
    for place, by_site in means.items():
        for site, each in by_site.items():
            chance = layers[place][site].chance
            yield [names[place], site, "mean", _mean(each["correlation"]), _mean(each["agreement"]), chance]
            for head, values in enumerate(zip(each["correlation"], each["agreement"], strict=True)):
                yield [names[place], site, str(head), *values, chance]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


ANALYSIS = Analysis(
    name="symmetry",
    title="Whether latents and tokens look at each other",
    what="correlation and agreement of both directions of BiXT's layers, against chance",
    source="BiXT, Sec. 3.1, App. A",
    find=find,
)
