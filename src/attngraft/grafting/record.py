"""Recording named tensors while a model runs: attention maps, heads, gates. The model's outputs stay what they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor, nn

from attngraft.anatomy import STAGES, Graft, GraftedModule, Listener
from attngraft.errors import GraftSpecError
from attngraft.grafting.apply import enrich, restore
from attngraft.grafting.where import near_paths, parse_where
from attngraft.hosts import Host, find_host


class Recording(Mapping[str, Mapping[str, Tensor]]):
    """What was recorded: `recording["blocks.3.attn"]["weights"]` is the tensor of the last call.

    | name | shape | what |
    |---|---|---|
    | `weights` | (B, H, Nq, Nk) | the attention map after softmax and weights grafts, before dropout |
    | `heads` | (B, H, Nq, dv) | what enters the output projection |
    | `tokens` | (B, Nq, C) | after the output projection and token grafts |
    | `attn.end`, `mlp.front`, `mlp.mid`, `mlp.end` | (B, N, C) or (B, H, W, C) | what leaves that stage |
    | `<instance>.<name>` | | what a graft offers: `horizontal.alpha`, `vertical.beta`, `cb.context`, `se.gate` ... |
    | `latents_to_tokens` | (B, H, M, N) | BiXT's cross-attention: where each latent looks among the tokens (rows sum to 1) |
    | `tokens_to_latents` | (B, H, N, M) | the same for tokens, over the latents |

    B counts windows where the host has them.
    """

    def __init__(self) -> None:
        self._calls: dict[str, dict[str, list[Tensor]]] = {}

    def add(self, site: str, name: str, tensor: Tensor) -> None:
        """Keep one tensor."""
        self._calls.setdefault(site, {}).setdefault(name, []).append(tensor)

    def calls(self, site: str, name: str) -> list[Tensor]:
        """The tensors of every call, oldest first (a shared module is called several times in one forward)."""
        return list(self._calls[site][name])

    def clear(self) -> None:
        """Forget everything recorded so far."""
        self._calls.clear()

    def __getitem__(self, site: str) -> Mapping[str, Tensor]:
        if site not in self._calls:
            recorded = ", ".join(self._calls) or "nothing; run the model inside the with-block"
            raise KeyError(f"nothing was recorded at {site!r}; recorded: {recorded}")
        return {name: tensors[-1] for name, tensors in self._calls[site].items()}

    def __iter__(self) -> Iterator[str]:
        return iter(self._calls)

    def __len__(self) -> int:
        return len(self._calls)


@contextmanager
def record(
    model: nn.Module, names: Iterable[str] | None = None, *, where: str = "all", detach: bool = True
) -> Iterator[Recording]:
    """Record named tensors of `model`, grafted or not, while the block runs.

        with attngraft.record(model, ["weights"], where="blocks.10-11") as recording:
            model(images)
        recording["blocks.11.attn"]["weights"]  # (B, H, N, N), also where the host uses a fused kernel

    Outputs do not change: a fused host computes its map beside the fused kernel, so that a map is held in memory that the
    model itself never holds. On leaving, listeners are removed and modules without grafts get their own class back.

    Args:
        names: what to keep (see `Recording`); all offered tensors by default.
        where: which sites, as in a graft specification.
        detach: keep tensors without their graph; with False gradients can be taken through them.

    Raises:
        HostError: no adapter knows the model, or it is wrapped.
        GraftSpecError: `where` matches no site.
    """
    host = find_host(model)
    recording = Recording()
    wanted = None if names is None else frozenset([names] if isinstance(names, str) else names)
    places = list(_places(host, where))
    enriched = [place.module for place in places if place.carries and not isinstance(place.module, GraftedModule)]
    heard: list[tuple[Any, Listener | None]] = []
    try:
        for module in enriched:
            enrich(module, host.adapter)
        for point, site, prefix, elsewhere in _tap_points(places):
            before = point.listener
            heard.append((point, before))
            point.listener = partial(_keep, recording, wanted, elsewhere, detach, site, prefix, before)
        yield recording
    finally:
        for point, before in reversed(heard):
            point.__dict__.pop("listener", None)
            if before is not None:
                point.listener = before
        for module in enriched:
            if isinstance(module, GraftedModule) and not module.in_use:  # unless somebody grafted in the meantime
                restore(module)


def _keep(
    recording: Recording,
    wanted: frozenset[str] | None,
    elsewhere: frozenset[str],
    detach: bool,
    site: str,
    prefix: str,
    before: Listener | None,
    name: str,
    tensor: Tensor,
) -> None:
    """Keep what was asked for, and hand it on to a recording that was under way already."""
    if name not in elsewhere and (wanted is None or prefix + name in wanted):
        recording.add(site, prefix + name, tensor.detach() if detach else tensor)
    if before is not None:
        before(name, tensor)


class _Place(NamedTuple):
    """A module that offers tensors of a chosen site."""

    module: Any
    site: str  #: its path
    elsewhere: frozenset[str]  #: stages that the site's other modules carry, or none
    carries: bool  #: whether grafts can stand in it; otherwise it offers what it offers as it is


def _places(host: Host, where: str) -> Iterator[_Place]:
    """Every module that carries a stage of a chosen site, or is a tap of it."""
    try:
        choice = parse_where(where)
    except ValueError as error:
        raise GraftSpecError(f"where: {error}") from None
    paths = [site.path for site in host.sites]
    for pattern in choice.unmatched(paths):
        raise GraftSpecError(f"{pattern!r} matches no site; near are {', '.join(near_paths(pattern, paths))}")
    for index in choice.select(paths):
        site = host.sites[index]
        carriers = set(site.carriers.values())
        for path in dict.fromkeys((*site.carriers.values(), *site.taps.values())):
            elsewhere = frozenset(stage for stage in STAGES if site.carriers.get(stage) != path)
            yield _Place(host.module(path), site.path, elsewhere, path in carriers)


def _tap_points(places: list[_Place]) -> Iterator[tuple[Any, str, str, frozenset[str]]]:
    """(what offers tensors, site's path, prefix of their names, names not to listen to): the modules, which speak for the
    stages that they carry, and the grafts that stand in them at these."""
    for place in places:
        yield place.module, place.site, "", place.elsewhere
        for name, graft in place.module.grafts.items() if place.carries else ():
            if isinstance(graft, Graft) and graft.stage not in place.elsewhere:
                yield graft, place.site, f"{name}.", frozenset()
