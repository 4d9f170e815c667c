"""Attention within one image at every position and layer, quantized for the explorer page."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
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
from attngraft.timing.macs import evaluating

Kind = Literal["maps", "filters", "latents"]  #: see `ExplorerLayer.numbers`

MAPS = frozenset({"weights", "inverse_weights"})  #: names of square maps, without a graft's prefix
_LATENTS = ("latents_to_tokens", "tokens_to_latents")

STEPS = 127  #: largest value of a signed byte
_TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True, kw_only=True)
class QuantizedTensor:
    """Values quantized to signed bytes, with higher precision near 0.

    Byte b represents sign(b) (b / 127)^2 `largest`.
    """

    bytes: Tensor  #: int8
    largest: float

    @classmethod
    def of(cls, numbers: Tensor, site: str) -> QuantizedTensor:
        """Quantize a tensor.

        Raises:
            RecordError: some values are NaN or infinite; the message contains the site.
        """
        largest = float(numbers.abs().max()) if numbers.numel() else 0.0
        if not math.isfinite(largest):
            raise RecordError(
                f"{site}: the values contain NaN or infinity: the model diverged in training, or its activations overflow"
            )
        share = numbers.float() / (largest or 1.0)
        return cls(bytes=(share.sign() * share.abs().sqrt() * STEPS).round().to(torch.int8).cpu(), largest=largest)

    def numbers(self) -> Tensor:
        """Return the dequantized values."""
        share = self.bytes.float() / STEPS
        return share.sign() * share.square() * self.largest


@dataclass(frozen=True, kw_only=True)
class ExplorerLayer:
    """Attention of one layer on one image.

    | kind | `numbers`, shapes | |
    |---|---|---|
    | maps | (W, H, N, N) | attention map of each window; W = 1 without windows |
    | filters | (H, K, rows, columns) | filter at each position over its k x k neighborhood, K = k x k, row-major |
    | latents | (H, M, N), (H, N, M) | attention of latents to tokens, and of tokens to latents; None if missing |
    """

    site: str  #: site, followed by a colon and the tensor's name unless it is the attention map
    kind: Kind
    numbers: tuple[QuantizedTensor | None, ...]
    heads: int
    token_indices: Tensor  #: index of the token at each map position, counted over all windows, (rows, columns)
    prefix: tuple[str, ...] = ()  #: names of the prefix tokens
    #: mean entropy of each head in nats, over all rows except padding; empty if rows are not distributions
    entropy: tuple[float, ...]
    ceiling: float  #: mean upper bound of the entropy, over the same rows
    #: attention distance of each head, as a fraction of the map's sides; empty for latents, or if `entropy` is empty
    distance: tuple[float, ...] = ()
    #: structure of the attention of each patch to all patches, (H, rows, columns), see `explorer_data`; empty if unknown
    structure: Tensor

    @property
    def module(self) -> str:
        """Return the site without the tensor's name."""
        return self.site.partition(": ")[0]


@dataclass(frozen=True, kw_only=True)
class Opening:
    """A layer, head and patch."""

    structure: float  #: of the head, averaged over the patches
    layer: int
    head: int
    row: int
    column: int


@dataclass(frozen=True, kw_only=True)
class ExplorerData:
    """Attention of one model on one image."""

    layers: list[ExplorerLayer]
    skipped: dict[str, str]  #: attention sites that cannot be shown, with the reason
    outputs: Any  #: returned by the model

    def opening(self, sites: Container[str]) -> Opening | None:
        """Return the head with the most structured attention at `sites`, and its most structured patch; None if unknown.

        Of equal ones, the first.
        """
        found = []
        for index, layer in enumerate(self.layers):
            if not layer.structure.numel() or layer.module not in sites:
                continue
            patches = layer.structure.double().numpy()
            heads = patches.mean((1, 2))
            head = int(heads.argmax())
            row, column = (int(each) for each in np.unravel_index(patches[head].argmax(), patches[head].shape))
            found.append(Opening(structure=float(heads[head]), layer=index, head=head, row=row, column=column))
        return max(found, key=lambda each: each.structure, default=None)  # the first of equal ones


