"""Symmetry of the attention between latents and tokens of a layer (BiXT, Sec. 3.1 and App. A)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor

from attngraft.analysis.layers import LayerAxis
from attngraft.analysis.panels import check_finite, table
from attngraft.analysis.request import Analysis, AnalysisRequest, Content, Measured, by_model
from attngraft.analysis.tensors import find_tensors, recorded
from attngraft.errors import RecordError, UsageError
from attngraft.recording.recording import Recording
from attngraft.results.analysis import Panel
from attngraft.results.sections import Cell
from attngraft.results.statistics import t_interval
from attngraft.targets.handle import ModelHandle

_DIRECTIONS = ("latents_to_tokens", "tokens_to_latents")
_NONE = "no chosen layer has latents and tokens that attend to each other; choose BiXT's layers except the last"
_TITLES = {"correlation": "correlation of both directions", "agreement": "agreement of the most attended tokens"}


class Symmetry(NamedTuple):
    """Symmetry of one layer by head (H,), averaged over images and latents, and by image and head (B, H)."""

    correlation: Tensor  #: correlation of a latent's attention to the tokens with the tokens' attention to the latent
    agreement: Tensor  #: share of a latent's k most attended tokens among the k tokens that attend to the latent most
    chance: float  #: agreement of unrelated maps, k / N
    correlation_by_image: Tensor
    agreement_by_image: Tensor


def symmetry(latents_to_tokens: Tensor, tokens_to_latents: Tensor, *, k: int | None = None) -> Symmetry:
    """Compute the Pearson correlation and top-k agreement of the two directions of a layer.

    Bi-directional attention computes both directions from one score matrix. The sequential model uses two, so its agreement
    beyond `chance` is learned. Ties are broken at random, and the agreement is the expected value.

    Args:
        latents_to_tokens: (B, H, M, N), rows sum to 1.
        tokens_to_latents: (B, H, N, M), rows sum to 1.
        k: number of most attended tokens to compare; default: N // 10, at least 1.

    Raises:
        UsageError: the shapes do not match, or `k` is not between 1 and N.
    """
    second = tokens_to_latents.transpose(-2, -1)
    if second.shape != latents_to_tokens.shape:
        raise UsageError(
            "maps must be (B, H, M, N) and (B, H, N, M), got "
            f"{tuple(latents_to_tokens.shape)} and {tuple(tokens_to_latents.shape)}"
        )
    tokens = latents_to_tokens.shape[-1]
    k = max(1, tokens // 10) if k is None else k
    if not 1 <= k <= tokens:
        raise UsageError(f"k must be between 1 and the number of tokens, {tokens}; got {k}")
    first, second = latents_to_tokens.double(), second.double()
    a, b = (each - each.mean(-1, keepdim=True) for each in (first, second))
    lengths = a.norm(dim=-1) * b.norm(dim=-1)
    correlation = (a * b).sum(-1) / lengths.clamp_min(torch.finfo(torch.float64).tiny)
    agreement = (_top_probability(first, k) * _top_probability(second, k)).sum(-1) / k
    by_image = correlation.mean(2), agreement.mean(2)
    return Symmetry(by_image[0].mean(0), by_image[1].mean(0), k / tokens, *by_image)


def _top_probability(values: Tensor, k: int) -> Tensor:
    """Return the probability that each value is among the k largest of its row.

    Ties are broken at random.
    """
    least = values.topk(k).values[..., -1:]
    above, equal = values > least, values == least
    left = k - above.sum(-1, keepdim=True)
    return above + equal * (left.double() / equal.sum(-1, keepdim=True))


@dataclass(frozen=True, kw_only=True)
class _Measure:
    """Mean over images by head, and the 95% interval of the mean over heads (None for a single image)."""

    heads: list[float]
    mean: float
    interval: tuple[float, float] | None

    @classmethod
    def of(cls, batches: Iterable[Tensor]) -> _Measure:
        """Compute from values by image and head, (B, H) per batch."""
        values = torch.cat(list(batches)).cpu()
        check_finite(values, "the maps contain")
        over_heads = t_interval(values.mean(1).numpy())
        return cls(
            heads=values.mean(0).tolist(),
            mean=float(values.mean()),
            interval=None if over_heads is None else (over_heads.low, over_heads.high),
        )


_Layer = tuple[float, dict[str, _Measure]]  #: chance level of the agreement, and "correlation" and "agreement"


def _measure(request: AnalysisRequest, model: ModelHandle, left_out: dict[str, str]) -> dict[str, _Layer]:
    """Return the chance level and the measures of each site."""
    names = find_tensors(request, model, _DIRECTIONS, missing=_NONE)
    if {name for each in names.values() for name in each} != set(_DIRECTIONS):
        raise RecordError(_NONE)
    batches: dict[str, list[Symmetry]] = {}
    for images in request.batches(model):
        recording = recorded(model, images, _DIRECTIONS, sites=request.sites)
        for site, latents_to_tokens, tokens_to_latents in _pairs(recording):
            batches.setdefault(site, []).append(symmetry(latents_to_tokens, tokens_to_latents))
    if not batches:
        raise RecordError(_NONE)
    return {
        site: (
            each[-1].chance,
            {
                "correlation": _Measure.of(batch.correlation_by_image for batch in each),
                "agreement": _Measure.of(batch.agreement_by_image for batch in each),
            },
        )
        for site, each in batches.items()
    }


def _pairs(recording: Recording) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the site and both maps of each layer that has both directions.

    In the sequential model, the two directions are separate sites of a block; the site with `latents_to_tokens` is yielded.
    """
    for site in recording:
        if _DIRECTIONS[0] not in recording[site]:
            continue
        block = site.rpartition(".")[0]
        for other in (site, *(other for other in recording if other != site and other.rpartition(".")[0] == block)):
            if _DIRECTIONS[1] in recording[other]:
                yield site, recording[site][_DIRECTIONS[0]], recording[other][_DIRECTIONS[1]]
                break


