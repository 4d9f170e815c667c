"""Graft files: the grafts' tensors as safetensors, with a manifest of the grafts and their host.

The manifest is JSON under the metadata key `attngraft`:

    {"format": 1, "version": "0.1.0", "host": {"adapter", "architecture", "fingerprint"}, "spec": "...",
     "entries": [{"site", "stage", "instance", "graft", "options"}], "include": ["head"]}

Tensors are named by module paths (`blocks.3.mlp.grafts.cb_s.scale`), included host parameters by `host.<name>`. The
metadata key `attngraft.sha256` holds a checksum of the manifest and the tensors; files of older releases have none.
Manifests are parsed strictly. Files of every past release must load: a new format gets a new number, and the readers of old
formats are not removed.
"""

import dataclasses
import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from attngraft._version import __version__
from attngraft.attention import Graft, HookPoint, is_graft, with_originals
from attngraft.errors import ConfigError, GraftFileError, GraftSpecError, check_types
from attngraft.files import write_atomically
from attngraft.grafting.apply import grafted, install, model_tensor
from attngraft.grafting.cost import describe, space_site
from attngraft.grafting.guard import exclusive, refuse_live_wrapper, surgery
from attngraft.grafting.placement import Placement, build, conflict_at, repeated_grafts
from attngraft.grafting.report import GraftReport
from attngraft.grafting.spec import MAX_TERMS, GraftSpec, Term, build_options, parse
from attngraft.grafting.where import Where
from attngraft.hosts import Host, check_module, find_host
from attngraft.mechanisms.registry import graft_types
from attngraft.opening import check_regular
from attngraft.strict import FieldError, read
from attngraft.suggest import cut, first_line, shortened
from attngraft.tensors import kind_of, meta_device, misfits, unshared

log = logging.getLogger(__name__)

KEY = "attngraft"
CHECKSUM = "attngraft.sha256"
FORMAT = 1
#: types of option values; str precedes float so that text that looks like a number remains text
Plain = bool | int | str | float | None
_HOST = "host."
_MODULE_DICT = frozenset(dir(nn.ModuleDict()))  #: names that a child of a ModuleDict cannot have


@dataclass(frozen=True, kw_only=True)
class StoredHost:
    """The host that the grafts belong to."""

    adapter: str
    architecture: Mapping[str, Any]  #: `HostAdapter.architecture`; must equal the model's when the file is loaded
    fingerprint: str | None  #: hash of the host's weights, which must match when the file is loaded; None: not checked

    def __post_init__(self) -> None:
        sites = self.architecture.get("sites")
        if not isinstance(sites, list | tuple) or not all(isinstance(site, list | tuple) for site in sites):
            raise FieldError("architecture.sites", "must be a list of lists: path, kind and widths of every site")


@dataclass(frozen=True, kw_only=True)
class StoredGraft:
    """One graft of the file."""

    site: str  #: path of the site in the host
    stage: str  #: hook point
    instance: str  #: instance name at the site (`cb`, `cb_2`)
    graft: str  #: registered name
    options: Mapping[str, Plain]

    def __post_init__(self) -> None:
        if not self.instance.isidentifier() or self.instance in _MODULE_DICT:
            raise FieldError("instance", f"must be a valid module name, got {self.instance!r}")


@dataclass(frozen=True, kw_only=True)
class GraftManifest:
    """Contents of a graft file other than tensors."""

    format: int
    version: str  #: version of attngraft that wrote the file
    host: StoredHost
    spec: str  #: specification that grafts a host in the same way
    entries: tuple[StoredGraft, ...]
    include: tuple[str, ...]  #: parts of the host whose weights the file also contains

    def __post_init__(self) -> None:
        if self.format < 1:
            raise FieldError("format", f"must be 1 or more, got {self.format}")

    def to_json(self) -> str:
        """Return the manifest as JSON, to be parsed by `parse_manifest`."""
        return json.dumps(dataclasses.asdict(self))


