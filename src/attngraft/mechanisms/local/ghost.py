"""The ghost head on attention maps of a whole grid: several maps per head, by two static matrices each.

    w_c[i, j] = mul_c[j - i]^lam a_h(c)[i, j] + gamma add_c[j - i]

Here a is the map of H heads after softmax, c indexes the `parts` H ghost heads, and h(c) = c // parts. Each ghost head has
its own share of the head's values. The matrices depend only on the position of the key relative to the query, in rows and
columns.

Source: ELSA, Eq. 8 and Table 11. For whole grids, the paper has `parts` = 2 and does not specify lam and gamma.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attngraft.attention.recorder import Recordable
from attngraft.errors import UsageError
from attngraft.mechanisms.local.geometry import relative_positions


class GhostHead(Recordable, nn.Module):
    """Turn attention maps (B, H, N, N) into (B, parts H, N, N).

    Args:
        heads: H.
        grid: rows and columns of the tokens.
        prefix: number of leading tokens that are not on the grid; their rows and columns are unchanged.
        parts: ghost heads per head.
        lam, gamma: exponent of `mul` and factor of `add`; 0 omits the matrix. `mul` starts with entries of both signs, so
            lam must be an integer.
        identity: start with mul 1 and add 0, which repeats each map `parts` times.

    Ghost head c is computed from head c // parts, as in the published code for neighborhoods; Eq. 8 has c mod H. The two
    differ only in the order of the channels.

    `mul` and `add` are (parts H, (2 rows - 1) (2 columns - 1)), indexed by key minus query. As in the published code, they
    are initialized from a normal of std 1 and a truncated normal of std 0.02.

    Records `ghost_mul` and `ghost_add` (parts H, N', N') of the tokens on the grid, as they are applied.

    Raises:
        UsageError: the maps passed to `forward` have another size.
    """

    indices: Tensor

    def __init__(
        self,
        heads: int,
        grid: tuple[int, int],
        *,
        prefix: int = 0,
        parts: int = 2,
        lam: int = 1,
        gamma: float = 1.0,
        identity: bool = False,
    ) -> None:
        super().__init__()
        self.grid, self.prefix, self.parts, self.lam, self.gamma = grid, prefix, parts, lam, gamma
        self.register_buffer("indices", relative_positions(*grid), persistent=False)
        shape = heads * parts, (2 * grid[0] - 1) * (2 * grid[1] - 1)
        self.mul = nn.Parameter(torch.ones(shape) if identity else torch.randn(shape)) if lam else None
        add = torch.zeros(shape) if identity else nn.init.trunc_normal_(torch.empty(shape), std=0.02)
        self.add = nn.Parameter(add) if gamma else None

    def forward(self, weights: Tensor, visible: Tensor | None = None) -> Tensor:
        """Apply the ghost head, without adding where `visible` (boolean, broadcastable to the maps) is False."""
        tokens = self.prefix + self.grid[0] * self.grid[1]
        if weights.shape[-2:] != (tokens, tokens):
            raise UsageError(
                f"the ghost head is for {tokens} tokens ({self.grid[0]} x {self.grid[1]} on the grid), but these maps are "
                f"{weights.shape[-2]} x {weights.shape[-1]}; build the model for images of this size, then graft it"
            )
        maps = weights.repeat_interleave(self.parts, 1)
        if self.mul is not None:
            maps = maps * self._for_all_pairs(self.mul**self.lam, 1.0, "ghost_mul")
        if self.add is not None:
            added = self._for_all_pairs(self.gamma * self.add, 0.0, "ghost_add")
            maps = maps + (added if visible is None else added * visible)
        return maps

    def _for_all_pairs(self, table: Tensor, prefix: float, name: str) -> Tensor:
        """Return a table as (parts H, N, N), with the value `prefix` for pairs that are not on the grid."""
        matrices = table[:, self.indices]
        self.record(name, matrices)
        return F.pad(matrices, (self.prefix, 0, self.prefix, 0), value=prefix)

    def extra_repr(self) -> str:
        return f"grid={self.grid}, parts={self.parts}, lam={self.lam}, gamma={self.gamma:g}"
