"""Settings that no memory could hold are refused."""

from __future__ import annotations

from typing import Any

import pytest

from attngraft.strict import FieldError
from attngraft.tasks.detection.config import (
    DetectionConfig,
    DetectionTestConfig,
    ObjectAugmentConfig,
    ObjectDataConfig,
)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"width": 10**6}, "must be between 1 and 8192"),
        ({"samples": 10**9}, "must be between 1 and 8192"),
        ({"mask_layers": 10**5}, "must be between 0 and 64"),
        ({"anchors": (1, 2, 3, 4, 10**9)}, "must be five positive numbers, at most 4096"),
    ],
)
def test_large_heads(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(FieldError, match=message):
        DetectionConfig(data=ObjectDataConfig(source="x"), **fields)


def test_large_images() -> None:
    with pytest.raises(FieldError, match="must be height and width, from 1 to 4096"):
        ObjectAugmentConfig(crop=(64, 10**5))
    with pytest.raises(FieldError, match="must be at least the shorter side, at most 4096"):
        ObjectAugmentConfig(size=(20_000,), longest=20_000)
    with pytest.raises(FieldError, match="must be at least the shorter side, at most 4096"):
        DetectionTestConfig(size=10**5, longest=10**5)
