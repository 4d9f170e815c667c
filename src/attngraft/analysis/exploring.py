"""Where every place of one image looks, layer by layer, in numbers that a page can hold."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from attngraft.analysis.measures import entropy
from attngraft.analysis.record import record
from attngraft.analysis.recording import FILTERS, Recording
from attngraft.errors import RecordError, UsageError

#: how the numbers of a layer are to be read: see `Layer.numbers`
Kind = Literal["maps", "filters", "latents"]

#: names of what a site offers that are looks of places at places: what a graft offers stands behind its name and a dot
_MAPS = frozenset({"weights", "inverse_weights"})
_LATENTS = ("latents_to_tokens", "tokens_to_latents")

STEPS = 127  #: of a signed byte


@dataclass(frozen=True, kw_only=True)
class Squeezed:
    """Numbers as signed bytes b: (b / 127)^2 largest, with the sign of b, so that small ones keep their digits."""

    bytes: Tensor  #: int8
    largest: float

    @classmethod
    def of(cls, numbers: Tensor) -> Squeezed:
        largest = float(numbers.abs().max()) if numbers.numel() else 0.0
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
    | latents | (H, M, N), and (H, N, M) unless tokens do not attend | where latents look, where tokens look |
    """

    site: str  #: and, behind a colon, what it is where it is not the attention map itself
    kind: Kind
    numbers: tuple[Squeezed, ...]
    heads: int
    places: Tensor  #: (rows, columns): which token stands at each place, counted over windows
    prefix: tuple[str, ...]  #: names of the leading tokens
    entropy: tuple[float, ...]  #: by head, mean over the rows, nats; none for what is no distribution over what is seen
    ceiling: float  #: largest entropy that there can be
    distance: tuple[float, ...]  #: by head, mean over places, in parts of the map's sides; none for latents


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
        RecordError: no chosen site looks at places of the image.
        HostError, GraftSpecError: as `attngraft.record`.
    """
    if image.ndim != 4 or len(image) != 1:
        raise UsageError(f"give one image (1, channels, H, W), not a tensor of {tuple(image.shape)}")
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
        found = 0
        for name in recording[site]:
            try:
                layer = _layer(recording, site, name)
            except RecordError as error:
                skipped[site] = str(error)
                continue
            if layer is not None:
                layers.append(layer)
                found += 1
        if found:
            skipped.pop(site, None)
    if not layers:
        why = "; ".join(skipped.values()) or "none of them attends"
        raise RecordError(f"no chosen site looks at places of the image: {why}")
    return Explored(layers=layers, skipped=skipped)


def _layer(recording: Recording, site: str, name: str) -> Layer | None:
    """What a site offers under `name`, or None where that is no look of places at places."""
    tensor, part = recording[site][name], name.rpartition(".")[2]
    title = site if name == part else f"{site}: {name}"
    if name == _LATENTS[0]:
        return _of_latents(recording, site)
    if part == "local_filters" and tensor.ndim == FILTERS:
        return _of_filters(tensor[0], title)
    if part not in _MAPS or _LATENTS[0] in recording[site]:
        return None
    if tensor.shape[-1] != tensor.shape[-2]:
        raise RecordError(f"{site}: its queries are not its keys")
    return _of_maps(tensor, recording.places(site), recording.prefix(site), title, rows_sum_to_1=part == "weights")


def _of_maps(maps: Tensor, places: Tensor, prefix: tuple[str, ...], title: str, *, rows_sum_to_1: bool) -> Layer:
    windows, heads, tokens = maps.shape[:3]
    if int(places.max()) >= windows * tokens:
        raise RecordError(f"{title}: {windows} windows of {tokens} tokens do not cover a map of {tuple(places.shape)}")
    spread = entropy(maps).flatten(2).mean((0, 2)) if rows_sum_to_1 else ()
    return Layer(
        site=title,
        kind="maps",
        numbers=(Squeezed.of(maps),),
        heads=heads,
        places=places,
        prefix=prefix,
        entropy=tuple(float(each) for each in spread),
        ceiling=math.log(tokens),
        distance=_distance(maps, places) if rows_sum_to_1 else (),
    )


def _distance(maps: Tensor, places: Tensor) -> tuple[float, ...]:
    """Mean over places of sum_j a_ij |p_i - p_j|_1 over the tokens of their window that stand somewhere, among which rows
    sum to 1 again, in parts of the map's sides (CB, Fig. 5b)."""
    rows, columns = places.shape
    tokens = maps.shape[-1]
    window, slot = places.flatten() // tokens, places.flatten() % tokens
    down = torch.arange(rows).repeat_interleave(columns) / rows
    across = torch.arange(columns).repeat(rows) / columns
    far = maps.new_zeros(maps.shape[1])
    for each in range(len(maps)):
        here = window == each
        at = torch.stack([down[here], across[here]], 1).to(maps)
        own = maps[each][:, slot[here]][:, :, slot[here]]
        far += torch.einsum("hij,ij->h", own / own.sum(-1, keepdim=True), torch.cdist(at, at, p=1))
    return tuple(float(each) / (rows * columns) for each in far)


def _of_filters(filters: Tensor, title: str) -> Layer:
    heads, offsets, rows, columns = filters.shape
    side = math.isqrt(offsets)
    reach = torch.arange(offsets, device=filters.device)
    far = (reach // side - side // 2).abs() / rows + (reach % side - side // 2).abs() / columns
    positive = filters.clamp_min(0)
    shares = positive / positive.sum(1, keepdim=True).clamp_min(torch.finfo(filters.dtype).tiny)
    return Layer(
        site=title,
        kind="filters",
        numbers=(Squeezed.of(filters),),
        heads=heads,
        places=torch.arange(rows * columns).view(rows, columns),
        prefix=(),
        entropy=tuple(float(each) for each in torch.special.entr(shares).sum(1).mean((1, 2))),
        ceiling=math.log(offsets),
        distance=tuple(float(each) for each in (shares * far[:, None, None]).sum(1).mean((1, 2))),
    )


def _of_latents(recording: Recording, site: str) -> Layer:
    found = [recording[site][name][0] for name in _LATENTS if name in recording[site]]
    tokens = found[0].shape[-1]
    places = next(_grids(recording, tokens), None)
    if places is None:
        raise RecordError(f"{site}: no site of the model says how its {tokens} tokens stand on the map")
    return Layer(
        site=site,
        kind="latents",
        numbers=tuple(Squeezed.of(each) for each in found),
        heads=found[0].shape[0],
        places=places,
        prefix=(),
        entropy=tuple(float(each) for each in entropy(found[0]).mean(1)),
        ceiling=math.log(tokens),
        distance=(),
    )


def _grids(recording: Recording, tokens: int) -> Iterator[Tensor]:
    """How so many tokens stand on the map, by any site that says it."""
    for site in recording:
        try:
            places = recording.places(site)
        except RecordError:
            continue
        if places.numel() == tokens and int(places.min()) == 0:
            yield places
