"""An exported model as a folder, written and loaded.

attngraft.json               the manifest
model.safetensors            the host's weights under the host's own names, as timm loads them
grafts/grafts.safetensors    what was grafted, a file as `attngraft.save_grafts` writes; not there for a plain host
README.md                    the model card
model.onnx, model.pt2, config.json    programs and timm's configuration, where they were asked for
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from attngraft.attention import GraftedModule, is_graft, sites_with_detached
from attngraft.errors import ExportError, GraftFileError, HostError, UsageError
from attngraft.files import write_atomically
from attngraft.grafting.apply import grafted
from attngraft.grafting.io import graft_bytes, load_grafts
from attngraft.hosts import find_host
from attngraft.models.create import create_model
from attngraft.saved.manifest import GRAFTS, WEIGHTS, Manifest, read_manifest, write_manifest
from attngraft.tasks.seeding import seeded
from attngraft.tensors import unshared

_SHOWN = 3  #: names in a message


def write_model(model: nn.Module, manifest: Manifest, folder: Path) -> Manifest:
    """Write weights, grafts and, last, the manifest; returned as written."""
    has_grafts = _has_grafts(model)
    weights = {name: value for name, value in model.state_dict().items() if not is_graft(name)}
    write_atomically(folder / WEIGHTS, safetensors.torch.save(unshared(weights), metadata={"format": "pt"}))
    if has_grafts:
        write_atomically(folder / GRAFTS, graft_bytes(find_host(model)))
    manifest = replace(manifest, grafted=has_grafts)
    write_manifest(manifest, folder)
    return manifest


def load(path: str | os.PathLike[str], *, device: str | torch.device = "cpu") -> nn.Module:
    """The model of an exported folder, whole: the host with its grafts and weights, in evaluation mode.

        model = attngraft.load("./flowers-model")

    Everything is checked: the manifest, the names and shapes of all tensors, that the grafts fit this host. Nothing is
    fetched from anywhere, and torch's global generators are left as they were.

    Args:
        path: a folder that `attngraft export` made.
        device: where the model goes.

    Raises:
        ExportError: no such folder, a newer format, a damaged or a wrong file; names it and the remedy.
        HostError, UsageError: this version of timm does not know the host.
    """
    folder = Path(path)
    manifest = read_manifest(folder)
    model = create_host(manifest)
    if manifest.grafted:
        _graft(model, folder / GRAFTS)
    _fill(model, folder / WEIGHTS)
    for _, site in sites_with_detached(model):
        site.whole = False  # the folder holds what the model runs
    _mark_folded(model, manifest)
    return model.to(device=device, dtype=getattr(torch, manifest.dtype)).eval()


def create_host(manifest: Manifest) -> nn.Module:
    """The host that the manifest names, with random weights."""
    try:
        with seeded("host", 0):
            model = create_model(manifest.host.name, **manifest.host.args)
        if manifest.host.fused:
            host = find_host(model)
            host.adapter.fuse(host.core)
        return model
    except (HostError, UsageError) as error:
        made = ", ".join(f"{name} {version}" for name, version in manifest.packages.items())
        raise type(error)(f"{error} (the model was exported with {made or 'unknown versions'})") from None


def _graft(model: nn.Module, file: Path) -> None:
    try:
        with seeded("graft", 0):
            load_grafts(model, file, check_fingerprint=False)
    except GraftFileError as error:
        raise ExportError(f"{error} (exported model in {file.parents[1]})") from None


def _fill(model: nn.Module, file: Path) -> None:
    """The host's weights, which must be exactly those that the host has."""
    try:
        weights = safetensors.torch.load_file(file)
    except FileNotFoundError:
        raise ExportError(f"{file}: there is no such file; the folder is not whole, export the model again") from None
    except (OSError, SafetensorError) as error:
        raise ExportError(f"{file}: cannot be read ({error}); it is damaged, export the model again") from None
    own = {name: value for name, value in model.state_dict().items() if not is_graft(name)}
    if problem := _misfit(own, weights):
        raise ExportError(
            f"{file} does not fit the host that the manifest names: it {problem}; export the model again, or use the "
            "version of timm that the manifest names"
        )
    model.load_state_dict(weights, strict=False)  # what is missing are the grafts, which are there already


def _misfit(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> str | None:
    problems = [f"lacks {name}" for name in own if name not in weights]
    problems += [f"has {name}, which nothing takes" for name in weights if name not in own]
    problems += [
        f"has {name} of shape {tuple(weights[name].shape)} where {tuple(value.shape)} fits"
        for name, value in own.items()
        if name in weights and weights[name].shape != value.shape
    ]
    more = f" (and {len(problems) - _SHOWN} more)" if len(problems) > _SHOWN else ""
    return ", ".join(problems[:_SHOWN]) + more if problems else None


def _mark_folded(model: nn.Module, manifest: Manifest) -> None:
    """Tell folded grafts that they are, so that they refuse to be taken out."""
    left = [entry for entry in manifest.folds if entry.folded and entry.graft and not entry.removed]
    folded = {(each.module, each.instance): each.folded for each in left}
    if not folded:
        return
    host = find_host(model)
    for path, _, instance, graft in grafted(host.core):
        graft.folded = folded.pop((host.adapter.canonical(path), instance), None)
        if graft.folded:
            for parameter in graft.parameters():
                parameter.requires_grad_(False)
    if folded:
        lost, name = next(iter(folded))
        raise ExportError(f"the manifest says that {name} at {lost} was folded, and the graft file has no such graft")


def _has_grafts(model: nn.Module) -> bool:
    return any(isinstance(module, GraftedModule) and len(module.grafts) for module in model.modules())
