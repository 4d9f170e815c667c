"""Real data sets, as a user would name them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tasks.images.making import host_config, load, normalized

CIFAR = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
SETS: dict[str, tuple[str, int, dict[str, int], list[str]]] = {
    "cifar10": ("cifar10/cifar10_train10k_test2k.npz", 32, {"train": 10000, "val": 2000}, CIFAR),
    "flowers5": ("flowers5", 32, {"train": 500, "val": 150}, ["daisy", "dandelion", "rose", "sunflower", "tulip"]),
    "tiny_imagenet20": ("tiny_imagenet20", 64, {"train": 6000, "val": 1000}, []),
    "one tar": ("tiny_imagenet20/val.tar", 32, {"train": 800, "val": 200}, []),
    "ants_bees": ("ants_bees", 32, {"train": 244, "val": 77}, ["ants", "bees"]),
}


@pytest.mark.parametrize("name", SETS)
def test_loads(shared: Path, name: str) -> None:
    path, size, sizes, classes = SETS[name]
    if not (shared / "data" / path).exists():
        pytest.skip(f"{path} is not among the reference data")
    data = load(shared / "data" / path, size=size)
    assert data.facts["sizes"] == sizes
    assert data.facts["classes"] == classes or (not classes and data.model_args["num_classes"] == 20)
    for split in (data.train, data.val):
        step = max(1, len(split) // 24)
        batch: Any = split.collate([split[(0, i)] for i in range(0, len(split), step)])
        assert batch["image"].shape[1:] == (3, size, size)
        images = normalized(batch["image"], host_config(size))
        assert torch.isfinite(images).all()
        assert 0.3 < images.std() < 2.0, "normalized pixels"
        assert len(batch["target"].unique()) >= min(5, len(data.facts["classes"]))
    assert Path(data.val.name(0)).suffix in (".jpg", ".JPEG")
