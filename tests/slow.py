"""Marks for parametrized cases that only longer lanes run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(cases: Iterable[Any], *quick: Any) -> list[Any]:
    """Return parameters of which all but `quick` are marked slow."""
    return [pytest.param(case, marks=[pytest.mark.slow] * (case not in quick)) for case in cases]


def product_but(cases: Iterable[Any], chosen: Iterable[Any]) -> list[Any]:
    """Return parameters (several as a tuple) of which `chosen` are marked slow and all others `product`."""
    slow = list(chosen)
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=pytest.mark.slow if case in slow else pytest.mark.product,
        )
        for case in cases
    ]
