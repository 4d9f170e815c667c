"""Folders of exported models.

attngraft.json               the manifest
checksums.json               size and SHA-256 of the other files, but the model card; missing in folders of earlier versions
model.safetensors            the host's weights under the host's own names, as timm loads them
grafts/grafts.safetensors    the grafts, in the format of `attngraft.save_grafts`; missing for a plain host
fitted/                      objects that the task fitted to its data, such as a tokenizer; missing for most tasks
README.md                    the model card
model.onnx, model.pt2, config.json    other formats, optional
"""

import os
from dataclasses import replace
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import nn

from attngraft.attention import GraftedModule, is_graft, sites_with_detached
from attngraft.errors import ExportError, GraftFileError, HostError, UsageError, check_types, naming
from attngraft.files import write_atomically
from attngraft.grafting.apply import grafted
from attngraft.grafting.io import graft_bytes, load_grafts
from attngraft.hosts import find_host
from attngraft.models.create import create_host as create_by_name
from attngraft.models.host_input import host_input
from attngraft.models.schemes import sized_for
from attngraft.models.trust import SCHEME, from_folder, refuse_untrusted
from attngraft.opening import check_regular
from attngraft.saved.manifest import GRAFTS, MANIFEST, WEIGHTS, Manifest, check_file, read_manifest, write_manifest
from attngraft.strict import read
from attngraft.suggest import shortened
from attngraft.tasks.codec import Codec
from attngraft.tasks.seeding import seeded
from attngraft.tasks.task import FITTED_FOLDER, Task, load_task
from attngraft.tensors import misfits, not_finite, other_kinds, unshared

_SHOWN = 3  #: maximum number of problems listed in a message


def write_model(model: nn.Module, manifest: Manifest, folder: Path) -> Manifest:
    """Write the weights, the grafts and finally the manifest; return the manifest as written."""
    has_grafts = any(isinstance(module, GraftedModule) and len(module.grafts) for module in model.modules())
    weights = {name: value for name, value in model.state_dict().items() if not is_graft(name)}
    write_atomically(folder / WEIGHTS, safetensors.torch.save(unshared(weights), metadata={"format": "pt"}))
    if has_grafts:
        write_atomically(folder / GRAFTS, graft_bytes(find_host(model)))
    manifest = replace(manifest, grafted=has_grafts)
    write_manifest(manifest, folder)
    return manifest


def load(
    path: str | os.PathLike[str],
    *,
    device: str | torch.device = "cpu",
    trust_code: bool = False,
    allow_download: bool = False,
) -> nn.Module:
    """Load the model of an exported folder: the host with its grafts and weights, in evaluation mode.

        model = attngraft.load("./flowers-model")

    Checks the manifest, the names and shapes of all tensors, and that the grafts fit the host. Does not
    change the state of torch's global random generators.

    Args:
        path: a folder made by `attngraft export`.
        device: device of the model.
        trust_code: import a `module:` host named in the folder; this runs its code.
        allow_download: download what the folder names (a host of the Hub, a data set) and is not in the caches.

    Raises:
        ExportError: no such folder, a newer format, a damaged or wrong file; the message names the file and the remedy.
        HostError, UsageError: the installed package does not have the host, or the host is a `module:` host and
            `trust_code` is not set; or the device is unknown.
    """
    check_types(path=(path, str, os.PathLike), device=(device, str, torch.device))
    folder = Path(path)
    manifest = read_manifest(folder)
    for name in (WEIGHTS, GRAFTS):
        check_file(folder / name, folder)
    with from_folder(trust_code=trust_code, allow_download=allow_download), naming(folder / MANIFEST):
        model = _load(folder, manifest)
    try:
        return model.to(device)
    except (RuntimeError, AssertionError) as error:  # unknown device, or torch was built without it
        raise UsageError(f"device {device}: {str(error).splitlines()[0]}") from None


