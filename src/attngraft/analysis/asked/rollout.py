"""Which patches reach the output through all layers (attention rollout)."""

from __future__ import annotations

from torch import Tensor

from attngraft.analysis.ask import Analysis, Ask, by_subject
from attngraft.analysis.asked.layers import table_of
from attngraft.analysis.asked.offers import without_maps
from attngraft.analysis.asked.showing import numbers_of, png
from attngraft.analysis.rollout import rollout
from attngraft.errors import RecordError
from attngraft.recording.record import record
from attngraft.recording.recording import Recording
from attngraft.results.analysis import Finding, Picture, Pictures, Row
from attngraft.targets.handle import ModelHandle


def _through(recording: Recording, subject: ModelHandle) -> Tensor:
    """(rows, columns): how much of each patch reaches the class token, or, without one, all tokens alike."""
    if no_map := without_maps(recording, subject):
        raise RecordError(
            f"{', '.join(no_map)}: no attention map, so that the product of the others is not through all layers; name "
            "those that have one with --sites"
        )
    sites = [site for site in recording if "weights" in recording.available(site)]
    maps = [recording[site]["weights"] for site in sites]
    for site, weights in zip(sites, maps, strict=True):
        if len(weights) != 1 or weights.shape[-1] != weights.shape[-2]:
            raise RecordError(
                f"{site}: rollout needs one sequence of all tokens in each layer, not windows or other keys"
            )
        if weights.shape[-1] != maps[0].shape[-1]:
            raise RecordError(
                f"{site}: rollout needs the same tokens in all layers; name some that see the same with --sites"
            )
    reached, last = rollout(maps)[0], sites[-1]
    prefix = recording.prefix(last)
    row = reached[prefix.index("class")] if "class" in prefix else reached.mean(0)
    return row[recording.token_indices(last).to(row.device)].float()


def _maps(ask: Ask, subject: ModelHandle) -> list[tuple[str, str, list[list[float]]]]:
    found = []
    for name, view, inputs in ask.pictures(subject):
        with record(subject.model, "weights", sites=ask.sites) as recording:
            subject.model(inputs)
        found.append((name, png(view), numbers_of(_through(recording, subject))))
    return found


def find(ask: Ask) -> Finding:
    found, left_out = by_subject(ask, lambda subject: _maps(ask, subject))
    names = [subject.name for subject in ask.subjects]
    first = next(iter(found.values()))
    rows = [Row(name="", pictures=[Picture(caption=name, image=image) for name, image, _ in first])]
    rows += [
        Row(name=names[place], pictures=[Picture(image=image, values=values) for _, image, values in maps])
        for place, maps in found.items()
    ]
    return Finding(
        name=ANALYSIS.name,
        title=ANALYSIS.title,
        source=ANALYSIS.source,
        note="How much of each patch reaches the class token (without one: all tokens, on average) when the layers' "
        "mean maps, half of each the skip connection, are multiplied. Each picture has its own scale of colors. "
        "It follows attention alone: what MLPs and values do with it, it does not see.",
        subjects=names,
        panels=[Pictures(title="through all layers", rows=rows)],
        table=table_of(
            ["model", "image", "row", "column", "share"],
            2,
            [
                (names[place], name, row, column, value)
                for place, maps in found.items()
                for name, _, values in maps
                for row, line in enumerate(values)
                for column, value in enumerate(line)
            ],
        ),
        left_out=left_out,
    )


ANALYSIS = Analysis(
    name="rollout",
    title="What reaches the output",
    what="attention through all layers, for single images",
    source="Abnar and Zuidema 2020",
    find=find,
    images="shown",
)
