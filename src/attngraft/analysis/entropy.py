"""Attention entropy by layer, with its maximum (CB, Figs. 3a and 5a)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from attngraft.analysis.layers import LayerAxis
from attngraft.analysis.panels import mean, table
from attngraft.analysis.request import Analysis, AnalysisRequest, host_of, measure_models, sites_without_maps
from attngraft.errors import RecordError
from attngraft.recording.record import record
from attngraft.results.analysis import AnalysisResult, Curves
from attngraft.targets.handle import ModelHandle

#: column of the table -> field of `_Layer`
_COLUMNS = {
    "entropy": "entropy",
    "among patches": "patches",
    "class token": "class_token",
    "ceiling": "ceiling",
    "ceiling among patches": "patch_ceiling",
    "steepness": "steepness",
    "evenness": "evenness",
}


@dataclass(frozen=True, kw_only=True)
class _Layer:
    """Means over images, heads and rows; None where undefined."""

    entropy: float  #: nats
    patches: float | None  #: among spatial tokens only
    class_token: float | None  #: of the class token's rows
    ceiling: float
    patch_ceiling: float | None
    steepness: float
    evenness: float | None
    no_patches: str  #: why nothing is defined among patches, or empty


@dataclass(frozen=True, kw_only=True)
class _Model:
    layers: dict[str, _Layer]  #: by site
    last: str  #: the model's last attention layer, chosen or not

    def drawn_patches(self) -> dict[str, _Layer]:
        """Layers with maps among patches; as in the paper without the model's last layer, unless it is the only one."""
        found = {site: each for site, each in self.layers.items() if each.patches is not None}
        return {site: each for site, each in found.items() if site != self.last} or found


def _measure(request: AnalysisRequest, model: ModelHandle, left_out: dict[str, str]) -> _Model:
    with record(model.model, "weights", sites=request.sites) as recording:
        recording.reduce("entropy", "patch_entropy", "ceiling", "patch_ceiling", "steepness", "evenness")
        for images in request.batches(model):
            model.model(images)
    layers = {site: _layer(recording[site], recording.prefix(site)) for site in recording}
    left_out |= sites_without_maps(recording, model)
    left_out |= {f"{site}, among patches": each.no_patches for site, each in layers.items() if each.no_patches}
    return _Model(layers=layers, last=[site.path for site in host_of(model).sites if site.kind == "attention"][-1])


def _layer(means: Mapping[str, Tensor], prefix: Sequence[str]) -> _Layer:
    rows, no_patches = means["entropy"], ""
    try:
        means["patch_entropy"]
    except RecordError as error:
        no_patches = str(error)
    token = prefix.index("class") if "class" in prefix else None
    return _Layer(
        entropy=float(rows.mean()),
        patches=None if no_patches else float(means["patch_entropy"].mean()),
        class_token=None if token is None or token >= rows.shape[1] else float(rows[:, token].mean()),
        ceiling=float(means["ceiling"].mean()),
        patch_ceiling=None if no_patches else float(means["patch_ceiling"].mean()),
        steepness=float(means["steepness"].mean()),
        evenness=float(means["evenness"].mean()) if "evenness" in means else None,
        no_patches=no_patches,
    )


def run(request: AnalysisRequest) -> AnalysisResult:
    models, left_out = measure_models(request, _measure)
    axis = LayerAxis.of(list(model.layers) for _, _, model in models)

    def curves(
        title: str,
        chosen: Callable[[_Model], dict[str, _Layer]],
        value: Callable[[_Layer], float | None],
        maximum: Callable[[_Layer], float | None],
    ) -> list[Curves]:
        drawn = [(index, name, layers) for index, name, model in models if (layers := chosen(model))]
        lines = [axis.line(name, i, {site: value(each) for site, each in layers.items()}) for i, name, layers in drawn]
        bounds = ({site: maximum(each) for site, each in layers.items()} for _, _, layers in drawn)
        lines += axis.bounds("maximum", bounds)
        return [Curves(title=title, x_axis="layer", ticks=axis.ticks, lines=lines)] if drawn else []

    parts = {
        name: mean(each.entropy / each.ceiling for each in model.layers.values() if each.ceiling > 0)
        for _, name, model in models
    }
    return ANALYSIS.result(
        request,
        note="Mean over images, heads and rows of -sum a ln a, in nats; dotted: its maximum, ln N (in windows: of their "
        "tokens). Among patches: without prefix tokens, rows normalized to sum to 1; as in the paper, without the model's "
        "last layer (the table has it). Steepness is sum (a - a^2), the nuclear norm of the softmax's Jacobian (CB, "
        "Sec. 2.1), and evenness is steepness over its maximum, 1 - 1/N.",
        panels=[
            *curves(
                "entropy among patches (nats)",
                _Model.drawn_patches,
                lambda layer: layer.patches,
                lambda layer: layer.patch_ceiling,
            ),
            *curves(
                "entropy of the class token's rows (nats)",
                lambda model: {site: each for site, each in model.layers.items() if each.class_token is not None},
                lambda layer: layer.class_token,
                lambda layer: layer.ceiling,
            ),
        ],
        table=table(
            ["model", "layer", *_COLUMNS],
            2,
            [
                (name, site, *(getattr(layer, field) for field in _COLUMNS.values()))
                for _, name, model in models
                for site, layer in model.layers.items()
            ],
        ),
        numbers={
            f"{name}: mean over layers, part of the ceiling": part for name, part in parts.items() if part is not None
        },
        left_out=left_out,
    )


ANALYSIS = Analysis(
    name="entropy",
    title="Attention entropy",
    summary="entropy of the attention maps by layer, with its maximum",
    source="CB, Figs. 3a and 5a",
    run=run,
)
