"""Recording of named tensors while a model runs: attention maps, heads, gates."""

import sys
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attngraft.attention import HOOK_POINTS, Geometry, Graft, Recorder
from attngraft.errors import GraftSpecError, check_types
from attngraft.grafting.apply import patch, restore_unused
from attngraft.grafting.guard import exclusive, live_recording
from attngraft.grafting.where import parse_where, unmatched_hint
from attngraft.hosts import Host, check_module, find_host
from attngraft.recording.recording import Recording
from attngraft.recording.token_coordinates import TokenCoordinates
from attngraft.suggest import quoted


@contextmanager
def record(
    model: nn.Module, what: Iterable[str] | None = None, *, sites: str = "all", detach: bool = True
) -> Iterator[Recording]:
    """Record named tensors of `model`, grafted or not, within the `with` block.

        with attngraft.record(model, {"weights"}, sites="blocks.10-11") as recording:
            model(images)
        recording["blocks.11.attn"]["weights"]  # (B, H, N, N), also where the host uses a fused kernel

    Outputs do not change: if the host uses a fused kernel, the attention map is computed in addition, which needs more
    memory. Compiled code (`torch.compile`) runs eagerly inside the block. On exit, recorders are removed and modules
    without grafts get their original class back. Only forward passes of the thread that entered the block are recorded;
    recordings of one model, in one thread or several, may overlap and end in any order.

    Args:
        what: names of the tensors to keep (see `Recording`), the name of a graft for all of its tensors, or `gates` for
            all factors by which grafts weight tensors (HV's alpha and beta, gates, BiSA's lambda, CB_S's scale); default:
            all tensors. With an empty collection no tensors are kept, but `Recording.available` lists their names.
        sites: sites to record, as in a graft specification.
        detach: detach tensors from the autograd graph; False keeps the graph, for gradients through the tensors.

    Raises:
        HostError: no adapter matches the model, or the model is wrapped.
        GraftSpecError: `sites` matches no site.
        RecordError: on exit, if the model ran and none of the chosen sites has a requested tensor.
    """
    check_module(model)
    check_types(what=(what, Iterable, None), sites=(sites, str))
    with ExitStack() as stack:
        with exclusive():
            host = find_host(getattr(model, "_orig_mod", model))  # unwrap torch.compile's module
            recording = stack.enter_context(_attached(host, what, sites, detach))
        yield recording
    recording.check()


@contextmanager
def _attached(host: Host, what: Iterable[str] | None, sites: str, detach: bool) -> Iterator[Recording]:
    """Attach recorders to the host's modules within the block."""
    sources = list(_sources(host, sites))
    chosen = {source.site for source in sources}
    geometries = {site.path: site.geometry for site in host.sites if site.path in chosen}
    default_shape = _default_image_shape(host, geometries.values())
    coordinates = TokenCoordinates(geometries, None if default_shape is None else (default_shape[2], default_shape[3]))
    recording = Recording(None if what is None else frozenset([what] if isinstance(what, str) else what), coordinates)
    points: list[Any] = []
    try:
        with live_recording(host.core):
            for source in sources:
                if source.is_target:
                    patch(source.module, host.adapter)
                added = [(source.module, "", source.excluded)]  # point, prefix of its names, hook points to skip
                for name, graft in source.module.grafts.items() if source.is_target else ():
                    if isinstance(graft, Graft) and graft.hook_point not in source.excluded:
                        added.append((graft, f"{name}.", frozenset()))
                for point, prefix, excluded in added:
                    points.append(point)
                    _attach(point, _SiteRecorder(recording, source.site, prefix, excluded, detach))
            with _eager(), _track_image_size(host, coordinates, default_shape):
                yield recording
    finally:
        with exclusive():
            for point in points:
                _detach(point, recording)
            restore_unused(host.core)


def _attach(point: Any, recorder: "_SiteRecorder") -> None:
    present = point.recorder
    point.recorder = recorder if present is None else _Recorders((*_each(present), recorder))


def _detach(point: Any, recording: Recording) -> None:
    """Remove the recorders of `recording` from `point`."""
    present = point.__dict__.pop("recorder", None)
    left = [each for each in _each(present) if getattr(each, "recording", None) is not recording]
    if left:
        point.recorder = left[0] if len(left) == 1 else _Recorders(left)


def _each(recorder: Recorder | None) -> tuple[Recorder, ...]:
    return recorder if isinstance(recorder, _Recorders) else () if recorder is None else (recorder,)


_eager_blocks = 0  #: number of recordings in which compiled code runs eagerly
_eager_stance = ExitStack()