def _load(folder: Path, manifest: Manifest) -> nn.Module:
    with sized_for(folder / WEIGHTS):
        model = create_host(manifest)
    if (folder / GRAFTS).exists() and not manifest.grafted:
        raise ExportError(f"{folder / GRAFTS}: exists, but the manifest says that there are no grafts; export again")
    if manifest.grafted:
        try:
            with seeded("graft", 0):
                load_grafts(model, folder / GRAFTS, check_fingerprint=False)
        except GraftFileError as error:
            raise ExportError(f"{error} (exported model in {folder})") from None
    if manifest.around is not None:
        with seeded("around", 0):
            model = open_task(manifest, folder).build(model, manifest.around.facts)
    _load_weights(model, folder / WEIGHTS)
    for _, site in sites_with_detached(model):
        site.whole = False  # the folder lacks the weights that grafts replace
    _mark_folded(model, manifest)
    model = model.to(dtype=getattr(torch, manifest.dtype)).eval()
    if bad := not_finite(model.state_dict()):  # a file may have values that are finite in its own type only
        raise ExportError(
            f"{folder / WEIGHTS}: weights are not finite in {manifest.dtype} ({shortened(bad, _SHOWN)}); export another "
            "model"
        )
    return model


def open_task(manifest: Manifest, folder: Path) -> Task:
    """Return the task of a model of format 2, with its fitted objects loaded."""
    entry = manifest.around
    if entry is None:
        raise TypeError(f"{folder}: the manifest has no task entry (`around`)")
    config = {name: value for name, value in entry.section.items() if name != "name"}
    kind = load_task(manifest.task)
    with naming(folder / MANIFEST):
        read(kind.facts_class, entry.facts, where="around.facts")  # to check them
    task = kind.from_config(config, seed=manifest.origin.seed or 0)
    for path in (folder / FITTED_FOLDER).rglob("*"):
        check_file(path, folder)
    task.load_files(folder / FITTED_FOLDER)
    return task


def open_codec(manifest: Manifest, folder: Path) -> Codec:
    """Return the description of the model's inputs and outputs."""
    if manifest.around is None:
        return manifest.serving
    expects = host_input(manifest.host.name, dict(manifest.host.args))
    return open_task(manifest, folder).codec(manifest.around.facts, model_data_config=expects)


def create_host(manifest: Manifest) -> nn.Module:
    """Create the manifest's host with random weights."""
    if manifest.host.name.startswith(SCHEME):
        refuse_untrusted(manifest.host.name)
    try:
        with seeded("host", 0):
            model = create_by_name(manifest.host.name, **manifest.host.args)
        if manifest.host.fused:
            host = find_host(model)
            host.adapter.fuse(host.core)
        return model
    except (HostError, UsageError) as error:
        versions = ", ".join(f"{name} {version}" for name, version in manifest.packages.items())
        raise type(error)(f"{error} (the model was exported with {versions or 'unknown versions'})") from None


def _load_weights(model: nn.Module, file: Path) -> None:
    """Load all weights except the grafts'; names and shapes must match exactly."""
    try:
        check_regular(file)
        weights = safetensors.torch.load_file(file)
    except FileNotFoundError:
        raise ExportError(f"{file}: missing; the folder is incomplete, export the model again") from None
    except (OSError, SafetensorError) as error:
        raise ExportError(f"{file}: cannot be read ({error}); it is damaged, export the model again") from None
    expected = {name: value.shape for name, value in model.state_dict().items() if not is_graft(name)}
    problems = misfits(weights, expected, unknown="the host does not have")
    if problems := problems or [f"has {each}" for each in other_kinds(weights, model.state_dict())]:
        raise ExportError(
            f"{file} does not fit the manifest's host: it {shortened(problems, _SHOWN)}; export the model again, or install "
            "the versions in the manifest"
        )
    model.load_state_dict(weights, strict=False)  # the grafts' weights are already loaded


def _mark_folded(model: nn.Module, manifest: Manifest) -> None:
    """Mark folded grafts, so that `ungraft` refuses to remove them."""
    remaining = [entry for entry in manifest.folds if entry.folded and entry.graft and not entry.removed]
    folded = {(each.module, each.instance): each.folded for each in remaining}
    if not folded:
        return
    host = find_host(model)
    for path, _, instance, graft in grafted(host.core):
        graft.folded = folded.pop((host.adapter.canonical(path), instance), None)
        if graft.folded:
            for parameter in graft.parameters():
                parameter.requires_grad_(False)
    if folded:
        path, name = next(iter(folded))
        raise ExportError(
            f"the manifest lists a folded graft {name} at {path}, which the graft file does not have; export the model again"
        )
