"""What the operations ask of their operands: shapes that fit each other, masks that fit the scores."""

from __future__ import annotations

import torch
from torch import Tensor

from attngraft.errors import UsageError


class Sizes:
    """Letters for sizes, each fixed by the first operand that has it: `Sizes().fit("q", q, "B H Nq dk")`.

    Sizes are compared, never turned to numbers: an exporter may leave them open.
    """

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def fit(self, name: str, tensor: Tensor, letters: str) -> None:
        """Take in an operand.

        Raises:
            UsageError: another number of axes, or another size than the operands before; names operand and shapes.
        """
        axes = letters.split()
        if tensor.ndim != len(axes):
            raise UsageError(f"{name} is ({', '.join(axes)}), not of shape {tuple(tensor.shape)}")
        before = {letter: self._known[letter] for letter in axes if letter in self._known}
        for axis, size in zip(axes, tensor.shape, strict=True):
            if self._known.setdefault(axis, size) != size:
                expected = ", ".join(f"{letter}={known}" for letter, known in before.items())
                raise UsageError(
                    f"{name} is ({', '.join(axes)}) with {expected} by the operands before it, not of shape "
                    f"{tuple(tensor.shape)}"
                )

    def is_double(self, letter: str, half: str) -> bool:
        """Whether one size is twice another."""
        return self._known[letter] == 2 * self._known[half]


def check_bias(bias: Tensor, scores: tuple[int, ...]) -> None:
    """Whether a bias goes with scores of this shape (B, H, Nq, Nk).

    Raises:
        UsageError: it is not (b, H or 1, Nq or 1, Nk or 1) with b a divisor of B.
    """
    batch, *rest = scores
    fits = bias.ndim == 4 and all(size in (1, wanted) for size, wanted in zip(bias.shape[1:], rest, strict=True))
    if not fits or bias.shape[0] == 0 or batch % bias.shape[0]:
        raise UsageError(
            f"bias is (b, H or 1, Nq or 1, Nk or 1) with b a divisor of B = {batch} and (H, Nq, Nk) = {tuple(rest)}, not "
            f"of shape {tuple(bias.shape)}"
        )


def check_visible(visible: Tensor, scores: tuple[int, ...]) -> None:
    """Whether a mask goes with scores of this shape (B, H, Nq, Nk).

    Raises:
        UsageError: it is not boolean, or not broadcastable to the scores.
    """
    last = scores[max(4 - visible.ndim, 0) :]
    fits = visible.ndim <= 4 and all(size in (1, wanted) for size, wanted in zip(visible.shape, last, strict=True))
    if visible.dtype != torch.bool or not fits:
        raise UsageError(
            f"visible is boolean and broadcastable to (B, H, Nq, Nk) = {tuple(scores)}, not {visible.dtype} of shape "
            f"{tuple(visible.shape)}"
        )
