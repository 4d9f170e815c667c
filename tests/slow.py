"""What of many cases is tested at every change."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(cases: Iterable[Any], *quick: Any) -> list[Any]:
    """Parameters: `quick` at every change, the others in the slow tests."""
    return [pytest.param(case, marks=[pytest.mark.slow] * (case not in quick)) for case in cases]
