"""Mixup and CutMix: functions of (seed, epoch, step), targets that fit the pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from attngraft.tasks.images.config import AugmentConfig
from attngraft.tasks.images.mixing import Mixing
from tests.tasks.images.datasets import host_config, make_task, normalized


def _mixing(*, seed: int = 0, smoothing: float = 0.0, **config: Any) -> Mixing:
    return Mixing(AugmentConfig(**config), classes=4, smoothing=smoothing, seed=seed)


def _batch(size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Images whose pixels all hold their position in the batch."""
    images = torch.arange(size, dtype=torch.float32).view(-1, 1, 1, 1).expand(-1, 3, 8, 8).contiguous()
    return images, torch.arange(size) % 4


@pytest.mark.parametrize(
    "config",
    [
        {"mixup": 0.8},
        {"cutmix": 1.0},
        {"mixup": 0.8, "cutmix": 1.0, "mix_mode": "elem"},
        {"mixup": 1.0, "mix_mode": "pair"},
    ],
)
@pytest.mark.parametrize("size", [8, 7, 1])
def test_a_function_of_seed_epoch_and_step(config: dict[str, Any], size: int) -> None:
    images, target = _batch(size)
    before = images.clone()
    first = _mixing(**config)(images, target, epoch=1, step=2)
    np.random.seed(9)
    again = _mixing(**config)(images, target, epoch=1, step=2)
    assert torch.equal(images, before), "the batch itself must stay"
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert first[1].shape == (size, 4)
    assert torch.allclose(first[1].sum(1), torch.ones(size))
    if size > 1:
        others = [(0, 1, 3), (0, 2, 2), (1, 1, 2)]
        mixed = [_mixing(seed=seed, **config)(images, target, epoch=e, step=s) for seed, e, s in others]
        assert all(not torch.equal(other[0], first[0]) for other in mixed)
    np.random.seed(3)
    expected = np.random.rand()
    np.random.seed(3)
    _mixing(**config)(images, target, epoch=0, step=0)
    assert np.random.rand() == expected


@pytest.mark.parametrize("size", [8, 7])
def test_targets_are_the_share_of_pixels(size: int) -> None:
    images, target = _batch(size)
    for step in range(20):
        mixed, soft = _mixing(mixup=1.0, cutmix=1.0, mix_mode="elem")(images, target, epoch=0, step=step)
        even = size - size % 2
        for i in range(even):
            j = even - 1 - i
            share = (mixed[i].mean().item() - j) / (i - j)
            expected = torch.zeros(4)
            expected[target[i]] += share
            expected[target[j]] += 1 - share
            assert torch.allclose(soft[i], expected, atol=1e-5)
        if size % 2:
            assert torch.equal(mixed[-1], images[-1])
            assert soft[-1, target[-1]] == 1.0


def test_smoothing_and_the_last_epochs() -> None:
    images, target = _batch()
    mixing = _mixing(mixup=1.0, smoothing=0.2, mix_off_epoch=2)
    _, soft = mixing(images, target, epoch=1, step=0)
    assert soft.min().item() == pytest.approx(0.05)
    same, hard = mixing(images, target, epoch=2, step=0)
    assert same is images
    assert hard is target


def test_the_task_mixes_only_when_asked() -> None:
    def prepared(**augment: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        task = make_task("digits", augment=augment)
        split = task.load(model_data_config=host_config(8)).train
        batch = split.collate([split[(0, i)] for i in range(6)])
        batch["image"] = normalized(batch["image"], host_config(8))
        return batch, task.prepare(batch, epoch=0, step=0)

    batch, same = prepared()
    assert all(same[name] is batch[name] for name in batch)
    batch, mixed = prepared(mixup=0.8)
    assert mixed["target"].shape == (6, 10)
    assert batch["target"].shape == (6,)
    assert not torch.equal(mixed["image"], batch["image"])
