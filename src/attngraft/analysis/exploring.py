"""Where every place of one image looks, layer by layer, in numbers that a page can hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from attngraft.attention import AttentionGeometry
from attngraft.errors import RecordError, UsageError
from attngraft.hosts import find_host
from attngraft.recording.attention_maps import normalized_coordinates, tokens_to_map
from attngraft.recording.measures import entropy, windowed_distance
from attngraft.recording.record import record
from attngraft.recording.recording import FILTER_NDIM, Recording
from attngraft.recording.reductions import REDUCTIONS, TokenLayout

#: how the numbers of a layer are to be read: see `Layer.numbers`
Kind = Literal["maps", "filters", "latents"]

#: names of what a site offers that are looks of places at places: what a graft offers stands behind its name and a dot
_MAPS = frozenset({"weights", "inverse_weights"})
_LATENTS = ("latents_to_tokens", "tokens_to_latents")

STEPS = 127  #: of a signed byte
_TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True, kw_only=True)
class Squeezed:
    """Numbers as signed bytes b: (b / 127)^2 largest, with the sign of b, so that small ones keep their digits."""

    bytes: Tensor  #: int8
    largest: float

    @classmethod
    def of(cls, numbers: Tensor) -> Squeezed:
        """
        Raises:
            RecordError: some are NaN or infinite.
        """
        largest = float(numbers.abs().max()) if numbers.numel() else 0.0
        if not math.isfinite(largest):
            raise RecordError("some of its numbers are NaN or infinite")
        share = numbers.float() / (largest or 1.0)
        return cls(bytes=(share.sign() * share.abs().sqrt() * STEPS).round().to(torch.int8).cpu(), largest=largest)

    def numbers(self) -> Tensor:
        """What they stood for, to the precision that was kept."""
        share = self.bytes.float() / STEPS
        return share.sign() * share.square() * self.largest


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One layer's looks at one image.

    | kind | `numbers`, shapes | |
    |---|---|---|
    | maps | (W, H, N, N) | of each window: its tokens' rows; W = 1 where there are no windows |
    | filters | (H, K, rows, columns) | of each place: its k x k neighborhood, offsets row by row |
    | latents | (H, M, N), (H, N, M) | where latents look among the tokens, tokens among the latents; None: they do not |
    """

    site: str  #: and, behind a colon, what it is where it is not the attention map itself
    kind: Kind
    numbers: tuple[Squeezed | None, ...]
    heads: int
    places: Tensor  #: (rows, columns): which token stands at each place, counted over windows
    prefix: tuple[str, ...]  #: names of the leading tokens
    entropy: tuple[float, ...]  #: by head, mean over the rows, nats, without filling; none for what is no distribution
    ceiling: float  #: largest entropy that there can be, mean over the rows
    distance: tuple[float, ...]  #: the same, in parts of the map's sides; none for latents


@dataclass(frozen=True, kw_only=True)
class Explored:
    """Of one model and one image."""

    layers: list[Layer]
    skipped: dict[str, str]  #: sites that attend but cannot be shown, with the reason


def explored(model: nn.Module, image: Tensor, *, sites: str = "all") -> Explored:
    """What `model` does with `image` (1, channels, H, W), as it takes it.

    The model runs once, in eval mode, and is left as it was.

    Raises:
        UsageError: not one image.
        RecordError: no chosen site looks at places of the image, or a site's numbers are not finite.
        HostError, GraftSpecError: as `attngraft.record`.
    """
    if image.ndim != 4 or len(image) != 1:
        raise UsageError(f"give one image (1, channels, H, W), not a tensor of {tuple(image.shape)}")
    model = getattr(model, "_orig_mod", model)  # torch.compile's wrapper holds the model itself
    geometries = {site.path: site.geometry for site in find_host(model).sites}
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad(), record(model, sites=sites) as recording:
            model(image)
    finally:
        for module in training:
            module.training = True
    layers, skipped = [], {}
    for site in recording:
        geometry = geometries[site]
        own_keys = isinstance(geometry, AttentionGeometry) and geometry.own_keys
        for kind, name in _looks(recording, site):
            try:
                layers.append(_LAYERS[kind](recording, site, name) if kind != "maps" or own_keys else _refused(site))
            except RecordError as error:
                skipped[site] = str(error)
    if not layers:
        why = "; ".join(skipped.values()) or "none of them attends"
        raise RecordError(f"no chosen site looks at places of the image: {why}")
    return Explored(layers=layers, skipped=skipped)


def _looks(recording: Recording, site: str) -> Iterator[tuple[Kind, str]]:
    """Kind and name of all that a site offers that may be looks of places at places."""
    names = list(recording[site])
    through_latents = [name for name in _LATENTS if name in names]
    if through_latents:
        yield "latents", through_latents[0]
        return
    for name in names:
        part = name.rpartition(".")[2]
        if part == "local_filters" and recording[site][name].ndim == FILTER_NDIM:
            yield "filters", name
        elif part in _MAPS:
            yield "maps", name


