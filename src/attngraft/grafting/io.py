"""Graft files: only what grafting added, as safetensors, with a manifest that says what fits it (see manifest.py).

The manifest stands under the metadata key `attngraft`. Tensors are named by the host's own paths
(`blocks.3.mlp.grafts.cb_s.scale`); included host parameters by `host.<name>`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from attngraft._version import __version__
from attngraft.attention import HookPoint, is_graft, with_originals
from attngraft.errors import GraftFileError, GraftSpecError
from attngraft.files import write_atomically
from attngraft.grafting.apply import grafted, install
from attngraft.grafting.cost import describe
from attngraft.grafting.io import FORMAT, GraftManifest, StoredGraft, StoredHost, manifest_text, parse_manifest
from attngraft.grafting.spec import build_options
from attngraft.grafting.placement import Placement, build, in_the_way
from attngraft.grafting.report import GraftReport
from attngraft.grafting.spec import GraftSpec, Term, parse
from attngraft.grafting.where import Where
from attngraft.hosts import Host, find_host
from attngraft.mechanisms.registry import graft_types

KEY = "attngraft"
_HOST = "host."


def save_grafts(
    model: nn.Module, path: str | os.PathLike[str], *, include: Iterable[str] = (), fingerprint: bool = False
) -> Path:
    """Write the grafts of `model` to a file; the host's weights stay out.

    Args:
        include: parts of the host to save with them: `head`, `norms`.
        fingerprint: also store a hash of the host's weights, so that the file loads on these weights only.

    Raises:
        GraftSpecError: the model has no grafts, one that was folded, or `include` names a part that there is not.
    """
    host = find_host(model)
    folded = next((name for _, _, name, made in grafted(host.core) if made.folded), None)
    if folded is not None:
        raise GraftSpecError(
            f"the graft {folded} was folded into the host's weights, so it fits no other host; save the grafts of the model "
            "as it was exported without folding"
        )
    return write_atomically(Path(path), graft_bytes(host, include=include, fingerprint=fingerprint))


def graft_bytes(host: Host, *, include: Iterable[str] = (), fingerprint: bool = False) -> bytes:
    """What `save_grafts` writes, folded grafts as what is left of them.

    Raises:
        GraftSpecError: as `save_grafts`.
    """
    entries, tensors = _entries(host)
    if not entries:
        raise GraftSpecError(
            "there is nothing to save: the model has no grafts (attngraft.graft(model, spec) makes them)"
        )
    chosen = list(include)
    tensors.update(_included(host, chosen))
    manifest = GraftManifest(
        format=FORMAT,
        version=__version__,
        host=StoredHost(
            adapter=host.adapter.name,
            architecture=host.architecture(),
            fingerprint=weights_fingerprint(host) if fingerprint else None,
        ),
        spec=_spec(entries),
        entries=tuple(entries),
        include=tuple(chosen),
    )
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in _unshared(tensors).items()}
    return save(contiguous, metadata={KEY: manifest_text(manifest)})


def _unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of those that are one with another (a host ties a head's bias to itself), which safetensors refuses."""
    seen: set[int] = set()
    found = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        found[name] = tensor.clone() if place in seen else tensor
        seen.add(place)
    return found


def _entries(host: Host) -> tuple[list[StoredGraft], dict[str, Tensor]]:
    """The manifest's entries and the tensors of every graft in the host."""
    entries, tensors = [], {}
    sites = {(target, hook_point): site for site in host.sites for hook_point, target in site.targets.items()}
    for path, _, instance, graft in grafted(host.core):
        site = sites[path, graft.hook_point]
        entries.append(
            StoredGraft(
                site=site.path, stage=graft.hook_point, instance=instance, graft=graft.kind, options=dict(graft.options)
            )
        )
        for name, tensor in graft.state_dict().items():
            tensors[f"{_tensor_prefix(host, path, instance)}{name}"] = tensor
    return entries, tensors


