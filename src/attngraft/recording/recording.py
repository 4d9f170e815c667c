"""Recorded tensors by site and name, their reductions, and their tokens' positions on the image."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from torch import Tensor

from attngraft.attention import AttentionGeometry
from attngraft.attention.recorder import BLOCK_COORDINATES, TOKEN_COORDINATES
from attngraft.errors import RecordError, UsageError
from attngraft.notebook import html_table
from attngraft.recording.attention_maps import (
    attention_map_for_query,
    check_square,
    filter_map_for_query,
    filters_to_attention_map,
    full_attention_map,
    tokens_to_map,
)
from attngraft.recording.reductions import REDUCTIONS, RunningMean
from attngraft.recording.token_coordinates import TokenCoordinates
from attngraft.suggest import did_you_mean

#: names selected by `gates`: the factors by which grafts weight tensors of the host
GATES = frozenset({"alpha", "beta", "gate", "lambda", "scale"})

#: hook points whose tensors are maps (B, rows, columns, C) in hosts whose features are maps
MAP_HOOK_POINTS = frozenset({"attn.end", "mlp.front", "mlp.mid", "mlp.end", "space"})

FILTER_NDIM = 5  #: number of axes of filters (B, H, K, rows, columns); attention maps (B, H, Nq, Nk) have 4

_T = TypeVar("_T")


def _deprecated(old: str, new: str) -> Callable[..., Any]:
    def method(self: Recording, *args: Any, **kwargs: Any) -> Any:
        warnings.warn(f"Recording.{old}() is deprecated; call {new}()", DeprecationWarning, stacklevel=2)
        return getattr(self, new)(*args, **kwargs)

    method.__doc__ = f"Deprecated name of `{new}`."
    return method


class Recording(Mapping[str, Mapping[str, Tensor]]):
    """Recorded tensors: `recording["blocks.3.attn"]["weights"]` is the tensor of the last call.

    | name | shape | contents |
    |---|---|---|
    | `scores` | (B, H, Nq, Nk) | input of the softmax: scaled products, bias and mask |
    | `weights` | (B, H, Nq, Nk) | attention map after softmax and weights grafts, before dropout |
    | `values` | (B, H, Nk, dv) | values, which are averaged with the weights |
    | `heads` | (B, H, Nq, dv) | input of the output projection |
    | `tokens` | (B, Nq, C) | output of the output projection and token grafts |
    | `attn.end`, `mlp.front`, `mlp.mid`, `mlp.end` | (B, N, C) or (B, rows, columns, C) | output of that hook point |
    | `<instance>.<name>` | | tensors of a graft: `horizontal.alpha`, `vertical.beta`, `cb.context`, `cb_s.scale` ... |
    | `latents_to_tokens` | (B, H, M, N) | BiXT's cross-attention: attention of each latent over the tokens (rows sum to 1) |
    | `tokens_to_latents` | (B, H, N, M) | attention of each token over the latents (rows sum to 1) |

    In hosts with windows, B is the number of windows of all images; `on_map`, `attention_map_for_query` and
    `full_attention_map` map the windows back to the images. `prefix` returns the names of a site's prefix tokens. If the
    maps do not fit in memory, use `reduce` to keep only means.
    """

    def __init__(self, what: frozenset[str] | None = None, coordinates: TokenCoordinates | None = None) -> None:
        self._what, self._coordinates = what, coordinates or TokenCoordinates({})
        self._available: dict[str, dict[str, None]] = {}  # site -> names, in the order of first appearance
        self._calls: dict[str, dict[str, list[Tensor]]] = {}
        self._reductions: dict[str, tuple[str, ...]] = {}  # name of maps -> their reductions
        self._means: dict[str, dict[str, RunningMean]] = {}
        self._unavailable: dict[str, dict[str, str]] = {}  # site -> undefined reduction -> reason

    def is_requested(self, site: str, name: str) -> bool:
        """Return whether to keep a tensor of this name, and add the name to the available names of the site."""
        if name in (TOKEN_COORDINATES, BLOCK_COORDINATES):
            return True
        self._available.setdefault(site, {})[name] = None
        return name in self._reductions or self._what is None or any(_matches(each, name) for each in self._what)

    def add(self, site: str, name: str, tensor: Tensor) -> None:
        """Store a tensor, or update the means of its reductions."""
        if name in (TOKEN_COORDINATES, BLOCK_COORDINATES):
            self._coordinates.report(site, tensor, in_blocks=name == BLOCK_COORDINATES)
            return
        if name not in self._reductions:
            self._calls.setdefault(site, {}).setdefault(name, []).append(tensor)
            return
        means, layout = self._means.setdefault(site, {}), self._coordinates.layout(site, tensor.shape[-1])
        for reduction in self._reductions[name]:
            key = reduction if name == "weights" else f"{name}.{reduction}"
            try:
                values = REDUCTIONS[reduction](tensor, layout)
            except RecordError as error:  # raised later, when this reduction is read; others are unaffected
                self._unavailable.setdefault(site, {})[key] = f"{site}: {error}"
                continue
            try:
                means.setdefault(key, RunningMean()).add(values, layout.map_size)
            except RecordError as error:
                raise RecordError(f"{site}: {error}") from None

    def reduce(self, *reductions: str, of: str = "weights") -> None:
        """Store means over all images instead of the maps; only one block's maps are in memory at a time.

            with torch.no_grad(), attngraft.record(model, "weights") as recording:
                recording.reduce("entropy", "distance")
                for images in loader:
                    model(images)
            recording["blocks.3.attn"]["entropy"]  # (H, Nq), nats; its .mean() is the layer's entropy

        | name | shape | mean over images (windows) of |
        |---|---|---|
        | `mean` | (H, Nq, Nk) | the map |
        | `entropy` | (H, Nq) | entropy of each row, in nats (CB Fig. 5a: the class token's rows) |
        | `patch_entropy` | (H, N) | entropy of each row among spatial tokens, normalized to sum to 1 (CB Fig. 3a) |
        | `distance` | (H, N) | attention distance of each spatial token, as a fraction of the map's sides (CB Fig. 5b) |
        | `ceiling` | (H, Nq) | maximum of `entropy`, ln Nk |
        | `patch_ceiling` | (H, N) | maximum of `patch_entropy` |
        | `steepness` | (H, Nq) | sum (a - a^2) of each row, the nuclear norm of the softmax's Jacobian (CB Sec. 2.1) |
        | `evenness` | (H, Nq) | steepness over its maximum, 1 - 1/Nk |

        If the host reports the positions of its windows' tokens, all reductions except `mean` are indexed by map position,
        row by row, (H, rows * columns), without padding tokens. Reading a reduction that is undefined at a site (distances
        without a grid) raises an error.

        Args:
            reductions: names in the table above.
            of: name of the maps to reduce (`bisa.inverse_weights`, `latents_to_tokens`); results for maps other than
                `weights` are named `<of>.<reduction>`.

        Raises:
            UsageError: a reduction is unknown.
        """
        for name in reductions:
            if name not in REDUCTIONS:
                near = did_you_mean(name, REDUCTIONS)
                raise UsageError(f"unknown reduction {name!r}{near}; available: {', '.join(REDUCTIONS)}")
        self._reductions[of] = tuple(dict.fromkeys((*self._reductions.get(of, ()), *reductions)))

    def prefix(self, site: str) -> tuple[str, ...]:
        """Return the names of the site's prefix tokens (`class`, `distillation`, `register 1`, ...), or `()`.

        Raises:
            RecordError: the site was not chosen.
        """
        return self._coordinates.geometry(site).prefix

    def token_indices(self, site: str) -> Tensor:
        """Return the index of the token at each map position, (rows, columns).

        Indices are counted over the windows of one image.

        Raises:
            RecordError: the host does not report token positions for this site, or the number of tokens does not match.
        """
        return self._coordinates.token_indices(site)

    def on_map(self, site: str, name: str) -> Tensor:
        """Return tokens on the map, (B, rows, columns, C) or (B, H, rows, columns, d).

        Tokens are (B, N, C) or (B, H, N, d). Prefix and padding tokens are left out. Tensors that are maps already are
        returned unchanged.

        Raises:
            RecordError: the host does not report token positions for this site, or the number of tokens does not match.
        """
        tokens = self[site][name]
        if name in MAP_HOOK_POINTS and tokens.ndim == 4:
            if site in self._coordinates.in_blocks:  # shapes are ambiguous: there may be as many blocks as rows
                return tokens_to_map(tokens.flatten(0, 1), self._coordinates.token_indices(site))
            size = self._coordinates.map_size(site)
            if size is not None and size != tokens.shape[1:3]:
                raise RecordError(
                    f"{name!r} of {site!r} has the shape {tuple(tokens.shape)}, but its map is {size[0]} x {size[1]}: the "
                    "positions of its tokens are unknown"
                )
            return tokens
        if tokens.ndim == 3:
            return tokens_to_map(tokens, self._coordinates.token_indices(site, tokens.shape[1]))
        by_token = tokens.transpose(1, 2)
        return tokens_to_map(by_token, self._coordinates.token_indices(site, by_token.shape[1])).movedim(3, 1)

    def without_padding(self, site: str, name: str) -> Tensor:
        """Return a tensor without the padding tokens of windows, or unchanged if no padding is known."""
        tensor, geometry = self[site][name], self._coordinates.geometry(site)
        window = geometry.window if isinstance(geometry, AttentionGeometry) else None
        if window is None or tensor.ndim not in (3, 4) or tensor.shape[tensor.ndim - 2] != window[0] * window[1]:
            return tensor
        try:
            return self.on_map(site, name)
        except (RecordError, UsageError):  # unknown positions, or not the tokens of the windows
            return tensor

    def attention_map_for_query(self, site: str, query: tuple[int, int], name: str = "weights") -> Tensor:
        """Return the attention map of the token at `query` (row, column) on the image, (B, H, rows, columns).

        The map is 0 outside the token's window and excludes prefix tokens. `name` can also be the name of filters over
        neighborhoods (`elsa.local_filters`). For cross-attention, see `keys_on_map`.
        """
        weights = self[site][name]
        if weights.ndim == FILTER_NDIM:
            return filter_map_for_query(weights, query)
        check_square(weights)
        return attention_map_for_query(weights, self._coordinates.token_indices(site, weights.shape[-1]), query)

    def full_attention_map(self, site: str, name: str = "weights") -> Tensor:
        """Return the attention map of the whole image, (B, H, rows * columns, rows * columns).

        The map is 0 between windows and has (rows * columns)^2 numbers per head. `name` can also name filters over
        neighborhoods (`local_filters`).
        """
        weights = self[site][name]
        if weights.ndim == FILTER_NDIM:
            return filters_to_attention_map(weights)
        check_square(weights)
        return full_attention_map(weights, self._coordinates.token_indices(site, weights.shape[-1]))

    def keys_on_map(self, site: str, name: str = "weights") -> Tensor:
        """Return cross-attention weights with the keys at their map positions, (B, H, Nq, rows, columns).

        In BiXT, for example, the queries are the latents.

        Raises:
            RecordError: the site is not cross-attention, its keys have no grid, or the number of keys does not match.
        """
        weights = self[site][name]
        return weights[..., self._coordinates.key_indices(site, weights.shape[-1])]

    def available(self, site: str) -> tuple[str, ...]:
        """Return the names of all tensors that the site has produced so far, requested or not."""
        return tuple(self._available.get(site, ()))

    def calls(self, site: str, name: str) -> list[Tensor]:
        """Return the tensors of all calls, oldest first.

        A shared module, or a block under gradient checkpointing, is called several times.

        Raises:
            RecordError: nothing of this name was recorded at the site.
        """
        return list(self._of(site)[name])

    def clear(self) -> None:
        """Delete everything recorded so far."""
        self._calls.clear()
        self._means.clear()
        self._unavailable.clear()

    def check(self) -> None:
        """Check that the requested tensors exist.

        Raises:
            RecordError: sites ran, but none of them has a requested tensor.
        """
        names = dict.fromkeys(name for available in self._available.values() for name in available)
        for requested in sorted(self._what or ()) if names else ():
            if not any(_matches(requested, name) for name in names):
                raise RecordError(f"none of the chosen sites has {requested!r}; available: {', '.join(names)}")
        for of in self._reductions if names else ():
            if of not in names:
                near = did_you_mean(of, names)
                raise RecordError(f"reduce: none of the chosen sites has {of!r}{near}; available: {', '.join(names)}")

    def _of(self, site: str) -> _SiteTensors[list[Tensor]]:
        if site in self._calls or site in self._means:
            means = {name: [mean.mean] for name, mean in self._means.get(site, {}).items() if mean.mean is not None}
            unavailable = self._unavailable.get(site, {})
            return _SiteTensors(site, {**self._calls.get(site, {}), **means}, self.available(site), unavailable)
        if site in self._available:
            raise RecordError(
                f"{site!r} has none of the requested tensors; available: {', '.join(self.available(site))}"
            )
        recorded = ", ".join(self) or "nothing; run the model inside the with-block"
        raise RecordError(f"nothing was recorded at {site!r}; recorded: {recorded}")

    def __getitem__(self, site: str) -> Mapping[str, Tensor]:
        tensors = {name: calls[-1] for name, calls in self._of(site).items()}
        return _SiteTensors(site, tensors, self.available(site), self._unavailable.get(site, {}))

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._calls, *self._means)))

    def __len__(self) -> int:
        return len(self._calls.keys() | self._means.keys())

    def _repr_html_(self) -> str:
        rows = [
            (site, name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), len(self.calls(site, name)))
            for site, tensors in self.items()
            for name, tensor in tensors.items()
        ]
        title = f"Recording of {len(rows)} tensors at {len(self)} sites"
        return html_table(title, ("site", "name", "shape", "dtype", "calls"), rows)

    asks = _deprecated("asks", "is_requested")
    looks = _deprecated("looks", "attention_map_for_query")
    offered = _deprecated("offered", "available")
    places = _deprecated("places", "token_indices")
    whole = _deprecated("whole", "full_attention_map")
    without_filling = _deprecated("without_filling", "without_padding")


class _SiteTensors(dict[str, _T]):
    """Tensors of one site by name; a missing name raises an error that lists the available ones."""

    def __init__(
        self, site: str, tensors: Mapping[str, _T], available: tuple[str, ...], unavailable: Mapping[str, str]
    ) -> None:
        super().__init__(tensors)
        self._site, self._available, self._unavailable = site, available, unavailable

    def __missing__(self, name: str) -> _T:
        if name in self._unavailable:
            raise RecordError(self._unavailable[name])
        if name in self._available:
            raise RecordError(
                f"{name!r} of {self._site!r} was not kept; call record(model, {{{name!r}, ...}}) and do not reduce it"
            )
        raise RecordError(f"{self._site!r} has no {name!r}; available: {', '.join(self._available)}")


def _matches(requested: str, name: str) -> bool:
    """Return whether `requested` selects the tensor `name`.

    `requested` is the tensor's name, its graft's name, or `gates`.
    """
    return (
        name == requested
        or name.startswith(f"{requested}.")
        or (requested == "gates" and name.rpartition(".")[2] in GATES)
    )
