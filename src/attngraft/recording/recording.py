"""What was recorded: tensors by site and name, what they were reduced to, and where their tokens stand on the image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

from torch import Tensor

from attngraft.attention import AttentionGeometry
from attngraft.attention.recorder import BLOCK_COORDINATES, TOKEN_COORDINATES
from attngraft.errors import RecordError, UsageError
from attngraft.recording.attention_maps import check_square, attention_map_for_query, filter_map_for_query, put_back, scattered, whole_map
from attngraft.recording.reductions import REDUCTIONS, RunningMean
from attngraft.recording.token_coordinates import TokenCoordinates
from attngraft.suggest import did_you_mean

#: what `gates` stands for: everything by which a graft weighs something of the host's
GATES = frozenset({"alpha", "beta", "gate", "lambda", "scale"})

#: hook points at which hosts that keep maps have them, (B, rows, columns, C)
MAP_HOOK_POINTS = frozenset({"attn.end", "mlp.front", "mlp.mid", "mlp.end", "space"})

#: axes of filters (B, H, K, rows, columns), where maps (B, H, Nq, Nk) have one less
FILTERS = 5

_T = TypeVar("_T")


class Recording(Mapping[str, Mapping[str, Tensor]]):
    """What was recorded: `recording["blocks.3.attn"]["weights"]` is the tensor of the last call.

    | name | shape | what |
    |---|---|---|
    | `scores` | (B, H, Nq, Nk) | what the softmax gets: scaled products, bias and mask |
    | `weights` | (B, H, Nq, Nk) | the attention map after softmax and weights grafts, before dropout |
    | `values` | (B, H, Nk, dv) | what the map averages |
    | `heads` | (B, H, Nq, dv) | what enters the output projection |
    | `tokens` | (B, Nq, C) | after the output projection and token grafts |
    | `attn.end`, `mlp.front`, `mlp.mid`, `mlp.end` | (B, N, C) or (B, H, W, C) | what leaves that hook point |
    | `<instance>.<name>` | | what a graft offers: `horizontal.alpha`, `vertical.beta`, `cb.context`, `cb_s.scale` ... |
    | `latents_to_tokens` | (B, H, M, N) | BiXT's cross-attention: where each latent looks among the tokens (rows sum to 1) |
    | `tokens_to_latents` | (B, H, N, M) | the same for tokens, over the latents |

    B counts windows where the host has them; `on_map`, `looks` and `whole` put them back onto the image. A site's leading
    tokens have names (`prefix`). Where maps are too many to be kept, `reduce` keeps means of them.
    """

    def __init__(self, what: frozenset[str] | None = None, standing: TokenCoordinates | None = None) -> None:
        self._what, self._standing = what, standing or TokenCoordinates({})
        self._offered: dict[str, dict[str, None]] = {}  # site -> names, in their order
        self._calls: dict[str, dict[str, list[Tensor]]] = {}
        self._reduced: dict[str, tuple[str, ...]] = {}  # name of maps -> what becomes of them
        self._means: dict[str, dict[str, RunningMean]] = {}
        self._refused: dict[str, dict[str, str]] = {}  # site -> what it cannot be reduced to, and why

    def asks(self, site: str, name: str) -> bool:
        """Whether a tensor of this name is to be kept; that the site has one is remembered."""
        if name in (TOKEN_COORDINATES, BLOCK_COORDINATES):
            return True
        self._offered.setdefault(site, {})[name] = None
        return name in self._reduced or self._what is None or any(_means(asked, name) for asked in self._what)

    def add(self, site: str, name: str, tensor: Tensor) -> None:
        """Keep one tensor, or what it is reduced to."""
        if name in (TOKEN_COORDINATES, BLOCK_COORDINATES):
            self._standing.offered(site, tensor, in_blocks=name == BLOCK_COORDINATES)
        elif name in self._reduced:
            self._reduce(site, name, tensor)
        else:
            self._calls.setdefault(site, {}).setdefault(name, []).append(tensor)

    def _reduce(self, site: str, name: str, tensor: Tensor) -> None:
        """What cannot be had at this site is remembered with the reason; other sites and reductions go on."""
        means, around = self._means.setdefault(site, {}), self._standing.around(site, tensor.shape[-1])
        for reduction in self._reduced[name]:
            key = _reduced(name, reduction)
            try:
                values = REDUCTIONS[reduction](tensor, around)
            except RecordError as error:
                self._refused.setdefault(site, {})[key] = f"{site}: {error}"
                continue
            try:
                means.setdefault(key, RunningMean()).add(values, around.map)
            except RecordError as error:
                raise RecordError(f"{site}: {error}") from None

    def reduce(self, *reductions: str, of: str = "weights") -> None:
        """From now on keep means over all images instead of the maps, so that one block's maps are alive at a time.

            with torch.no_grad(), attngraft.record(model, "weights") as recording:
                recording.reduce("entropy", "distance")
                for images in loader:
                    model(images)
            recording["blocks.3.attn"]["entropy"]  # (H, Nq), nats; .mean() is the layer's

        | name | shape | mean over images (windows) of |
        |---|---|---|
        | `mean` | (H, Nq, Nk) | the map |
        | `entropy` | (H, Nq) | each row's entropy, in nats (CB Fig. 5a takes the class token's rows) |
        | `patch_entropy` | (H, N) | the same among spatial tokens alone, rows summing to 1 again (CB Fig. 3a) |
        | `distance` | (H, N) | how far each spatial token looks, in parts of the map's sides (CB Fig. 5b) |
        | `ceiling` | (H, Nq) | the most that `entropy` can be, ln Nk |
        | `patch_ceiling` | (H, N) | the most that `patch_entropy` can be |
        | `steepness` | (H, Nq) | sum (a - a^2) of each row, the nuclear norm of the softmax's Jacobian (CB Sec. 2.1) |
        | `evenness` | (H, Nq) | that over its largest value, 1 - 1/Nk |

        Where the host says at which places the tokens of its windows stand, all but `mean` are by place of the map, row by
        row, (H, rows * columns), and what only fills windows up is left out. What cannot be had at a site (distances
        without a grid) is refused where it is asked for there.

        Args:
            reductions: which of these.
            of: which maps (`bisa.inverse_weights`, `latents_to_tokens`); of others than `weights` results are named
                `<of>.<reduction>`.

        Raises:
            UsageError: there is no such reduction.
        """
        for name in reductions:
            if name not in REDUCTIONS:
                near = did_you_mean(name, REDUCTIONS)
                raise UsageError(f"{name!r} is no reduction{near}; there are {', '.join(REDUCTIONS)}")
        self._reduced[of] = tuple(dict.fromkeys((*self._reduced.get(of, ()), *reductions)))

    def prefix(self, site: str) -> tuple[str, ...]:
        """Names of the leading tokens of this site (`class`, `distillation`, `register 1` ...); `()`: it has none.

        Raises:
            RecordError: the site was not among the chosen ones.
        """
        return self._standing.geometry(site).prefix

    def places(self, site: str) -> Tensor:
        """(rows, columns): which token stands at each place of the map, counted over the windows of one image.

        Raises:
            RecordError: the host does not say where the tokens of this site stand, or they are not as many as it says.
        """
        return self._standing.places(site)

    def on_map(self, site: str, name: str) -> Tensor:
        """A tensor of tokens (B, N, C) or (B, H, N, d) on the map: (B, rows, columns, C) or (B, H, rows, columns, d).

        Prefix tokens, and zeros that fill up windows, are left out. A hook point of a host that keeps maps has its map already.

        Raises:
            RecordError: the host does not say where the tokens of this site stand, or they are not as many as it says.
        """
        tokens = self[site][name]
        if name in MAP_HOOK_POINTS and tokens.ndim == 4:
            return self._map_of(site, name, tokens)
        if tokens.ndim == 3:
            return put_back(tokens, self._standing.places(site, tokens.shape[1]))
        by_token = tokens.transpose(1, 2)
        return put_back(by_token, self._standing.places(site, by_token.shape[1])).movedim(3, 1)

    def _map_of(self, site: str, name: str, tokens: Tensor) -> Tensor:
        """What leaves a hook point with four axes: the map, or blocks that nothing has put back."""
        if self._standing.in_blocks(site):  # there may be as many blocks as rows: shapes alone do not tell
            return put_back(tokens.flatten(0, 1), self._standing.places(site))
        size = self._standing.size(site)
        if size is not None and size != tokens.shape[1:3]:
            raise RecordError(
                f"{name!r} of {site!r} has the shape {tuple(tokens.shape)}, and its map is {size[0]} x {size[1]}: where its "
                "tokens stand is not known"
            )
        return tokens

    def without_filling(self, site: str, name: str) -> Tensor:
        """A tensor as it is, or, of the tokens of windows, those alone that stand on the map, where the host says which."""
        tensor, geometry = self[site][name], self._standing.geometry(site)
        window = geometry.window if isinstance(geometry, AttentionGeometry) else None
        if window is None or tensor.ndim not in (3, 4) or tensor.shape[tensor.ndim - 2] != window[0] * window[1]:
            return tensor
        try:
            return self.on_map(site, name)
        except (RecordError, UsageError):  # the host does not say, or it is not of its windows
            return tensor

    def looks(self, site: str, query: tuple[int, int], name: str = "weights") -> Tensor:
        """Where the token at `query` (row, column) looks, (B, H, rows, columns): its row of the map, on the image.

        With windows it is 0 outside the token's own. What prefix tokens get is left out. `name` may be filters of
        neighborhoods too (`elsa.local_filters`). Of cross-attention see `keys_on_map`.
        """
        weights = self[site][name]
        if weights.ndim == FILTERS:
            return filter_map_for_query(weights, query)
        check_square(weights)
        return attention_map_for_query(weights, self._standing.places(site, weights.shape[-1]), query)

    def whole(self, site: str, name: str = "weights") -> Tensor:
        """The map of the image, (B, H, rows * columns, rows * columns), windows in their places and 0 between them.

        It holds (rows * columns)^2 numbers a head. `name` may be filters of neighborhoods too, which are scattered.
        """
        weights = self[site][name]
        if weights.ndim == FILTERS:
            return scattered(weights)
        check_square(weights)
        return whole_map(weights, self._standing.places(site, weights.shape[-1]))

    def keys_on_map(self, site: str, name: str = "weights") -> Tensor:
        """Where each query of a cross-attention looks (BiXT's latents), (B, H, Nq, rows, columns): the keys on their map.

        Raises:
            RecordError: the site is no cross-attention, or its host does not say where its keys stand.
        """
        weights = self[site][name]
        return weights[..., self._standing.key_places(site, weights.shape[-1])]

    def offered(self, site: str) -> tuple[str, ...]:
        """Names of all that the site has offered so far, asked for or not."""
        return tuple(self._offered.get(site, ()))

    def calls(self, site: str, name: str) -> list[Tensor]:
        """The tensors of every call, oldest first (a shared module is called several times in one forward, and a block
        under gradient checkpointing again in the backward pass).

        Raises:
            RecordError: nothing of this name was recorded there.
        """
        return list(self._of(site)[name])

    def clear(self) -> None:
        """Forget everything recorded so far."""
        self._calls.clear()
        self._means.clear()
        self._refused.clear()

    def check(self) -> None:
        """
        Raises:
            RecordError: sites have run, and something that was asked for none of them offers.
        """
        names = dict.fromkeys(name for offered in self._offered.values() for name in offered)
        for asked in sorted(self._what or ()) if names else ():
            if not any(_means(asked, name) for name in names):
                raise RecordError(f"none of the chosen sites offers {asked!r}; they offer {', '.join(names)}")
        for of in self._reduced if names else ():
            if of not in names:
                near = did_you_mean(of, names)
                raise RecordError(
                    f"none of the chosen sites offers {of!r}, which was to be reduced{near}; they offer {', '.join(names)}"
                )

    def _of(self, site: str) -> _Named[list[Tensor]]:
        if site in self._calls or site in self._means:
            means = {name: [mean.mean] for name, mean in self._means.get(site, {}).items() if mean.mean is not None}
            refused = self._refused.get(site, {})
            return _Named(site, {**self._calls.get(site, {}), **means}, self.offered(site), refused)
        if site in self._offered:
            raise RecordError(
                f"nothing that was asked for was offered at {site!r}; it offers {', '.join(self.offered(site))}"
            )
        recorded = ", ".join(self) or "nothing; run the model inside the with-block"
        raise RecordError(f"nothing was recorded at {site!r}; recorded: {recorded}")

    def __getitem__(self, site: str) -> Mapping[str, Tensor]:
        tensors = {name: calls[-1] for name, calls in self._of(site).items()}
        return _Named(site, tensors, self.offered(site), self._refused.get(site, {}))

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._calls, *self._means)))

    def __len__(self) -> int:
        return len(self._calls.keys() | self._means.keys())


class _Named(dict[str, _T]):
    """What one site gave by name; who asks it for something else is told what there is."""

    def __init__(self, site: str, kept: Mapping[str, _T], offered: tuple[str, ...], refused: Mapping[str, str]) -> None:
        super().__init__(kept)
        self._site, self._offered, self._refused = site, offered, refused

    def __missing__(self, name: str) -> _T:
        if name in self._refused:
            raise RecordError(self._refused[name])
        if name in self._offered:
            raise RecordError(
                f"{name!r} of {self._site!r} was not kept: record(model, {{{name!r}, ...}}) keeps it where it is not reduced"
            )
        raise RecordError(f"{self._site!r} offers no {name!r}; it offers {', '.join(self._offered)}")


def _reduced(of: str, reduction: str) -> str:
    return reduction if of == "weights" else f"{of}.{reduction}"


def _means(asked: str, name: str) -> bool:
    """Whether who asks for `asked` wants the tensor `name`: by its name, its graft's, or as one of its gates."""
    return name == asked or name.startswith(f"{asked}.") or (asked == "gates" and name.rpartition(".")[2] in GATES)
