"""Position codes of BiXT: sines and cosines of row and column, projected to the tokens' width.

Row y of 1..H has the angle 2 pi y / H, so the code of a larger grid samples the same interval more finely. The code of
another grid is recomputed, not interpolated.
"""

import math
from collections.abc import MutableMapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attngraft.attention.tracing import fx_leaf
from attngraft.models.bixt.tokenizers import check_choice

Positions = Literal["static", "dynamic", "none"]


class DynamicPositions(nn.Module):
    """Position codes of any grid, computed on every call.

        (1, N, width) = token_projection(fourier_positions(rows, columns))

    Args:
        width: width of the tokens to which the codes are added.
        dim: channels per axis.
        temperature: ratio between the highest and (almost) the lowest frequency.

    A state dict's buffer `pos`, saved by models with a fixed grid, is ignored.
    """

    def __init__(self, width: int, *, dim: int = 32, temperature: float = 10000.0) -> None:
        super().__init__()
        self.dim, self.temperature = dim, temperature
        self.token_projection = nn.Conv2d(2 * dim, width, 1)

    @fx_leaf
    def forward(self, grid: tuple[int, int]) -> Tensor:
        """Return codes (1, rows * columns, width), row by row."""
        code = self.code(grid).to(self.token_projection.weight.dtype)
        return self.token_projection(code.unsqueeze(0)).flatten(2).transpose(1, 2)

    def code(self, grid: tuple[int, int]) -> Tensor:
        """Return the code (2 dim, rows, columns) before the projection."""
        return self.computed(grid, device=self.token_projection.weight.device)

    def computed(self, grid: tuple[int, int], device: Any = None) -> Tensor:
        """Return `fourier_positions` with this module's constants."""
        return fourier_positions(*grid, dim=self.dim, temperature=self.temperature, device=device)

    def set_grid(self, grid: tuple[int, int]) -> None:
        """Do nothing: the codes of any grid are computed on each call."""

    def adapt(self, state: MutableMapping[str, Any], name: str) -> None:
        """Remove the code `name` from `state`."""
        state.pop(name, None)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        self.adapt(state_dict, f"{prefix}pos")
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, temperature={self.temperature:g}"


class StaticPositions(DynamicPositions):
    """Position codes of one grid, stored in the buffer `pos` and saved as in the published checkpoints.

    The buffer `pos` of a state dict is loaded if its grid is the same; otherwise the code is computed.
    """

    pos: Tensor

    def __init__(self, width: int, grid: tuple[int, int], *, dim: int = 32, temperature: float = 10000.0) -> None:
        super().__init__(width, dim=dim, temperature=temperature)
        self.register_buffer("pos", self.computed(grid))

    def code(self, grid: tuple[int, int]) -> Tensor:
        """Return the stored code (2 dim, rows, columns); `grid` is ignored."""
        return self.pos

    def set_grid(self, grid: tuple[int, int]) -> None:
        """Recompute the code for `grid`."""
        self.pos = self.computed(grid, device=self.pos.device).to(self.pos.dtype)

    def adapt(self, state: MutableMapping[str, Any], name: str) -> None:
        """Replace the code `name` in `state` if it is missing or of another grid."""
        if name not in state or state[name].shape != self.pos.shape:
            state[name] = self.computed((self.pos.shape[1], self.pos.shape[2])).to(self.pos.dtype)


class NoPositions(nn.Module):
    """Placeholder for models without position codes."""

    def forward(self, grid: tuple[int, int]) -> float:
        """Return 0, which is added to the tokens."""
        return 0.0

    def set_grid(self, grid: tuple[int, int]) -> None:
        """Do nothing: there are no codes."""

    def adapt(self, state: MutableMapping[str, Any], name: str) -> None:
        """Do nothing: there are no codes."""


def make_positions(
    kind: Positions, width: int, grid: tuple[int, int], *, dim: int, temperature: float
) -> DynamicPositions | NoPositions:
    """Create a position module; `kind` is "static", "dynamic" or "none".

    Raises:
        UsageError: `kind` is unknown.
    """
    check_choice("positions", kind, ("static", "dynamic", "none"))
    if kind == "static":
        return StaticPositions(width, grid, dim=dim, temperature=temperature)
    return DynamicPositions(width, dim=dim, temperature=temperature) if kind == "dynamic" else NoPositions()


def fourier_positions(
    rows: int, columns: int, *, dim: int = 32, temperature: float = 10000.0, device: Any = None
) -> Tensor:
    """Return codes (2 dim, rows, columns): `dim` channels for the row, then `dim` for the column.

        channel 2j      sin(2 pi y / (H + 1e-6) / temperature^(2j / dim)),    y = 1..H
        channel 2j + 1  cos of the same

    Computed in float32. Source: XCiT's positions, as in BiXT's code.
    """
    channel = torch.arange(dim, dtype=torch.float32, device=device)
    period = temperature ** (2 * torch.div(channel, 2, rounding_mode="floor") / dim)

    def axis(length: int) -> Tensor:
        position = torch.arange(1, length + 1, dtype=torch.float32, device=device)
        angle = (position / (length + 1e-6) * 2 * math.pi)[:, None] / period
        return torch.where(channel % 2 == 0, angle.sin(), angle.cos()).T

    by_row = axis(rows)[:, :, None].expand(-1, -1, columns)
    by_column = axis(columns)[:, None, :].expand(-1, rows, -1)
    return torch.cat((by_row, by_column))