def parse_manifest(text: str, *, file: Path) -> GraftManifest:
    """Parse the manifest `text` from the metadata of `file`.

    Raises:
        GraftFileError: the manifest is damaged or has a newer format; the message names the file, the field and the remedy.
    """
    try:
        content = json.loads(text)
        if not isinstance(content, dict) or not isinstance(content.get("format"), int):
            raise ValueError("no format number")
        if content["format"] <= FORMAT:
            return read(GraftManifest, content, where=f"{file}: manifest")
    except ConfigError as error:
        raise GraftFileError(f"{error}; save the grafts again") from None
    except (ValueError, RecursionError) as error:
        raise GraftFileError(f"{file}: its manifest cannot be read ({error}); save the grafts again") from None
    raise GraftFileError(
        f"{file} has format {content['format']}, written by attngraft {cut(str(content.get('version', 'unknown')))}; this "
        f"is attngraft {__version__}, which reads formats up to {FORMAT}. Update attngraft: pip install -U attngraft"
    )


def save_grafts(
    model: nn.Module, path: str | os.PathLike[str], *, include: Iterable[str] = (), fingerprint: bool = False
) -> Path:
    """Write the grafts of `model` to a file, without the host's weights.

    Args:
        include: parts of the host to save as well: `head`, `norms`.
        fingerprint: also store a hash of the host's weights, which must match when the file is loaded.

    Raises:
        GraftSpecError: the model has no grafts or has a folded graft, or `include` names an unknown part.
    """
    check_module(model)
    check_types(path=(path, str, os.PathLike), include=(include, Iterable))
    with exclusive():  # another thread must not add or remove grafts meanwhile
        host = find_host(model)
        folded = next((name for _, _, name, graft in grafted(host.core) if graft.folded), None)
        if folded is not None:
            raise GraftSpecError(
                f"the graft {folded} was folded into the host's weights, which other hosts do not have; export the "
                "model without folding, then save its grafts"
            )
        content = graft_bytes(host, include=include, fingerprint=fingerprint)
    return write_atomically(Path(path), content)


def graft_bytes(host: Host, *, include: Iterable[str] = (), fingerprint: bool = False) -> bytes:
    """Return the contents of a graft file; a folded graft is saved without its folded part.

    Raises:
        GraftSpecError: see `save_grafts`, or a graft is wrapped in another module.
    """
    entries: list[StoredGraft] = []
    tensors: dict[str, Tensor] = {}
    sites = {(target, hook_point): site for site in host.sites for hook_point, target in site.targets.items()}
    for path, _, instance, graft in grafted(host.core):
        _check_unwrapped(f"{path}.grafts.{instance}", graft)
        site, options = sites[path, graft.hook_point].path, dict(graft.options)
        entries.append(
            StoredGraft(site=site, stage=graft.hook_point, instance=instance, graft=graft.kind, options=options)
        )
        prefix = _tensor_prefix(host, path, instance)
        tensors.update((prefix + name, tensor) for name, tensor in graft.state_dict().items())
    if not entries:
        raise GraftSpecError("nothing to save: the model has no grafts; add some with attngraft.graft(model, spec)")
    parts, chosen, state = host.adapter.parts(host.core), list(include), host.core.state_dict()
    unknown = [part for part in chosen if part not in parts]
    if unknown:
        raise GraftSpecError(f"include: unknown part {unknown[0]!r}; parts: {', '.join(parts)}")
    tensors.update({_HOST + host.adapter.canonical(name): state[name] for part in chosen for name in parts[part]})
    if empty := next((name for name, tensor in tensors.items() if tensor.is_meta), None):
        raise GraftSpecError(
            f"{empty} is on the meta device, without values; load weights or move the model to a device"
        )
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
    text, tensors = manifest.to_json(), unshared(tensors)
    return save(tensors, metadata={KEY: text, CHECKSUM: _checksum(text, tensors)})


