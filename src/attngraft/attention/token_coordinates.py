"""Where the tokens of windows stand on the map that a host cuts into them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attngraft.attention.recorder import Recordable

#: the names under which hosts offer where tokens stand: of windows that are put back before their branch ends, and of blocks
#: that are not, so that what leaves a hook point is (B, blocks, tokens, C)
PLACES, BLOCK_COORDINATES = "places", "block_places"


def record_coordinates(point: Recordable, maps: Tensor, cut: Callable[[Tensor], Tensor], *, name: str = PLACES) -> None:
    """Offer `places` (rows, columns): which token of all windows, one window after another, stands at each place.

    Args:
        point: what offers.
        maps: (B, rows, columns, C), what the host cuts.
        cut: the host's own way from maps to their windows (B * windows, N, C), zeros that fill up included.
        name: `BLOCK_COORDINATES` where the hook points of this site have blocks too.
    """
    if not point.is_recording(name):
        return
    rows, columns = maps.shape[1:3]
    numbers = torch.arange(1, rows * columns + 1, device=maps.device)  # 0 is left for what fills up
    tokens = cut(numbers.view(1, rows, columns, 1)).flatten()
    here = tokens.nonzero().squeeze(1)
    places = torch.empty_like(numbers)
    places[tokens[here] - 1] = here
    point.record(name, places.view(rows, columns))
