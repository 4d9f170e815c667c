"""Distributions of head weights and channel gates (HV and others) over images, layer by layer."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from attngraft.analysis.distribution import Distribution
from attngraft.analysis.layers import ticks
from attngraft.analysis.panels import table
from attngraft.analysis.request import Analysis, AnalysisRequest, Content, Measured, by_model
from attngraft.analysis.tensors import recorded
from attngraft.errors import RecordError
from attngraft.results.analysis import Box, Boxes
from attngraft.results.sections import Cell
from attngraft.targets.handle import ModelHandle

_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_BINS = 2000


@dataclass(kw_only=True)
class _Spread:
    """Distribution of the finite values of one gate at one site."""

    values: Distribution | None = None  #: None: no finite values
    not_finite: int = 0  #: number of NaN and infinite values, which statistics over a single head produce

    def add(self, values: Tensor) -> None:
        finite = values[values.isfinite()]
        self.not_finite += values.numel() - len(finite)
        if len(finite) == 0:
            return
        if self.values is None:
            low, high = float(finite.min()), float(finite.max())
            margin = max(high - low, 1e-3)
            self.values = Distribution(low - margin, high + margin, bins=_BINS)
        self.values.add(finite)

    def cells(self) -> list[Cell]:
        each = self.values
        if each is None:
            return [None] * (len(_QUANTILES) + 3)
        return [each.mean, each.least, *map(each.quantile, _QUANTILES), each.largest]


def _measure(request: AnalysisRequest, model: ModelHandle, left_out: dict[str, str]) -> dict[str, dict[str, _Spread]]:
    """Return the distributions by gate (such as `horizontal.alpha`) and site."""
    gates: dict[str, dict[str, _Spread]] = {}
    for images in request.batches(model):
        recording = recorded(model, images, "gates", sites=request.sites)
        for site in recording:
            for gate in recording[site]:
                gates.setdefault(gate, {}).setdefault(site, _Spread()).add(recording.without_padding(site, gate))
    if all(each.values is None for by_site in gates.values() for each in by_site.values()):
        raise RecordError("all gates are NaN or infinite: the model diverged in training, or its activations overflow")
    for gate, by_site in gates.items():
        for site, each in by_site.items():
            if each.not_finite:
                left_out[f"{site}: {gate}"] = f"{each.not_finite} values are NaN or infinite and are left out"
    return gates


def _present(request: AnalysisRequest, models: Measured[dict[str, dict[str, _Spread]]]) -> Content:
    gates = dict.fromkeys(gate for _, _, by_gate in models for gate in by_gate)
    return Content(
        note="Distributions over images, tokens, heads and channels: the box spans the middle half, the line 5 to 95 "
        "percent; the bar is the median and the dot the mean. horizontal.alpha weights heads, and vertical.beta channels; "
        "their initial values depend on their form (identity: 1). Padding tokens of windows are excluded.",
        panels=[
            _boxes(gate, {index: by_gate[gate] for index, _, by_gate in models if gate in by_gate}) for gate in gates
        ],
        table=table(
            ["model", "gate", "layer", "mean", "least", "5%", "25%", "50%", "75%", "95%", "largest"],
            [
                (name, gate, site, *each.cells())
                for _, name, by_gate in models
                for gate, by_site in by_gate.items()
                for site, each in by_site.items()
            ],
        ),
    )


def _boxes(gate: str, models: Mapping[int, Mapping[str, _Spread]]) -> Boxes:
    sites = list(dict.fromkeys(site for by_site in models.values() for site in by_site))
    boxes = []
    for index, by_site in models.items():
        for site, each in by_site.items():
            if each.values is not None:
                low, quarter, median, three_quarters, high = map(each.values.quantile, _QUANTILES)
                quantiles = (low, quarter, median, three_quarters, high)
                boxes.append(Box(at=sites.index(site), subject=index, quantiles=quantiles, mean=each.values.mean))
    return Boxes(title=gate, x_axis="layer", ticks=ticks(sites), boxes=boxes)


ANALYSIS = Analysis(
    name="gates",
    title="Head weights and channel gates",
    summary="distribution of head weights and channel gates by layer",
    source="HV",
    run=by_model(_measure, _present),
)
