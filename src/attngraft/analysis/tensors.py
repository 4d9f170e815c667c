"""Recorded tensors of the models that are analyzed."""

from collections.abc import Collection, Iterable

import torch
from torch import Tensor

from attngraft.analysis.request import AnalysisRequest
from attngraft.errors import RecordError, UsageError
from attngraft.hosts import Host, find_host
from attngraft.recording.record import record
from attngraft.recording.recording import Recording
from attngraft.targets.handle import ModelHandle


def host_of(model: ModelHandle) -> Host:
    """Return the host of a model: its adapter and sites.

    Raises:
        HostError: no adapter supports the model.
    """
    return find_host(getattr(model.model, "_orig_mod", model.model))  # unwrap torch.compile's module


def recorded(
    model: ModelHandle, inputs: Tensor, what: Iterable[str], *, sites: str = "all", detach: bool = True
) -> Recording:
    """Run the model once and return the recording."""
    with record(model.model, what, sites=sites, detach=detach) as recording:
        model.model(inputs)
    return recording


def find_tensors(
    request: AnalysisRequest, model: ModelHandle, names: Collection[str], *, missing: str, inputs: Tensor | None = None
) -> dict[str, list[str]]:
    """Return the full names of tensors called one of `names` at each chosen site, in the host's order.

    Full names include the prefix of a graft, as in `elsa.ghost_add`. The model is run once, on `inputs` or on the first
    image, and no tensors are stored.

    Raises:
        RecordError: no site has such a tensor; the message is `missing`.
    """
    with torch.no_grad():
        recording = recorded(
            model, next(request.pictures(model)).inputs if inputs is None else inputs, (), sites=request.sites
        )
    found = {
        site.path: [
            each for each in recording.available(site.path) if each in names or each.rpartition(".")[2] in names
        ]
        for site in host_of(model).sites
    }
    if not any(found.values()):
        raise RecordError(missing)
    return {site: tensors for site, tensors in found.items() if tensors}


def sites_without_maps(recording: Recording, model: ModelHandle) -> dict[str, str]:
    """Return the attention sites without an attention map, with the reason.

    Their attention is linear, or was replaced by a graft.
    """
    names = {site.path: recording.available(site.path) for site in host_of(model).sites if site.kind == "attention"}
    return {
        site: f"{site}: has no attention map; available: {', '.join(each)}"
        for site, each in names.items()
        if "weights" not in each and not {"heads", "tokens", "attn.end"}.isdisjoint(each)
    }


def feature_map(recording: Recording, site: str, name: str) -> Tensor:
    """Return the features of a hook point as a map (B, rows, columns, C), for hosts with tokens or maps.

    Raises:
        RecordError: no tensor of this name was recorded at the site, or the positions of its tokens are unknown.
    """
    try:
        return recording.on_map(site, name)
    except UsageError as error:
        raise RecordError(f"{site}: {error}") from None