def explorer_data(model: nn.Module, image: Tensor, *, sites: str = "all") -> ExplorerData:
    """Compute the attention of `model` on the input `image` (1, channels, H, W).

    The model is run once in eval mode and is not modified.

    The structure of a patch's attention is s (1 - E / E_max), from 0 (uniform, or none) to 1 (a single patch): s is the
    share of its attention that patches get, E the entropy of that attention, normalized to sum to 1, and E_max the entropy
    of uniform attention to the same patches. Prefix tokens and padding are excluded. With latents, the attention between
    patches is the product of both maps. Layers whose rows are not distributions have no structure.

    Raises:
        UsageError: `image` is not a single image.
        RecordError: no chosen site attends to positions of the image, or values are not finite.
        HostError, GraftSpecError: see `attngraft.record`.
    """
    if image.ndim != 4 or len(image) != 1:
        raise UsageError(f"image must have shape (1, channels, H, W), got {tuple(image.shape)}")
    model = getattr(model, "_orig_mod", model)  # unwrap torch.compile's module
    geometries = {site.path: site.geometry for site in find_host(model).sites}
    with evaluating(model), torch.no_grad(), record(model, sites=sites) as recording:
        outputs = model(image)
    layers, skipped = [], {}
    for site in recording:
        geometry = geometries[site]
        self_attention = isinstance(geometry, AttentionGeometry) and geometry.own_keys
        for compute, name in _tensors(recording, site):
            try:
                if compute is _maps_layer and not self_attention:
                    raise RecordError(f"{site}: queries and keys are different tokens")
                layers.append(compute(recording, site, name))
            except RecordError as error:
                skipped[site] = str(error)
    if not layers:
        why = "; ".join(skipped.values()) or "none of them is an attention module"
        raise RecordError(f"no chosen site attends to positions of the image: {why}")
    return ExplorerData(layers=layers, skipped=skipped, outputs=outputs)


def _tensors(recording: Recording, site: str) -> Iterator[tuple[Callable[[Recording, str, str], ExplorerLayer], str]]:
    """Yield the function that computes the layer, and the name, of each tensor that the page can show."""
    tensors = recording[site]
    for name in _LATENTS:
        if name in tensors:
            yield _latents_layer, name
            return
    for name, tensor in tensors.items():
        part = name.rpartition(".")[2]
        if part == "local_filters" and tensor.ndim == FILTER_NDIM:
            yield _filters_layer, name
        elif part in MAPS:
            yield _maps_layer, name


def _title(site: str, name: str) -> str:
    return f"{site}: {name}" if "." in name else site


def _structure(spread: Tensor, most: Tensor) -> Tensor:
    """Return 1 - E / E_max, and 0 if a row has a single patch."""
    return torch.where(most > 0, 1 - spread / most.clamp_min(_TINY), 0.0).clamp(0, 1)


