"""Nothing is timed before its outputs are right: a fast wrong answer is no result."""

from __future__ import annotations

from typing import Any

import torch

from attngraft.errors import AttngraftError


class GateError(AttngraftError):
    """A candidate's outputs are not the reference's, so it was not timed."""


def check_outputs(candidate: Any, reference: Any, *, what: str, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Compare two (nested) outputs; with both tolerances 0 they must be equal bit for bit.

    Raises:
        GateError: they differ in structure, shape, type or value; says where and by how much.
    """
    try:
        torch.testing.assert_close(candidate, reference, rtol=rtol, atol=atol)
    except AssertionError as error:
        raise GateError(f"{what}: not timed, because its outputs are not the reference's. {error}") from None
