"""Sizes that no memory could hold are refused."""

from __future__ import annotations

import pytest

from attngraft.strict import FieldError
from attngraft.tasks.segmentation.config import InferenceConfig, MaskAugmentConfig


def test_large_images() -> None:
    with pytest.raises(FieldError, match="must be height and width, from 1 to 4096"):
        MaskAugmentConfig(crop=(64, 10**5))
    for kind in (MaskAugmentConfig, InferenceConfig):
        with pytest.raises(FieldError, match="must be from 1 to 4096"):
            kind(size=10**5)
