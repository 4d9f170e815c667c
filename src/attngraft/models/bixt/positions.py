"""Where a token lies, as BiXT says it: sines and cosines of its row and column, mapped to the tokens' width.

Row y of 1..H has the angle 2 pi y / H, so that the code of a larger grid samples the same interval more finely: a model
moves to another grid by computing its code anew, without interpolation.
"""

from __future__ import annotations

import math
from collections.abc import MutableMapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attngraft.models.bixt.words import known

Positions = Literal["static", "dynamic", "none"]


class DynamicPositions(nn.Module):
    """Position codes of any grid, computed whenever they are asked for.

        (1, N, width) = token_projection(fourier_positions(rows, columns))

    Args:
        width: of the tokens that the codes are added to.
        dim: channels per axis. temperature: what the lowest frequency is divided by, almost.

    A state dict may hold the code of some grid (`pos`), as models of one grid save it; it is passed over.
    """

    def __init__(self, width: int, *, dim: int = 32, temperature: float = 10000.0) -> None:
        super().__init__()
        self.dim, self.temperature = dim, temperature
        self.token_projection = nn.Conv2d(2 * dim, width, 1)

    def forward(self, grid: tuple[int, int]) -> Tensor:
        """Codes (1, rows * columns, width), row by row."""
        code = self.code(grid).to(self.token_projection.weight.dtype)
        return self.token_projection(code.unsqueeze(0)).flatten(2).transpose(1, 2)

    def code(self, grid: tuple[int, int]) -> Tensor:
        """(2 dim, rows, columns), before the projection."""
        return self.computed(grid, device=self.token_projection.weight.device)

    def computed(self, grid: tuple[int, int], device: Any = None) -> Tensor:
        """`fourier_positions` with this module's constants."""
        return fourier_positions(*grid, dim=self.dim, temperature=self.temperature, device=device)

    def set_grid(self, grid: tuple[int, int]) -> None:
        """Move to another grid: nothing to do."""

    def adapt(self, state: MutableMapping[str, Any], name: str) -> None:
        """Make the code that `state` may hold under `name` fit this module."""
        state.pop(name, None)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        self.adapt(state_dict, f"{prefix}pos")
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, temperature={self.temperature:g}"


class StaticPositions(DynamicPositions):
    """Position codes of one grid, kept as the buffer `pos`, which is saved as in the published checkpoints.

    A state dict's `pos` is taken where it is of this grid; where it is of another, or there is none, it is computed.
    """

    pos: Tensor

    def __init__(self, width: int, grid: tuple[int, int], *, dim: int = 32, temperature: float = 10000.0) -> None:
        super().__init__(width, dim=dim, temperature=temperature)
        self.register_buffer("pos", self.computed(grid))

    def code(self, grid: tuple[int, int]) -> Tensor:
        """(2 dim, rows, columns), of the one grid."""
        return self.pos

    def set_grid(self, grid: tuple[int, int]) -> None:
        """Move to another grid."""
        self.pos = self.computed(grid, device=self.pos.device).to(self.pos.dtype)

    def adapt(self, state: MutableMapping[str, Any], name: str) -> None:
        """Make the code that `state` may hold under `name` fit this module."""
        if name not in state or state[name].shape != self.pos.shape:
            state[name] = self.computed((self.pos.shape[1], self.pos.shape[2])).to(self.pos.dtype)


class NoPositions(nn.Module):
    """Tokens stay without positions."""

    def forward(self, grid: tuple[int, int]) -> float:
        """What is added to the tokens: nothing."""
        return 0.0

    def set_grid(self, grid: tuple[int, int]) -> None:
        """Move to another grid: nothing to do."""

    def adapt(self, state: MutableMapping[str, Any], name: str) -> None:
        """Make `state` fit this module: nothing to do."""


def make_positions(
    kind: Positions, width: int, grid: tuple[int, int], *, dim: int, temperature: float
) -> DynamicPositions | NoPositions:
    """The module of a kind; arguments as of the classes.

    Raises:
        UsageError: there is no such kind.
    """
    known("positions", kind, ("static", "dynamic", "none"))
    if kind == "static":
        return StaticPositions(width, grid, dim=dim, temperature=temperature)
    return DynamicPositions(width, dim=dim, temperature=temperature) if kind == "dynamic" else NoPositions()


def fourier_positions(
    rows: int, columns: int, *, dim: int = 32, temperature: float = 10000.0, device: Any = None
) -> Tensor:
    """(2 dim, rows, columns): the first `dim` channels say the row, the others the column.

        channel 2j      sin(2 pi y / (H + 1e-6) / temperature^(2j / dim)),    y = 1..H
        channel 2j + 1  cos of the same

    In float32. Source: XCiT's positions, in BiXT's code.
    """
    channel = torch.arange(dim, dtype=torch.float32, device=device)
    period = temperature ** (2 * torch.div(channel, 2, rounding_mode="floor") / dim)

    def axis(places: int) -> Tensor:
        place = torch.arange(1, places + 1, dtype=torch.float32, device=device)
        angle = (place / (places + 1e-6) * 2 * math.pi)[:, None] / period
        return torch.where(channel % 2 == 0, angle.sin(), angle.cos()).T

    by_row = axis(rows)[:, :, None].expand(-1, -1, columns)
    by_column = axis(columns)[:, None, :].expand(-1, rows, -1)
    return torch.cat((by_row, by_column))