def _present(request: AnalysisRequest, models: Measured[dict[str, _Layer]]) -> Content:
    axis = LayerAxis.of(list(layers) for _, _, layers in models)
    panels: list[Panel] = []
    for what, title in _TITLES.items():
        lines = []
        for index, name, layers in models:
            each = {site: measures[what] for site, (_, measures) in layers.items()}
            intervals = {site: one.interval for site, one in each.items() if one.interval is not None}
            lines.append(axis.line(name, index, {site: one.mean for site, one in each.items()}, band=intervals))
        bounds = [
            {site: chance if what == "agreement" else 0.0 for site, (chance, _) in layers.items()}
            for _, _, layers in models
        ]
        lines += axis.bounds("chance", bounds)
        panels.append(axis.curves(title, lines))
    return Content(
        note="Attention of a latent to the tokens compared with the attention of the tokens to the latent. Correlation: "
        "over the tokens. Agreement: of the tenth of the tokens that a latent attends to most, the share that is also "
        "in the tenth that attends to the latent most. Means over images, latents and heads; bands are 95% intervals "
        "(Student's t) over images. Dotted: unrelated maps. BiXT's two directions are softmaxes of one score matrix "
        "and therefore similar by construction; a model whose latents and tokens attend one after the other computes "
        "them from two matrices. The last layer has only one direction.",
        panels=panels,
        table=table(
            ["model", "layer", "head", *(what + end for what in _TITLES for end in ("", " low", " high")), "chance"],
            [row for _, name, layers in models for site, layer in layers.items() for row in _rows(name, site, *layer)],
        ),
        numbers={
            f"{name}: mean {what} over layers": fmean(measures[what].mean for _, measures in layers.values())
            for _, name, layers in models
            for what in _TITLES
        },
    )


def _rows(name: str, site: str, chance: float, measures: Mapping[str, _Measure]) -> Iterator[list[Cell]]:
    both = measures["correlation"], measures["agreement"]
    means = [number for each in both for number in (each.mean, *(each.interval or (None, None)))]
    yield [name, site, "mean", *means, chance]
    for head, (correlation, agreement) in enumerate(zip(both[0].heads, both[1].heads, strict=True)):
        yield [name, site, str(head), correlation, None, None, agreement, None, None, chance]


ANALYSIS = Analysis(
    name="symmetry",
    title="Symmetry of latents and tokens",
    summary="correlation and agreement of both directions of BiXT's layers, against chance",
    source="BiXT, Sec. 3.1, App. A",
    run=by_model(_measure, _present),
)