def _checksum(manifest: str, tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the manifest and of the tensors' names, types, shapes and bytes."""
    digest = hashlib.sha256(json.dumps([manifest, len(tensors)]).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _check_unwrapped(path: str, graft: object) -> None:
    if not isinstance(graft, Graft):
        raise GraftSpecError(
            f"{path} is wrapped in {type(graft).__name__} (modules_to_save of PEFT), so its weights are in the adapter; "
            "save the adapter (model.save_pretrained), or graft after get_peft_model, without modules_to_save for grafts"
        )


def _spec(entries: Iterable[StoredGraft]) -> str:
    """Return one specification of all entries."""
    terms: dict[str, tuple[Term, list[str]]] = {}
    count: dict[str, int] = {}
    for entry in entries:
        term = Term(entry.graft, build_options(graft_types()[entry.graft], dict(entry.options)))
        key = f"{entry.site} {entry.stage} {term}"
        count[key] = count.get(key, 0) + 1  # a graft that occurs twice at one hook point needs two terms
        _, paths = terms.setdefault(f"{count[key]} {term}", (term, []))
        if entry.site not in paths:
            paths.append(entry.site)
    located = (replace(term, where=Where("patterns", patterns=tuple(paths))) for term, paths in terms.values())
    return str(GraftSpec(tuple(located)))


def _tensor_prefix(host: Host, target: str, instance: str) -> str:
    return f"{host.adapter.canonical(target)}.grafts.{instance}."


def weights_fingerprint(host: Host) -> str:
    """Return the SHA-256 of the host's parameters (names, shapes, types, bytes), without grafts and head."""
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
    """Graft `model` as the file specifies, and load the tensors of the file.

    Parts of the host that the file includes are overwritten. Everything is checked before anything is changed, and after any
    exception the model is as it was.

    Raises:
        GraftFileError: the file is damaged, of a newer format, or for another host, its tensors are not those that its
            manifest lists or not finite, or the model already has grafts of these names.
        UsageError: another thread is recording the model.
        HostError: the model is not supported or is wrapped.
    """
    check_module(model)
    check_types(path=(path, str, os.PathLike))
    file = Path(path)
    manifest, tensors = read_graft_file(file)
    with exclusive():
        host = find_host(model)
        _check_host(file, manifest, host, check_fingerprint)
        placements: list[Placement] = []
        by_site: dict[str, list[Placement]] = {}
        for entry in manifest.entries:
            earlier = by_site.setdefault(entry.site, [])
            if len(earlier) == MAX_TERMS:
                raise GraftFileError(f"{file}: {entry.site} has more than {MAX_TERMS} grafts; save the grafts again")
            earlier.append(_placement(file, host, entry, earlier))
            placements.append(earlier[-1])
        _check_names(file, manifest)
        report, repeated = describe(host, placements, parse(_spec(manifest.entries))), repeated_grafts(host, placements)
        included = _included(file, host, manifest, placements)
        _check_tensors(file, host, placements, included, tensors)
        refuse_live_wrapper(model, host.core)
        with surgery(host.core), _values_restored(included.values()):
            for placement, graft in zip(placements, install(host, placements), strict=True):
                prefix = _tensor_prefix(host, placement.target, placement.instance)
                graft.load_state_dict(
                    {name[len(prefix) :]: t for name, t in tensors.items() if name.startswith(prefix)}
                )
            with torch.no_grad():
                for name, value in included.items():
                    value.copy_(tensors[name])
            for warning in repeated:
                log.warning(warning)
    return report


@contextmanager
def _values_restored(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Restore the values of `tensors` if the block raises."""
    before = [(tensor, tensor.detach().clone()) for tensor in tensors]
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for tensor, value in before:
                tensor.copy_(value)
        raise


def read_graft_file(file: Path) -> tuple[GraftManifest, dict[str, Tensor]]:
    """Read the manifest and the tensors of a graft file.

    Raises:
        GraftFileError: the file is missing, damaged, not a graft file, or of a newer format, or the checksum does not match.
    """
    try:
        check_regular(file)
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - no mapping
    except FileNotFoundError:
        raise GraftFileError(f"{file}: no such file") from None
    except (SafetensorError, OSError) as error:
        raise GraftFileError(f"{file} is damaged or not a safetensors file ({error}); save the grafts again") from None
    if KEY not in metadata:
        raise GraftFileError(f"{file} is a safetensors file without grafts; attngraft.save_grafts writes graft files")
    manifest = parse_manifest(metadata[KEY], file=file)
    if CHECKSUM not in metadata:
        log.debug("%s has no checksum (attngraft %s)", file, manifest.version)
    elif _checksum(metadata[KEY], tensors) != metadata[CHECKSUM]:
        raise GraftFileError(
            f"{file} is damaged: its contents do not match their checksum; restore the file, or save the grafts again"
        )
    return manifest, tensors


def _check_host(file: Path, manifest: GraftManifest, host: Host, check_fingerprint: bool) -> None:
    if manifest.host.adapter != host.adapter.name:
        raise GraftFileError(
            f"{file} is for a {manifest.host.adapter} host, but this model is a {host.adapter.name} host; "
            "load it into a model of the family it was saved from"
        )
    stored, present = manifest.host.architecture["sites"], host.architecture()["sites"]
    if len(stored) != len(present):
        raise GraftFileError(
            f"{file} is for a host with {len(stored)} sites, but this model has {len(present)}; "
            "load it into the architecture it was saved from"
        )
    for theirs, ours in zip(stored, present, strict=True):
        if list(theirs) != list(ours):
            raise GraftFileError(
                f"{file} is for a host of another size: a site (path, kind, widths) is {list(theirs)} in the file, but "
                f"{list(ours)} in this model; load it into a model of the size it was saved from"
            )
    fingerprint = manifest.host.fingerprint
    if check_fingerprint and fingerprint and fingerprint != weights_fingerprint(host):
        raise GraftFileError(
            f"{file} was saved from a host with other weights; load those weights first, or pass check_fingerprint=False"
        )


def _placement(file: Path, host: Host, entry: StoredGraft, earlier: list[Placement]) -> Placement:
    """Return the placement of one entry, checked against the host and the earlier placements at its site."""
    name, hook_point, instance = entry.graft, cast(HookPoint, entry.stage), entry.instance
    graft_type = graft_types().get(name)
    if graft_type is None:
        raise GraftFileError(
            f"{file} contains a graft {name!r}, which is not registered; import the package that registers it, then load "
            "the file"
        )
    try:
        options = build_options(graft_type, dict(entry.options))
    except (TypeError, ValueError) as error:
        raise GraftFileError(
            f"{file}: invalid manifest entry for {instance!r} at {entry.site!r}: {error}; save the grafts again"
        ) from None
    site = next((site for site in host.sites if site.path == entry.site), None)
    if site is None or hook_point not in site.targets:
        raise GraftFileError(
            f"{file}: this host has no site {entry.site!r} with hook point {hook_point!r}; "
            "load it into the architecture it was saved from"
        )
    if hook_point not in graft_type.hook_points(options):
        raise GraftFileError(
            f"{file}: {instance} with its options at {site.path} does not use the hook point {hook_point!r}; "
            "save the grafts again"
        )
    refusal = graft_type.refusal(site.geometry, hook_point, options)
    if refusal:
        raise GraftFileError(f"{file}: {name} cannot be grafted at {site.path}: {refusal}")
    if any(instance == other.instance and site.targets[hook_point] == other.target for other in earlier):
        raise GraftFileError(f"{file} contains the graft {instance!r} at {site.path} twice; save the grafts again")
    if conflict := conflict_at(host, site, hook_point, earlier):
        raise GraftFileError(f"{file}: {conflict}")
    if instance in getattr(host.module(site.targets[hook_point]), "grafts", {}):
        raise GraftFileError(
            f"{file}: the model already has a graft {instance!r} at {site.path}; remove it first with attngraft.ungraft"
        )
    return Placement(site, hook_point, Term(name, options, Where("patterns", patterns=(site.path,))), instance)


def _check_names(file: Path, manifest: GraftManifest) -> None:
    """Check that the specification has the grafts of the entries; options of older files may be spelled differently."""
    try:
        named = {term.name for term in parse(manifest.spec).terms}
    except GraftSpecError as error:
        raise GraftFileError(f"{file}: invalid spec: {first_line(error)}; save the grafts again") from None
    if named != {entry.graft for entry in manifest.entries}:
        raise GraftFileError(
            f"{file}: its spec {cut(manifest.spec)} does not have the grafts of its entries; save the grafts again"
        )


def _check_tensors(
    file: Path,
    host: Host,
    placements: list[Placement],
    included: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
) -> None:
    """Check that `tensors` are those of the grafts and the `included` ones of the host, and that they are finite."""
    expected: dict[str, Tensor] = {}
    for placement in placements:
        with meta_device():
            state = build(placement).state_dict()
        prefix = _tensor_prefix(host, placement.target, placement.instance)
        dtype = model_tensor(host.module(placement.target), host.core).dtype
        expected.update(
            (prefix + name, tensor.to(dtype) if tensor.is_floating_point() else tensor)
            for name, tensor in state.items()
        )
    _check_shapes(file, included, {name: tensor for name, tensor in tensors.items() if name.startswith(_HOST)})
    stored = {name: tensor for name, tensor in tensors.items() if not name.startswith(_HOST)}
    shapes = {name: tensor.shape for name, tensor in expected.items()}
    if problems := misfits(stored, shapes, unknown="no graft uses"):
        raise GraftFileError(
            f"{file} does not match its own manifest: it {shortened(problems, 1)}; save the grafts again"
        )
    for name, tensor in tensors.items():
        wanted = (included if name.startswith(_HOST) else expected)[name]
        if kind_of(tensor) != kind_of(wanted):
            raise GraftFileError(
                f"{file}: {name} is of type {kind_of(tensor)}, but the model's of type {kind_of(wanted)}; save the grafts "
                "again"
            )
        if tensor.is_floating_point() and not tensor.to(wanted.dtype).float().isfinite().all():
            raise GraftFileError(
                f"{file}: {name} has values that are not finite in {wanted.dtype} (the training diverged, or the file is "
                "damaged); use an earlier file, or save the grafts again"
            )
        if name.endswith("running_var") and bool((tensor < 0).any()):
            raise GraftFileError(
                f"{file}: {name} has negative variances; use an earlier file, or save the grafts again"
            )


def _included(file: Path, host: Host, manifest: GraftManifest, placements: Iterable[Placement]) -> dict[str, Tensor]:
    """Return the host's parameters and buffers that the manifest includes, under their names in the file."""
    parts, state = host.adapter.parts(host.core), host.core.state_dict()
    unknown = [part for part in manifest.include if part not in parts]
    if unknown:
        raise GraftFileError(f"{file} includes {unknown[0]!r}, but the parts of a host are {', '.join(parts)}")
    replaced = tuple(  # not in the state dict of the model that was saved
        f"{each.target}.{child}."
        for each in placements
        if each.hook_point == "space"
        for child in space_site(host, each).detaches
    )
    names = (name for part in manifest.include for name in parts[part] if not name.startswith(replaced))
    return {_HOST + host.adapter.canonical(name): state[name] for name in names}


def _check_shapes(file: Path, included: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> None:
    """Check that the file has exactly the `included` tensors of the host."""
    for name in {**stored, **included}:
        bare = name[len(_HOST) :]
        if name not in included:
            raise GraftFileError(
                f"{file} includes {bare}, which is not one of the host's parts that its manifest includes, or which this "
                "model does not have; save the grafts again"
            )
        if name not in stored:
            raise GraftFileError(f"{file} lacks {bare}, a part that its manifest includes; save the grafts again")
        if included[name].shape != stored[name].shape:
            raise GraftFileError(
                f"{file} includes {bare} of shape {tuple(stored[name].shape)}, but this model's is "
                f"{tuple(included[name].shape)}; create the model with the same number of classes"
            )
