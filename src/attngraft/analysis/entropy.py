"""Attention entropy by layer, with its upper bound (CB, Figs. 3a and 5a)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from attngraft.analysis.layers import LayerAxis
from attngraft.analysis.panels import mean, table
from attngraft.analysis.request import Analysis, AnalysisRequest, Content, Measured, by_model
from attngraft.analysis.tensors import host_of, sites_without_maps
from attngraft.errors import RecordError
from attngraft.recording.record import record
from attngraft.results.analysis import Curves
from attngraft.targets.handle import ModelHandle

_Layer = dict[str, float | None]  #: column -> mean over images, heads and rows (entropies in nats); None if undefined


@dataclass(frozen=True, kw_only=True)
class _Model:
    layers: dict[str, _Layer]  #: by site
    last: str  #: the model's last attention layer, whether or not it was chosen

    def drawn(self, column: str) -> dict[str, _Layer]:
        """Return the layers with a value in this column.

        For the entropy among patches, the last layer is omitted as in the paper, unless no other layer has a value.
        """
        found = {site: each for site, each in self.layers.items() if each[column] is not None}
        if column == "among patches":
            return {site: each for site, each in found.items() if site != self.last} or found
        return found


def _measure(request: AnalysisRequest, model: ModelHandle, left_out: dict[str, str]) -> _Model:
    with record(model.model, "weights", sites=request.sites) as recording:
        recording.reduce("entropy", "patch_entropy", "ceiling", "patch_ceiling", "steepness", "evenness")
        for images in request.batches(model):
            model.model(images)
    left_out |= sites_without_maps(recording, model)
    layers = {site: _layer(site, recording[site], recording.prefix(site), left_out) for site in recording}
    return _Model(layers=layers, last=[site.path for site in host_of(model).sites if site.kind == "attention"][-1])


def _layer(site: str, means: Mapping[str, Tensor], prefix: Sequence[str], left_out: dict[str, str]) -> _Layer:
    rows = means["entropy"]
    token = prefix.index("class") if "class" in prefix else rows.shape[1]
    try:
        patches, patch_ceiling = float(means["patch_entropy"].mean()), float(means["patch_ceiling"].mean())
    except RecordError as error:
        patches, patch_ceiling = None, None
        left_out[f"{site}, among patches"] = str(error)
    return {
        "entropy": float(rows.mean()),
        "among patches": patches,
        "class token": float(rows[:, token].mean()) if token < rows.shape[1] else None,
        "ceiling": float(means["ceiling"].mean()),
        "ceiling among patches": patch_ceiling,
        "steepness": float(means["steepness"].mean()),
        "evenness": float(means["evenness"].mean()) if "evenness" in means else None,
    }


def _present(request: AnalysisRequest, models: Measured[_Model]) -> Content:
    axis = LayerAxis.of(list(model.layers) for _, _, model in models)

    def curves(title: str, column: str, maximum: str) -> list[Curves]:
        drawn = [(index, name, layers) for index, name, model in models if (layers := model.drawn(column))]
        lines = [axis.line(name, i, {site: each[column] for site, each in layers.items()}) for i, name, layers in drawn]
        bounds = ({site: each[maximum] for site, each in layers.items()} for _, _, layers in drawn)
        lines += axis.bounds("maximum", bounds)
        return [axis.curves(title, lines)] if drawn else []

    parts = {
        name: mean(
            entropy / ceiling
            for layer in model.layers.values()
            if (entropy := layer["entropy"]) is not None and (ceiling := layer["ceiling"])
        )
        for _, name, model in models
    }
    return Content(
        note="Entropy -sum a ln a in nats, averaged over images, heads and rows. Dotted: its maximum ln N for N tokens (in "
        "windows: of the window). Among patches: prefix tokens are excluded and rows normalized to sum to 1; as in the "
        "paper, the model's last layer is omitted (it is in the table). Steepness is sum (a - a^2), the nuclear norm of the "
        "softmax's Jacobian (CB, Sec. 2.1), and evenness is steepness divided by its maximum, 1 - 1/N.",
        panels=[
            *curves("entropy among patches (nats)", "among patches", "ceiling among patches"),
            *curves("entropy of the class token's rows (nats)", "class token", "ceiling"),
        ],
        table=table(
            ["model", "layer", *next(iter(models[0][2].layers.values()))],
            [(name, site, *layer.values()) for _, name, model in models for site, layer in model.layers.items()],
        ),
        numbers={
            f"{name}: mean over layers, part of the ceiling": part for name, part in parts.items() if part is not None
        },
    )


ANALYSIS = Analysis(
    name="entropy",
    title="Attention entropy",
    summary="entropy of the attention maps by layer, with its maximum",
    source="CB, Figs. 3a and 5a",
    run=by_model(_measure, _present),
)
