"""What operations ask of the shapes of their operands: sizes that fit each other."""

from __future__ import annotations

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
        axes, shape, known = letters.split(), tensor.shape, self._known
        if len(shape) != len(axes):
            raise UsageError(f"{name} is ({', '.join(axes)}), not of shape {tuple(tensor.shape)}")
        before = dict(known)
        for axis, size in zip(axes, shape, strict=True):
            if known.setdefault(axis, size) != size:
                expected = ", ".join(f"{letter}={before[letter]}" for letter in axes if letter in before)
                raise UsageError(
                    f"{name} is ({', '.join(axes)}) with {expected} by the operands before it, not of shape "
                    f"{tuple(tensor.shape)}"
                )

    def is_double(self, letter: str, half: str) -> bool:
        """Whether one size is twice another."""
        return self._known[letter] == 2 * self._known[half]