def _spec(entries: Iterable[StoredGraft]) -> str:
    """The entries as one specification: what a reader would type to graft a host the same way."""
    sites: dict[str, tuple[Term, list[str]]] = {}
    placed: dict[str, int] = {}
    for entry in entries:
        term = Term(entry.graft, build_options(graft_types()[entry.graft], dict(entry.options)))
        here = f"{entry.site} {entry.stage} {term}"
        placed[here] = placed.get(here, 0) + 1  # the same graft, twice at one place
        _, paths = sites.setdefault(f"{placed[here]} {term}", (term, []))
        if entry.site not in paths:
            paths.append(entry.site)
    terms = (replace(term, where=Where("patterns", patterns=tuple(paths))) for term, paths in sites.values())
    return str(GraftSpec(tuple(terms)))


def _tensor_prefix(host: Host, target: str, instance: str) -> str:
    return f"{host.adapter.canonical(target)}.grafts.{instance}."


def _included(host: Host, include: list[str]) -> dict[str, Tensor]:
    parts = host.adapter.parts(host.core)
    unknown = [part for part in include if part not in parts]
    if unknown:
        raise GraftSpecError(f"include: there is no part {unknown[0]!r}; there are {', '.join(parts)}")
    state = host.core.state_dict()
    return {_HOST + host.adapter.canonical(name): state[name] for part in include for name in parts[part]}


def weights_fingerprint(host: Host) -> str:
    """SHA-256 over names, shapes, types and bytes of the host's parameters, grafts and classification head left out."""
    digest = hashlib.sha256()
    head = set(host.adapter.parts(host.core).get("head", ()))
    with with_originals(host.core):
        parameters = list(host.core.named_parameters())
    for name, parameter in parameters:
        if not is_graft(name) and name not in head:
            value = parameter.detach().cpu().contiguous()
            digest.update(f"{host.adapter.canonical(name)} {tuple(value.shape)} {value.dtype}".encode())
            digest.update(value.view(torch.uint8).numpy().tobytes() if value.dim() else repr(value.item()).encode())
    return digest.hexdigest()


def load_grafts(model: nn.Module, path: str | os.PathLike[str], *, check_fingerprint: bool = True) -> GraftReport:
    """Graft `model` as the file says and load the values; included parts of the host are overwritten.

    Everything is checked before anything is changed.

    Raises:
        GraftFileError: the file is damaged, of a newer format, or made for another host; or the model has grafts of
            these names already.
    """
    file = Path(path)
    manifest, tensors = read_graft_file(file)
    host = find_host(model)
    _check_host(file, manifest, host, check_fingerprint)
    placements: list[Placement] = []
    for entry in manifest.entries:
        placements.append(_placement(file, host, entry, placements))
    report = describe(host, placements, parse(_spec(manifest.entries)))
    included = _host_state(file, host, tensors)
    _check_tensors(file, host, placements, tensors)
    for placement, graft in zip(placements, install(host, placements), strict=True):
        prefix = _tensor_prefix(host, placement.target, placement.instance)
        graft.load_state_dict({name[len(prefix) :]: t for name, t in tensors.items() if name.startswith(prefix)})
    with torch.no_grad():
        for name, value in included.items():
            value.copy_(tensors[name])
    return report


def read_graft_file(file: Path) -> tuple[GraftManifest, dict[str, Tensor]]:
    """The manifest and the tensors of a graft file.

    Raises:
        GraftFileError: it is missing, damaged, no graft file, or of a newer format.
    """
    try:
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping
    except FileNotFoundError:
        raise GraftFileError(f"{file}: there is no such file") from None
    except (SafetensorError, OSError) as error:
        raise GraftFileError(f"{file} is damaged or no safetensors file ({error}); save the grafts again") from None
    if KEY not in metadata:
        raise GraftFileError(f"{file} is a safetensors file without grafts (attngraft.save_grafts writes graft files)")
    return parse_manifest(metadata[KEY], file=file), tensors


