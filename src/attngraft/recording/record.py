"""Recording named tensors while a model runs: attention maps, heads, gates. The model's outputs stay what they are."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attngraft.attention import HOOK_POINTS, Geometry, Graft, GraftedModule, Recorder
from attngraft.errors import GraftSpecError
from attngraft.grafting.apply import patch, restore
from attngraft.grafting.where import near_paths, parse_where
from attngraft.hosts import Host, find_host
from attngraft.recording.recording import Recording
from attngraft.recording.token_coordinates import TokenCoordinates


@contextmanager
def record(
    model: nn.Module, what: Iterable[str] | None = None, *, sites: str = "all", detach: bool = True
) -> Iterator[Recording]:
    """Record named tensors of `model`, grafted or not, while the block runs.

        with attngraft.record(model, {"weights"}, sites="blocks.10-11") as recording:
            model(images)
        recording["blocks.11.attn"]["weights"]  # (B, H, N, N), also where the host uses a fused kernel

    Outputs do not change: a fused host computes its map beside the fused kernel, so that a map is held in memory that the
    model itself never holds. Inside the block nothing runs as compiled code (`torch.compile`), whoever compiled it and
    holds it; afterwards the same compiled code runs as before. On leaving, listeners are removed and modules without
    grafts get their own class back.

    Args:
        what: what to keep (see `Recording`): names, a graft's name for all that it offers, or `gates` for everything by
            which grafts weigh (HV's alpha and beta, gates, BiSA's lambda, CB_S's scale); all offered tensors by default. Of
            none (`()`) nothing is kept, and `Recording.offered` says what there is.
        sites: which sites, as in a graft specification.
        detach: keep tensors without their graph; with False gradients can be taken through them.

    Raises:
        HostError: no adapter knows the model, or it is wrapped.
        GraftSpecError: `sites` matches no site.
        RecordError: on leaving, if the model ran and no chosen site has something that was asked for.
    """
    host = find_host(getattr(model, "_orig_mod", model))  # torch.compile's wrapper holds the model itself
    places = list(_places(host, sites))
    chosen = {place.site for place in places}
    geometries = {site.path: site.geometry for site in host.sites if site.path in chosen}
    own = _own_images(host, geometries.values())
    standing = TokenCoordinates(geometries, None if own is None else (own[2], own[3]))
    recording = Recording(None if what is None else frozenset([what] if isinstance(what, str) else what), standing)
    patched = [place.module for place in places if place.carries and not isinstance(place.module, GraftedModule)]
    heard: list[tuple[Any, Recorder | None]] = []
    try:
        for module in patched:
            patch(module, host.adapter)
        for point, site, prefix, elsewhere in _tap_points(places):
            before = point.recorder
            heard.append((point, before))
            point.recorder = _Ear(recording, site, prefix, elsewhere, detach, before)
        with _eager(), _watched(host, standing, own):
            yield recording
    finally:
        for point, before in reversed(heard):
            point.__dict__.pop("recorder", None)
            if before is not None:
                point.recorder = before
        for module in patched:
            if isinstance(module, GraftedModule) and not module.in_use:  # unless somebody grafted in the meantime
                restore(module)
    recording.check()


def _eager() -> AbstractContextManager[Any]:
    """Without compiled code, whoever holds it: no recorder gets into it, and none of it is made again."""
    compiles = "torch._dynamo" in sys.modules  # which takes seconds to import, and without which nothing is compiled
    return torch.compiler.set_stance("force_eager") if compiles else nullcontext()


def _own_images(host: Host, chosen: Collection[Geometry]) -> torch.Size | None:
    """Shape (B, C, H, W) of images of the host's own size; None: it takes none, or no chosen site has a map of them."""
    if not any(geometry.on_a_map for geometry in chosen):
        return None
    devices = {parameter.device for parameter in host.core.parameters() if parameter.is_cuda}
    with torch.random.fork_rng(devices):  # examples are random, and a model may draw numbers while it is recorded
        first = host.adapter.example_inputs(host.core, batch=1)[0]
    return first.shape if first.ndim == 4 else None


@contextmanager
def _watched(host: Host, standing: TokenCoordinates, own: torch.Size | None) -> Iterator[None]:
    """The size of all images that go through the model is told, also where only a part of it is called
    (`forward_features`)."""
    if own is None:
        yield
        return

    def tell(module: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        """`module` is the model, or what embeds images."""
        for each in (*args, *given.values()):
            if isinstance(each, Tensor) and each.ndim == 4 and each.shape[1] == own[1]:
                standing.saw((each.shape[2], each.shape[3]))
                return
        standing.saw(None)

    of_images = (module for module in host.core.modules() if isinstance(module, nn.Conv2d))
    first: nn.Module | None = next((module for module in of_images if module.in_channels == own[1]), None)
    if first is None:  # patches are embedded by a linear layer
        first = next((child for child in host.core.children() if any(True for _ in child.parameters())), None)
    takes_images = [host.core] if first is None else [host.core, first]
    hooks = [module.register_forward_pre_hook(tell, with_kwargs=True) for module in takes_images]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@dataclass(frozen=True)
class _Ear:
    """Keeps what was asked for, and hands it on to a recording that was under way already."""

    recording: Recording
    site: str
    prefix: str  #: of the names: the graft's, with a dot
    elsewhere: frozenset[str]  #: names that this module says and another one means
    detach: bool
    before: Recorder | None

    def wants(self, name: str) -> bool:
        wanted = name not in self.elsewhere and self.recording.asks(self.site, self.prefix + name)
        return (self.before is not None and self.before.wants(name)) or wanted

    def __call__(self, name: str, tensor: Tensor) -> None:
        if name not in self.elsewhere and self.recording.asks(self.site, self.prefix + name):
            self.recording.add(self.site, self.prefix + name, tensor.detach() if self.detach else tensor)
        if self.before is not None:
            self.before(name, tensor)


class _Place(NamedTuple):
    """A module that offers tensors of a chosen site."""

    module: Any
    site: str  #: its path
    elsewhere: frozenset[str]  #: hook points that the site's other modules carry, or none
    carries: bool  #: whether grafts can stand in it; otherwise it offers what it offers as it is


def _places(host: Host, sites: str) -> Iterator[_Place]:
    """Every module that carries a hook point of a chosen site, or is a tap of it."""
    try:
        choice = parse_where(sites)
    except ValueError as error:
        raise GraftSpecError(f"sites: {error}") from None
    paths = [site.path for site in host.sites]
    for pattern in choice.unmatched(paths):
        raise GraftSpecError(f"{pattern!r} matches no site; near are {', '.join(near_paths(pattern, paths))}")
    for index in choice.select(paths):
        site = host.sites[index]
        targets = set(site.targets.values())
        for path in dict.fromkeys((*site.targets.values(), *site.record_tensors.values())):
            elsewhere = frozenset(
                hook_point
                for hook_point in HOOK_POINTS
                if path not in (site.targets.get(hook_point), site.record_tensors.get(hook_point))
            )
            yield _Place(host.module(path), site.path, elsewhere, path in targets)


def _tap_points(places: list[_Place]) -> Iterator[tuple[Any, str, str, frozenset[str]]]:
    """(what offers tensors, site's path, prefix of their names, names not to listen to): the modules, which speak for the
    hook points that they carry, and the grafts that stand in them at these."""
    for place in places:
        yield place.module, place.site, "", place.elsewhere
        for name, graft in place.module.grafts.items() if place.carries else ():
            if isinstance(graft, Graft) and graft.hook_point not in place.elsewhere:
                yield graft, place.site, f"{name}.", frozenset()
