"""Attention distance by layer and head (CB, Fig. 5b)."""

from attngraft.analysis.layers import LayerAxis
from attngraft.analysis.panels import table
from attngraft.analysis.request import Analysis, AnalysisRequest, Content, Measured, by_model
from attngraft.analysis.tensors import sites_without_maps
from attngraft.errors import RecordError
from attngraft.recording.record import record
from attngraft.targets.handle import ModelHandle


def _measure(request: AnalysisRequest, model: ModelHandle, left_out: dict[str, str]) -> dict[str, dict[str, float]]:
    """Return the distances by site and head; the head "mean" is the mean over heads."""
    with record(model.model, "weights", sites=request.sites) as recording:
        recording.reduce("distance")
        for images in request.batches(model):
            model.model(images)
    distances = {}
    for site in recording:
        try:
            heads = [float(head) for head in recording[site]["distance"].mean(1)]
        except RecordError as error:
            left_out[site] = str(error)
        else:
            distances[site] = {"mean": sum(heads) / len(heads)} | {str(head): each for head, each in enumerate(heads)}
    if not distances:
        raise RecordError("; ".join(left_out.values()))
    left_out |= sites_without_maps(recording, model)
    return distances


def _present(request: AnalysisRequest, models: Measured[dict[str, dict[str, float]]]) -> Content:
    axis = LayerAxis.of(list(distances) for _, _, distances in models)
    means = [
        (index, name, {site: each["mean"] for site, each in distances.items()}) for index, name, distances in models
    ]
    return Content(
        note="Attention distance, sum a |p - p'|, averaged over images, heads and spatial tokens. Positions are "
        "fractions of the map's height and width, so the distance between opposite corners is 2. Prefix tokens are "
        "excluded, and rows normalized to sum to 1. This is the expected distance of a query; the paper does not state its "
        "scale.",
        panels=[
            axis.curves(
                "attention distance (fraction of the sides)",
                [axis.line(name, index, by_site) for index, name, by_site in means],
            )
        ],
        table=table(
            ["model", "layer", "head", "distance"],
            [
                (name, site, head, value)
                for _, name, distances in models
                for site, heads in distances.items()
                for head, value in heads.items()
            ],
        ),
        numbers={f"{name}: mean over layers": sum(by_site.values()) / len(by_site) for _, name, by_site in means},
    )


ANALYSIS = Analysis(
    name="distance",
    title="Attention distance",
    summary="mean attention distance by layer and head, as a fraction of the map's sides",
    source="CB, Fig. 5b",
    run=by_model(_measure, _present),
)