def _check_host(file: Path, manifest: GraftManifest, host: Host, check_fingerprint: bool) -> None:
    if manifest.host.adapter != host.adapter.name:
        raise GraftFileError(
            f"{file} was made for a host of {manifest.host.adapter}, and this model is one of {host.adapter.name}"
        )
    sites, here = manifest.host.architecture["sites"], host.architecture()["sites"]
    if len(sites) != len(here):
        raise GraftFileError(f"{file} was made for a host with {len(sites)} sites, and this model has {len(here)}")
    for theirs, ours in zip(sites, here, strict=True):
        if list(theirs) != list(ours):
            raise GraftFileError(f"{file} was made for another size of host: site {theirs} there is {ours} here")
    fingerprint = manifest.host.fingerprint
    if check_fingerprint and fingerprint and fingerprint != weights_fingerprint(host):
        raise GraftFileError(
            f"{file} was trained with other weights of this host; load those first, or pass check_fingerprint=False"
        )


def _placement(file: Path, host: Host, entry: StoredGraft, placements: list[Placement]) -> Placement:
    """Where a graft of the file goes, beside those that are placed already."""
    name, hook_point, instance = entry.graft, cast(HookPoint, entry.stage), entry.instance
    graft_type = graft_types().get(name)
    if graft_type is None:
        raise GraftFileError(
            f"{file} holds a graft {name!r}, which is not registered; import the package that registers it, then load"
        )
    try:
        options = build_options(graft_type, dict(entry.options))
    except (TypeError, ValueError) as error:
        raise GraftFileError(
            f"{file}: an entry of its manifest cannot be used, {instance!r} at {entry.site!r}: {error}"
        ) from None
    site = next((site for site in host.sites if site.path == entry.site), None)
    if site is None or hook_point not in site.targets:
        raise GraftFileError(f"{file}: this host has no site {entry.site!r} with hook point {hook_point!r}")
    if hook_point not in graft_type.hook_points(options):
        raise GraftFileError(
            f"{file}: with the options that {instance} has at {site.path}, it does not stand at hook point {hook_point!r}"
        )
    refusal = graft_type.refusal(site.geometry, hook_point, options)
    if refusal:
        raise GraftFileError(f"{file}: {name} cannot stand at {site.path}: {refusal}")
    if any(instance == other.instance and site.targets[hook_point] == other.target for other in placements):
        raise GraftFileError(f"{file} holds the graft {instance!r} at {site.path} twice; save the grafts again")
    if conflict := in_the_way(host, site, hook_point, placements):
        raise GraftFileError(f"{file}: {conflict}")
    module = host.module(site.targets[hook_point])
    if instance in getattr(module, "grafts", {}):
        raise GraftFileError(
            f"{file}: the model has a graft {instance!r} at {site.path} already; attngraft.ungraft it first"
        )
    where = Where("patterns", patterns=(site.path,))
    return Placement(site, hook_point, Term(name, options, where), instance)


def _check_tensors(file: Path, host: Host, placements: list[Placement], tensors: Mapping[str, Tensor]) -> None:
    expected: dict[str, torch.Size] = {}
    for placement in placements:
        with torch.device("meta"):
            state = build(placement).state_dict()
        prefix = _tensor_prefix(host, placement.target, placement.instance)
        expected.update((prefix + name, tensor.shape) for name, tensor in state.items())
    stored = {name: tensor.shape for name, tensor in tensors.items() if not name.startswith(_HOST)}
    problems = [f"lacks {name}" for name in expected if name not in stored]
    problems += [f"has {name}, which nothing takes" for name in stored if name not in expected]
    problems += [
        f"has {name} of shape {tuple(stored[name])} where {tuple(shape)} fits"
        for name, shape in expected.items()
        if name in stored and stored[name] != shape
    ]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise GraftFileError(f"{file} does not fit its own manifest: it {problems[0]}{more}; save the grafts again")


def _host_state(file: Path, host: Host, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The host's parameters and buffers that the file includes, by the file's names."""
    own = {_HOST + host.adapter.canonical(name): value for name, value in host.core.state_dict().items()}
    included = [name for name in tensors if name.startswith(_HOST)]
    for name in included:
        if name not in own:
            raise GraftFileError(f"{file} includes {name[len(_HOST) :]}, which this model does not have")
        if own[name].shape != tensors[name].shape:
            raise GraftFileError(
                f"{file} includes {name[len(_HOST) :]} of shape {tuple(tensors[name].shape)}, and this model's is "
                f"{tuple(own[name].shape)}; make the model with as many classes as the file's"
            )
    return {name: own[name] for name in included}
