"""Learned scale of CB_S, layer by layer (CB, Fig. 6)."""

import math
from collections import Counter

from torch import Tensor

from attngraft.analysis.layers import LayerAxis
from attngraft.analysis.panels import table
from attngraft.analysis.request import Analysis, AnalysisRequest, Content, Measured, by_model
from attngraft.analysis.tensors import host_of
from attngraft.errors import RecordError
from attngraft.grafting.apply import grafted
from attngraft.recording.measures import scale_statistics
from attngraft.targets.handle import ModelHandle


def _measure(
    request: AnalysisRequest, model: ModelHandle, left_out: dict[str, str]
) -> dict[str, tuple[float | None, float]]:
    """Return the scale's ratio of quantiles and its mean by site (and instance, if a site has several)."""
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
        ratio, mean = map(float, scale_statistics(scale.float().cpu()))
        found[path if count[path] == 1 else f"{path}, {instance}"] = ratio if math.isfinite(ratio) else None, mean
    return found


def _present(request: AnalysisRequest, models: Measured[dict[str, tuple[float | None, float]]]) -> Content:
    axis = LayerAxis.of(list(scales) for _, _, scales in models)
    return Content(
        note="Left: |10% quantile| / |90% quantile| of a layer's scale over the channels (none where the 90% quantile is "
        "0). Right: its mean. Scales are initialized to 0; in the paper both grow with depth.",
        panels=[
            axis.curves(
                title,
                [
                    axis.line(name, index, {site: each[which] for site, each in scales.items()})
                    for index, name, scales in models
                ],
            )
            for which, title in enumerate(("ratio of quantiles", "mean of the scale"))
        ],
        table=table(
            ["model", "layer", "ratio", "mean"],
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
