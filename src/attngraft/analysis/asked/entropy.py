"""Entropy of attention, layer by layer, with the most that there can be (CB, Figs. 3a and 5a)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from attngraft.analysis.ask import Analysis, Ask, by_subject
from attngraft.analysis.asked.layers import Layers, mean, table_of
from attngraft.analysis.asked.offers import host_of, without_maps
from attngraft.errors import RecordError
from attngraft.recording.record import record
from attngraft.results.analysis import Curves, Finding, Panel
from attngraft.targets.handle import ModelHandle


@dataclass(frozen=True, kw_only=True)
class _Layer:
    """Means over images, heads and rows; None where the site has no such thing."""

    every: float  #: nats
    ceiling: float
    patches: float | None  #: among spatial tokens alone
    patch_ceiling: float | None
    of_class: float | None  #: of the class token's rows
    steepness: float
    evenness: float | None
    why: str | None  #: it has nothing among patches


@dataclass(frozen=True, kw_only=True)
class _Model:
    layers: dict[str, _Layer]  #: by site
    no_map: dict[str, str]  #: sites that have none, and why
    last: str  #: the model's last attention layer, chosen or not


def _model(ask: Ask, subject: ModelHandle) -> _Model:
    with record(subject.model, "weights", sites=ask.sites) as recording:
        recording.reduce("entropy", "patch_entropy", "ceiling", "patch_ceiling", "steepness", "evenness")
        for images in ask.batches(subject):
            subject.model(images)
    return _Model(
        layers={site: _layer(recording[site], recording.prefix(site)) for site in recording},
        no_map=without_maps(recording, subject),
        last=[site.path for site in host_of(subject).sites if site.kind == "attention"][-1],
    )


def _layer(means: Mapping[str, Tensor], prefix: Sequence[str]) -> _Layer:
    rows, why = means["entropy"], None
    try:
        means["patch_entropy"]
    except RecordError as error:
        why = str(error)
    of_class = prefix.index("class") if "class" in prefix else None
    return _Layer(
        every=float(rows.mean()),
        ceiling=float(means["ceiling"].mean()),
        patches=None if why else float(means["patch_entropy"].mean()),
        patch_ceiling=None if why else float(means["patch_ceiling"].mean()),
        of_class=None if of_class is None or of_class >= rows.shape[1] else float(rows[:, of_class].mean()),
        steepness=float(means["steepness"].mean()),
        evenness=float(means["evenness"].mean()) if "evenness" in means else None,
        why=why,
    )


def find(ask: Ask) -> Finding:
    models, left_out = by_subject(ask, lambda subject: _model(ask, subject))
    found = {place: model.layers for place, model in models.items()}
    names = [subject.name for subject in ask.subjects]
    axis = Layers.of(list(layers) for layers in found.values())
    patches = {p: _but_the_last(model) for p, model in models.items()}
    of_class = {
        p: {site: each for site, each in layers.items() if each.of_class is not None} for p, layers in found.items()
    }
    panels: list[Panel] = [
        Curves(
            title=title,
            x_axis="layer",
            ticks=axis.ticks,
            lines=[
                *(axis.line(names[p], p, {site: value(each) for site, each in layers.items()}) for p, layers in shown),
                *axis.bounds(
                    "most there can be", ({site: most(each) for site, each in layers.items()} for _, layers in shown)
                ),
            ],
        )
        for title, shown, value, most in (
            (
                "entropy among patches (nats)",
                [(p, layers) for p, layers in patches.items() if layers],
                lambda each: each.patches,
                lambda each: each.patch_ceiling,
            ),
            (
                "entropy of the class token's rows (nats)",
                [(p, layers) for p, layers in of_class.items() if layers],
                lambda each: each.of_class,
                lambda each: each.ceiling,
            ),
        )
        if shown
    ]
    rows = [
        (
            names[p],
            site,
            each.every,
            each.patches,
            each.of_class,
            each.ceiling,
            each.patch_ceiling,
            each.steepness,
            each.evenness,
        )
        for p, layers in found.items()
        for site, each in layers.items()
    ]
    columns = [
        "model",
        "layer",
        "entropy",
        "among patches",
        "class token",
        "ceiling",
        "ceiling among patches",
        "steepness",
        "evenness",
    ]
    parts = {
        p: mean(each.every / each.ceiling for each in layers.values() if each.ceiling > 0)
        for p, layers in found.items()
    }
    return Finding(
        name=ANALYSIS.name,
        title=ANALYSIS.title,
        source=ANALYSIS.source,
        note="Mean over images, heads and rows of -sum a ln a, in nats; the dotted line is the most that there can be,"
        " ln N (within windows: of their tokens). Among patches: leading tokens left out, rows summing to 1 "
        "again; as in the paper a model's last layer is not drawn there (the table has it). Steepness is sum (a - a^2), the "
        "nuclear norm of the softmax's Jacobian (CB, Sec. 2.1), and evenness that over its largest value, 1 - 1/N.",
        subjects=names,
        panels=panels,
        table=table_of(columns, 2, rows),
        numbers={
            f"{names[p]}: mean over layers, part of the ceiling": part for p, part in parts.items() if part is not None
        },
        left_out=left_out
        | {f"{names[p]}, {site}": why for p, model in models.items() for site, why in model.no_map.items()}
        | {
            f"{names[p]}, {site}, among patches": each.why
            for p, layers in found.items()
            for site, each in layers.items()
            if each.why is not None
        },
    )


def _but_the_last(model: _Model) -> dict[str, _Layer]:
    """Those with maps among patches, as in the paper without the model's last layer, unless it is alone."""
    found = {site: each for site, each in model.layers.items() if each.patches is not None}
    return {site: each for site, each in found.items() if site != model.last} or found


ANALYSIS = Analysis(
    name="entropy",
    title="How spread attention is",
    what="entropy of the attention maps by layer, with its ceiling",
    source="CB, Figs. 3a and 5a",
    find=find,
)
