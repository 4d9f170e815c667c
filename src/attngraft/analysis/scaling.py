"""Learned scale of CB_S, layer by layer (CB, Fig. 6)."""

from collections import Counter
from typing import NamedTuple

import torch
from torch import Tensor

from attngraft.analysis.layers import LayerAxis
from attngraft.analysis.panels import table
from attngraft.analysis.request import Analysis, AnalysisRequest, Content, Measured, by_model
from attngraft.analysis.tensors import host_of
from attngraft.errors import RecordError
from attngraft.grafting.apply import grafted
from attngraft.recording.measures import scale_statistics
from attngraft.targets.handle import ModelHandle

_NEAR_ZERO = 0.1  #: the ratio is undefined if the 90% quantile is at most this share of the largest absolute value


class _Scale(NamedTuple):
    ratio: float | None  #: |10% quantile| / |90% quantile|; None: undefined
    mean: float
    low: float  #: 10% quantile
    high: float  #: 90% quantile


def _measure(request: AnalysisRequest, model: ModelHandle, left_out: dict[str, str]) -> dict[str, _Scale]:
    """Return the statistics of the scale by site (and instance, if a site has several)."""
    host = host_of(model)
    scales = []
    for path, _, instance, graft in grafted(host.core):
        scale = getattr(graft, "scale", None)
        if isinstance(scale, Tensor) and instance.startswith("cb_s"):
            scales.append((host.adapter.canonical(path), instance, scale))
    if not scales:
        raise RecordError(
            "the model has no cb_s graft, whose learned scale this analysis shows; graft cb_s and train the model"
        )
    count = Counter(path for path, _, _ in scales)
    found = {}
    for path, instance, scale in scales:
        values, site = scale.float().cpu(), path if count[path] == 1 else f"{path}, {instance}"
        ratio, mean = map(float, scale_statistics(values))
        low, high = values.quantile(torch.tensor([0.1, 0.9])).tolist()
        defined = abs(high) > _NEAR_ZERO * float(values.abs().max())
        if not defined:
            left_out[f"{site}: ratio"] = f"undefined, because the 90% quantile of the scale, {high:.3g}, is near 0"
        found[site] = _Scale(ratio if defined else None, mean, low, high)
    return found


def _present(request: AnalysisRequest, models: Measured[dict[str, _Scale]]) -> Content:
    axis = LayerAxis.of(list(scales) for _, _, scales in models)
    ratios, means = [], []
    for index, name, scales in models:
        bands = {site: (each.low, each.high) for site, each in scales.items()}
        ratios.append(axis.line(name, index, {site: each.ratio for site, each in scales.items()}))
        means.append(axis.line(name, index, {site: each.mean for site, each in scales.items()}, band=bands))
    return Content(
        note="Left: |10% quantile| / |90% quantile| of a layer's scale over the channels. It is undefined, and not drawn, "
        f"where the 90% quantile is near 0 (at most {_NEAR_ZERO:g} of the largest absolute value). Right: the mean of the "
        "scale, which may be negative, with a band from the 10% to the 90% quantile. In the paper both grow with depth; "
        "it does not state how scales are initialized. The default is 0, where the ratio is undefined; cb_s(init=1) starts "
        "from 1.",
        panels=[axis.curves("ratio of quantiles", ratios), axis.curves("mean of the scale", means)],
        table=table(
            ["model", "layer", "ratio", "mean", "10%", "90%"],
            [(name, site, *each) for _, name, scales in models for site, each in scales.items()],
        ),
    )


ANALYSIS = Analysis(
    name="scaling",
    title="Learned scale of CB_S",
    summary="the scale learned by cb_s, by layer",
    source="CB, Fig. 6",
    run=by_model(_measure, _present),
    images="none",
)
