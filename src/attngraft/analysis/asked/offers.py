"""Which layers of a model offer what, found by showing it something once; and their tokens as maps of features."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from attngraft.errors import RecordError, UsageError
from attngraft.hosts import Host, find_host
from attngraft.recording.record import record
from attngraft.recording.recording import Recording
from attngraft.targets.handle import ModelHandle


def host_of(subject: ModelHandle) -> Host:
    """
    Raises:
        HostError: no adapter knows the model.
    """
    return find_host(
        getattr(subject.model, "_orig_mod", subject.model)
    )  # torch.compile's wrapper holds the model itself


def offered(subject: ModelHandle, inputs: Tensor, *, sites: str, called: Collection[str]) -> dict[str, list[str]]:
    """Site to the names of those of its tensors that are called so, a graft's own with its name before (`elsa.ghost_add`).

    In the order of the model's sites; sites that have none are left out. The model runs once, and nothing is kept.
    """
    with torch.no_grad(), record(subject.model, (), sites=sites) as recording:
        subject.model(inputs)
    named = {
        site.path: [
            name
            for name in recording.available(site.path)
            if any(name == each or name.endswith(f".{each}") for each in called)
        ]
        for site in host_of(subject).sites
    }
    return {site: names for site, names in named.items() if names}


def without_maps(recording: Recording, subject: ModelHandle) -> dict[str, str]:
    """Attention sites that ran and made no map (`weights`), with the reason: linear attention, or a graft in its place."""
    names = {site.path: recording.available(site.path) for site in host_of(subject).sites if site.kind == "attention"}
    return {
        site: f"{site}: makes no attention map, it offers {', '.join(each)}"
        for site, each in names.items()
        if "weights" not in each and not {"heads", "tokens", "attn.end"}.isdisjoint(each)
    }


def features(recording: Recording, site: str, name: str) -> Tensor:
    """What leaves a stage as a map (B, rows, columns, C), whether its host has tokens or a map.

    Raises:
        RecordError: nothing was recorded there under this name, or its tokens have no places on the map.
    """
    try:
        return recording.on_map(site, name)
    except UsageError as error:
        raise RecordError(f"{site}: {error}") from None