def _refused(site: str) -> Layer:
    raise RecordError(f"{site}: its queries are not its keys")


def _title(site: str, name: str) -> str:
    return f"{site}: {name}" if "." in name else site


def _of_maps(recording: Recording, site: str, name: str) -> Layer:
    recording.attention_map_for_query(site, (0, 0), name)  # says what is wrong if these are not the tokens of the map
    maps, places = recording[site][name].float().cpu(), recording.token_indices(site).cpu()
    windows, heads, tokens = maps.shape[:3]
    if windows != int(places.max()) // tokens + 1:
        raise RecordError(f"{site}: its {windows} sequences of {tokens} tokens are no windows of one map of the image")
    are_shares, prefix = name == "weights", recording.prefix(site)
    around, among = (
        TokenLayout(len(prefix), token_indices=places),
        "" if prefix else "patch_",
    )
    spread, most = (REDUCTIONS[f"{among}{name}"](maps, around).mean((0, 2)) for name in ("entropy", "ceiling"))
    return Layer(
        site=_title(site, name),
        kind="maps",
        numbers=(_squeezed(site, maps),),
        heads=heads,
        places=places,
        prefix=prefix,
        entropy=_floats(spread) if are_shares else (),
        ceiling=float(most.mean()),
        distance=_floats(_by_place(windowed_distance(maps, normalized_coordinates(places, tokens)), places))
        if are_shares
        else (),
    )


def _by_place(found: Tensor, places: Tensor) -> Tensor:
    """(H,) of numbers by row (W, H, N): the mean over what stands on the map."""
    return tokens_to_map(found.movedim(1, 2), places).mean((0, 1, 2))


def _of_filters(recording: Recording, site: str, name: str) -> Layer:
    filters = recording[site][name][0].float().cpu()
    heads, offsets, rows, columns = filters.shape
    spread, far = _of_shares(filters) if _are_shares(filters) else ((), ())
    *_, inside = _neighborhood(offsets, rows, columns)
    return Layer(
        site=_title(site, name),
        kind="filters",
        numbers=(_squeezed(site, filters),),
        heads=heads,
        places=torch.arange(rows * columns).view(rows, columns),
        prefix=(),
        entropy=spread,
        ceiling=float(inside.sum(0).log().mean()),
        distance=far,
    )


def _are_shares(filters: Tensor) -> bool:
    """Whether each place's filter is a distribution over its neighborhood."""
    sums = filters.sum(1)
    return bool((filters >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-2)


def _neighborhood(offsets: int, rows: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of each offset: rows and columns (K,) that it goes, and from which places (K, rows, columns) it stays on the map."""
    side = math.isqrt(offsets)
    down, across = (each.flatten() - side // 2 for each in torch.meshgrid(*[torch.arange(side)] * 2, indexing="ij"))
    row, column = (down[:, None] + torch.arange(rows))[:, :, None], (across[:, None] + torch.arange(columns))[:, None]
    return down, across, (row >= 0) & (row < rows) & (column >= 0) & (column < columns)


def _of_shares(filters: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Entropy and distance by head of filters (H, K, rows, columns), among the neighbors that are on the map."""
    _, offsets, rows, columns = filters.shape
    down, across, inside = _neighborhood(offsets, rows, columns)
    shares = filters * inside
    shares = shares / shares.sum(1, keepdim=True).clamp_min(_TINY)
    far = (down.abs() / rows + across.abs() / columns)[:, None, None]
    spread = torch.special.entr(shares).sum(1)
    return _floats(spread.mean((1, 2))), _floats((shares * far).sum(1).mean((1, 2)))


def _of_latents(recording: Recording, site: str, first: str) -> Layer:
    found = {name: recording[site][name][0].float().cpu() for name in _LATENTS if name in recording[site]}
    ours = found.get(_LATENTS[0])
    rows, columns = (
        recording.token_indices(site).shape if ours is None else recording.keys_on_map(site, first).shape[-2:]
    )
    return Layer(
        site=site,
        kind="latents",
        numbers=tuple(_squeezed(site, found[name]) if name in found else None for name in _LATENTS),
        heads=len(found[first]),
        places=torch.arange(rows * columns).view(rows, columns),
        prefix=(),
        entropy=() if ours is None else _floats(entropy(ours).mean(1)),
        ceiling=math.log(rows * columns),
        distance=(),
    )


def _squeezed(site: str, numbers: Tensor) -> Squeezed:
    try:
        return Squeezed.of(numbers)
    except RecordError as error:
        raise RecordError(f"{site}: {error}") from None


def _floats(numbers: Tensor) -> tuple[float, ...]:
    return tuple(float(each) for each in numbers)


_LAYERS: Mapping[Kind, Callable[[Recording, str, str], Layer]] = {
    "maps": _of_maps,
    "filters": _of_filters,
    "latents": _of_latents,
}