def _maps_layer(recording: Recording, site: str, name: str) -> ExplorerLayer:
    recording.attention_map_for_query(site, (0, 0), name)  # raises an error if these are not the map's tokens
    maps, indices = recording[site][name].float().cpu(), recording.token_indices(site).cpu()
    windows, heads, tokens = maps.shape[:3]
    expected = int(indices.max()) // tokens + 1
    if windows != expected:
        raise RecordError(f"{site}: has {windows} sequences of {tokens} tokens, but a map of the image has {expected}")
    prefix = recording.prefix(site)
    # without prefix tokens, the reductions "patch_..." only exclude the padding tokens of windows
    layout, among = TokenLayout(len(prefix), token_indices=indices), "" if prefix else "patch_"
    spread, ceiling = (REDUCTIONS[f"{among}{each}"](maps, layout).mean((0, 2)) for each in ("entropy", "ceiling"))
    distance = windowed_distance(maps, normalized_coordinates(indices, tokens))  # (W, H, N)
    by_head = tokens_to_map(distance.movedim(1, 2), indices).mean((0, 1, 2))
    distributions = name == "weights"
    by_patch = torch.empty(0)
    if distributions:
        spreads, most = (REDUCTIONS[each](maps, layout)[0] for each in ("patch_entropy", "patch_ceiling"))
        structure = _structure(spreads, most)  # (H, patches), by token with prefix tokens, otherwise by position
        if prefix:
            share = maps[0, :, len(prefix) :, len(prefix) :].sum(-1)
            structure = (share * structure)[:, indices.flatten() - len(prefix)]
        by_patch = structure.unflatten(1, indices.shape)
    return ExplorerLayer(
        site=_title(site, name),
        kind="maps",
        numbers=(QuantizedTensor.of(maps, site),),
        heads=heads,
        token_indices=indices,
        prefix=prefix,
        entropy=tuple(spread.tolist()) if distributions else (),
        ceiling=float(ceiling.mean()),
        distance=tuple(by_head.tolist()) if distributions else (),
        structure=by_patch,
    )


def _filters_layer(recording: Recording, site: str, name: str) -> ExplorerLayer:
    filters = recording[site][name][0].float().cpu()
    heads, offsets, rows, columns = filters.shape
    side = math.isqrt(offsets)
    down, across = (each.flatten() - side // 2 for each in torch.meshgrid(*[torch.arange(side)] * 2, indexing="ij"))
    row, column = (down[:, None] + torch.arange(rows))[:, :, None], (across[:, None] + torch.arange(columns))[:, None]
    inside = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)  # on the map, (K, rows, columns)
    spread: tuple[float, ...] = ()
    distances: tuple[float, ...] = ()
    structure = torch.empty(0)
    sums = filters.sum(1)
    if bool((filters >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=1e-2):  # rows are distributions
        shares = filters * inside
        shares = shares / shares.sum(1, keepdim=True).clamp_min(_TINY)
        distance = (down.abs() / rows + across.abs() / columns)[:, None, None]
        spreads = torch.special.entr(shares).sum(1)
        spread = tuple(spreads.mean((1, 2)).tolist())
        structure = _structure(spreads, inside.sum(0).log())
        distances = tuple((shares * distance).sum(1).mean((1, 2)).tolist())
    return ExplorerLayer(
        site=_title(site, name),
        kind="filters",
        numbers=(QuantizedTensor.of(filters, site),),
        heads=heads,
        token_indices=torch.arange(rows * columns).view(rows, columns),
        entropy=spread,
        ceiling=float(inside.sum(0).log().mean()),
        distance=distances,
        structure=structure,
    )


def _latents_layer(recording: Recording, site: str, first: str) -> ExplorerLayer:
    found = {name: recording[site][name][0].float().cpu() for name in _LATENTS if name in recording[site]}
    to_tokens = found.get(_LATENTS[0])
    on_map = recording.token_indices(site) if to_tokens is None else recording.keys_on_map(site, first)
    rows, columns = on_map.shape[-2:]
    structure = torch.empty(0)
    if len(found) == len(_LATENTS):
        to_latents = found[_LATENTS[1]]
        spreads = [entropy(ours @ theirs) for ours, theirs in zip(to_latents, found[_LATENTS[0]], strict=True)]
        structure = _structure(torch.stack(spreads), torch.tensor(math.log(rows * columns))).unflatten(
            1, (rows, columns)
        )
    return ExplorerLayer(
        site=site,
        kind="latents",
        numbers=tuple(QuantizedTensor.of(found[name], site) if name in found else None for name in _LATENTS),
        heads=len(found[first]),
        token_indices=torch.arange(rows * columns).view(rows, columns),
        entropy=() if to_tokens is None else tuple(entropy(to_tokens).mean(1).tolist()),
        ceiling=math.log(rows * columns),
        structure=structure,
    )