@contextmanager
def _eager() -> Iterator[None]:
    """Run compiled code, which contains no recorders, eagerly within the block."""
    global _eager_blocks
    # if dynamo is not imported, nothing is compiled; importing it here would take seconds
    if "torch._dynamo" not in sys.modules:
        yield
        return
    with exclusive():
        if not _eager_blocks:  # the stance is global, and blocks of several threads may overlap
            _eager_stance.enter_context(torch.compiler.set_stance("force_eager"))
        _eager_blocks += 1
    try:
        yield
    finally:
        with exclusive():
            _eager_blocks -= 1
            if not _eager_blocks:
                _eager_stance.close()


def _default_image_shape(host: Host, chosen: Collection[Geometry]) -> torch.Size | None:
    """Return the shape (B, C, H, W) of the host's default images.

    Returns None if the host takes no images, or no chosen site has a map.
    """
    if not any(geometry.on_a_map for geometry in chosen):
        return None
    devices = {parameter.device for parameter in host.core.parameters() if parameter.is_cuda}
    with torch.random.fork_rng(devices):  # example inputs are random; recording must not change the random state
        first = host.adapter.example_inputs(host.core, batch=1)[0]
    return first.shape if first.ndim == 4 else None


@contextmanager
def _track_image_size(host: Host, coordinates: TokenCoordinates, default_shape: torch.Size | None) -> Iterator[None]:
    """Set `coordinates.image_size` before each forward pass in the block.

    This includes calls of only a part of the model, such as `forward_features`.
    """
    if default_shape is None:
        yield
        return
    channels, thread = default_shape[1], threading.get_ident()

    def set_size(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if threading.get_ident() != thread:
            return
        for each in (*args, *kwargs.values()):
            if isinstance(each, Tensor) and each.ndim == 4 and each.shape[1] == channels:
                coordinates.image_size = (each.shape[2], each.shape[3])
                return
        coordinates.image_size = None

    convolutions = (module for module in host.core.modules() if isinstance(module, nn.Conv2d))
    first: nn.Module | None = next((module for module in convolutions if module.in_channels == channels), None)
    if first is None:  # patches are embedded by a linear layer instead
        first = next((child for child in host.core.children() if any(True for _ in child.parameters())), None)
    modules = [host.core] if first is None else [host.core, first]
    hooks = [module.register_forward_pre_hook(set_size, with_kwargs=True) for module in modules]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@dataclass(frozen=True, eq=False)
class _SiteRecorder:
    """Recorder of one module or graft, for forward passes of the thread that created it."""

    recording: Recording
    site: str
    prefix: str  #: prefix of recorded names: the graft's instance name and a dot, or "" for the module itself
    excluded: frozenset[str]  #: hook points of the site that belong to other modules
    detach: bool
    thread: int = field(default_factory=threading.get_ident)

    def wants(self, name: str) -> bool:
        if name in self.excluded or threading.get_ident() != self.thread:
            return False
        return self.recording.is_requested(self.site, self.prefix + name)

    def __call__(self, name: str, tensor: Tensor) -> None:
        if self.wants(name):
            self.recording.add(self.site, self.prefix + name, tensor.detach() if self.detach else tensor)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Return None, the recorder of a copied module: copies are not recorded."""


class _Recorders(tuple[Recorder, ...]):
    """Several recorders of one module, in the order in which they were attached."""

    def wants(self, name: str) -> bool:
        wanted = [each.wants(name) for each in self]  # no short-circuiting: `wants` registers the name
        return any(wanted)

    def __call__(self, name: str, tensor: Tensor) -> None:
        for each in self:
            each(name, tensor)

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Return None, as each of the recorders does."""


class _Source(NamedTuple):
    """A module that records tensors of a chosen site."""

    module: Any
    site: str  #: path of the site
    excluded: frozenset[str]  #: hook points that belong to other modules of the site
    is_target: bool  #: whether grafts can be attached to the module; otherwise, its tensors are only recorded


def _sources(host: Host, sites: str) -> Iterator[_Source]:
    """Yield every module with a hook point or a recorded tensor of a chosen site."""
    try:
        choice = parse_where(sites)
    except ValueError as error:
        raise GraftSpecError(f"sites: {error}") from None
    for pattern in choice.unmatched(host.sites):
        raise GraftSpecError(f"{quoted(pattern)} matches no site; {unmatched_hint(pattern, host.sites)}")
    for index in choice.select(host.sites):
        site = host.sites[index]
        targets = set(site.targets.values())
        for path in dict.fromkeys((*site.targets.values(), *site.record_tensors.values())):
            excluded = frozenset(
                hook_point
                for hook_point in HOOK_POINTS
                if path not in (site.targets.get(hook_point), site.record_tensors.get(hook_point))
            )
            yield _Source(host.module(path), site.path, excluded, path in targets)
