"""Shape checks of operands, from a table of letters."""

from collections.abc import Mapping
from typing import Any

from attngraft.errors import UsageError


class Shapes:
    """The shapes of operands, with one size per letter: `Shapes(q="B, H, Nq, dk", k="B, H, Nk, dk", w="2 H dk")`.

    An axis of several factors is the product of sizes that earlier operands have fixed. The letter b is a batch of B or 1.
    """

    def __init__(self, **shapes: str) -> None:
        self._axes = {
            name: [
                tuple(int(each) if each.isdigit() else each for each in axis.split()) for axis in letters.split(", ")
            ]
            for name, letters in shapes.items()
        }
        self._letters = shapes

    def check(self, operands: Mapping[str, Any]) -> None:
        """Check operands by name, skipping None.

        Sizes are only compared, because an exporter may leave them symbolic.

        Raises:
            UsageError: an operand has the wrong number of axes, or a size that differs from that of earlier operands; the
                message names the operand and the shapes.
        """
        sizes: dict[Any, Any] = {}
        for name, axes in self._axes.items():
            tensor = operands.get(name)
            if tensor is None:
                continue
            shape = tensor.shape
            if len(shape) != len(axes):
                raise UsageError(f"{name} must have shape ({self._letters[name]}), not {tuple(shape)}")
            before = dict(sizes)
            for axis, size in zip(axes, shape, strict=True):
                if len(axis) > 1:
                    product = 1
                    for factor in axis:
                        product = product * sizes.get(factor, factor)
                    fits = size == product
                elif axis[0] == "b":
                    fits = size == 1 or sizes.setdefault("B", size) == size
                else:
                    fits = sizes.setdefault(axis[0], size) == size
                if not fits:
                    letters = dict.fromkeys("B" if factor == "b" else factor for axis in axes for factor in axis)
                    expected = ", ".join(f"{letter}={before[letter]}" for letter in letters if letter in before)
                    raise UsageError(
                        f"{name} must have shape ({self._letters[name]}) with {expected} as in the operands before it, not "
                        f"{tuple(shape)}"
                    )
