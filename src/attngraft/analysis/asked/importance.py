"""What BiSA's inverse branch finds important, image by image, and how large both branches are (BiSA, Fig. 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from attngraft.analysis.ask import Analysis, Ask, by_subject
from attngraft.analysis.asked.layers import Layers, captions, table_of
from attngraft.analysis.asked.offers import offered
from attngraft.analysis.asked.showing import numbers_of, png
from attngraft.analysis.importance import importance_map
from attngraft.errors import RecordError, UsageError
from attngraft.recording.record import record
from attngraft.recording.recording import Recording
from attngraft.results.analysis import Curves, Finding, Line, Panel, Picture, Pictures, Row
from attngraft.results.sections import Cell
from attngraft.targets.handle import ModelHandle

_BRANCHES = ("self", "inverse")


@dataclass(kw_only=True)
class _Found:
    """Of one model."""

    images: dict[str, str] = field(default_factory=dict)  #: name to PNG
    maps: dict[tuple[str, str, str], list[list[float]]] = field(default_factory=dict)  #: by site, image and head
    sizes: dict[tuple[str, str], list[float]] = field(default_factory=dict)  #: by site and branch, one an image
    skipped: dict[str, str] = field(default_factory=dict)  #: layers that cannot be shown, and why

    @property
    def sites(self) -> list[str]:
        return list(dict.fromkeys(site for site, _, _ in self.maps))

    def heads(self, site: str) -> list[str]:
        return list(dict.fromkeys(head for where, _, head in self.maps if where == site))

    def size(self, site: str, branch: str) -> float | None:
        sizes = self.sizes.get((site, branch))
        return sum(sizes) / len(sizes) if sizes else None


def _of(ask: Ask, subject: ModelHandle) -> _Found:
    found = _Found()
    names: dict[str, str] = {}
    for image, view, inputs in ask.pictures(subject):
        names = names or _inverse(subject, inputs, ask.sites)
        found.images[image] = png(view)
        with record(subject.model, sorted(set(names.values())), sites=ask.sites) as recording:
            subject.model(inputs)
        for site, graft in names.items():
            try:
                maps = importance_map(recording, site, f"{graft}.inverse_weights")[0].float()
            except (RecordError, UsageError) as error:
                found.skipped[site] = str(error)
                continue
            shown = {str(head): each for head, each in enumerate(maps)} if ask.heads else {"mean": maps.mean(0)}
            found.maps |= {(site, image, head): numbers_of(each) for head, each in shown.items()}
            for branch in _BRANCHES:
                if f"{graft}.{branch}" in recording[site]:
                    size = _on_map(recording, site, f"{graft}.{branch}").abs().mean()
                    found.sizes.setdefault((site, branch), []).append(float(size))
    if not found.maps:
        raise RecordError(next(iter(found.skipped.values())))
    return found


def _inverse(subject: ModelHandle, inputs: Tensor, sites: str) -> dict[str, str]:
    """Site to the name of the graft that has an inverse branch there."""
    found = offered(subject, inputs, sites=sites, called=("inverse_weights",))
    if not found:
        raise RecordError("no chosen layer has an inverse branch, which the grafts bisa and misa give")
    return {site: names[0].rpartition(".")[0] for site, names in found.items()}


def _on_map(recording: Recording, site: str, name: str) -> Tensor:
    """Without leading tokens and what fills windows up, as in the pictures."""
    return recording.on_map(site, name).float()


def find(ask: Ask) -> Finding:
    found, left_out = by_subject(ask, lambda subject: _of(ask, subject))
    names = [subject.name for subject in ask.subjects]
    for place, each in found.items():
        left_out |= {f"{names[place]}, {site}": why for site, why in each.skipped.items()}
    panels: list[Panel] = []
    for place, each in found.items():
        panels += _by_head(names[place], each) if ask.heads else [_by_layer(names[place], each)]
    return Finding(
        name=ANALYSIS.name,
        title=ANALYSIS.title,
        source=ANALYSIS.source,
        note="How well each place agrees, as a query, with the key that it agrees with best (the largest weight of its row "
        "after the softmax over queries), from 0 to 1 within each window (without windows: within the image), windows in "
        "their places: light is important. Shifted windows at the map's border hold parts that do not see each other; "
        "weights sum to 1 over the queries of a part, so that those of small parts are larger by that alone. "
        + ("Head by head. " if ask.heads else "The mean over heads; --heads shows them one by one. ")
        + "How large the branches are: mean absolute value of their heads before both are weighed and "
        "added, over the tokens of the map and the images that are shown.",
        subjects=names,
        panels=[*panels, *_sizes(names, found)],
        table=table_of(
            ["model", "layer", "what", "image", "head", "row", "column", "value"], 5, list(_rows(names, found))
        ),
        numbers=_ratios(names, found),
        left_out=left_out,
    )


def _by_layer(name: str, found: _Found) -> Pictures:
    """An image a row, a layer a column."""
    sites = found.sites
    rows = [
        Row(
            name=image,
            pictures=[
                Picture(image=pixels, caption="image"),
                *(
                    Picture(values=found.maps[site, image, "mean"], caption=caption)
                    for site, caption in zip(sites, captions(sites), strict=True)
                ),
            ],
        )
        for image, pixels in found.images.items()
    ]
    return Pictures(title=f"{name}: importance by layer", rows=rows, low=0.0, high=1.0)


def _by_head(name: str, found: _Found) -> list[Pictures]:
    """A panel for each layer: an image a row, a head a column."""
    return [
        Pictures(
            title=f"{name}: importance in {site}",
            rows=[
                Row(
                    name=image,
                    pictures=[
                        Picture(image=pixels, caption="image"),
                        *(
                            Picture(values=found.maps[site, image, head], caption=f"head {head}")
                            for head in found.heads(site)
                        ),
                    ],
                )
                for image, pixels in found.images.items()
            ],
            low=0.0,
            high=1.0,
        )
        for site in found.sites
    ]


def _sizes(names: Sequence[str], found: Mapping[int, _Found]) -> list[Curves]:
    """Over the layers that the models share."""
    axis = Layers.of(each.sites for each in found.values())
    lines: list[Line] = []
    for place, each in found.items():
        for branch in _BRANCHES:
            sizes = {site: each.size(site, branch) for site in each.sites}
            if any(size is not None for size in sizes.values()):
                lines.append(axis.line(f"{names[place]}: {branch}", place, sizes, dashed=branch == "inverse"))
    if not lines:
        return []
    return [
        Curves(title="how large both branches are", lines=lines, x_axis="layer", y_axis="mean |x|", ticks=axis.ticks)
    ]


def _rows(names: Sequence[str], found: Mapping[int, _Found]) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for place, each in found.items():
        for site, branch in each.sizes:
            rows.append([names[place], site, f"mean |{branch}|", None, None, None, None, each.size(site, branch)])
    for place, each in found.items():
        for (site, image, head), values in each.maps.items():
            rows += [
                [names[place], site, "importance", image, head, row, column, value]
                for row, line in enumerate(values)
                for column, value in enumerate(line)
            ]
    return rows


def _ratios(names: Sequence[str], found: Mapping[int, _Found]) -> dict[str, float]:
    """How many times the inverse branch is the other one, where both are there."""
    ratios = {}
    for place, each in found.items():
        for site in each.sites:
            attended, inverse = (each.size(site, branch) for branch in _BRANCHES)
            if attended and inverse is not None:
                ratios[f"{names[place]}, {site}: mean |inverse| / mean |self|"] = inverse / attended
    return ratios


ANALYSIS = Analysis(
    name="importance",
    title="What the inverse branch finds important",
    what="importance maps of the inverse branch (bisa, misa), and how large both branches are",
    source="BiSA, Fig. 2",
    find=find,
    images="shown",
)
