"""Joint augmentation of images and label maps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from attngraft.strict import FieldError
from attngraft.tasks.images.boundaries import IGNORED
from attngraft.tasks.images.inputs import HostInput
from attngraft.tasks.seeding import generator
from attngraft.tasks.segmentation.config import InferenceConfig, MaskAugmentConfig, MaskDataConfig, MaskLossConfig
from attngraft.tasks.segmentation.source import open_masks
from attngraft.tasks.segmentation.split import MaskSplit, augmented
from tests.tasks.segmentation.drawings import write_drawings

HOST = HostInput.from_model({"input_size": (3, 224, 224)})


def colored(size: tuple[int, int] = (40, 60)) -> tuple[Tensor, Tensor]:
    """An image whose gray value is 20 times its label, in blocks of 10 x 10 pixels."""
    label = torch.arange(size[0])[:, None] // 10 + torch.arange(size[1]) // 10
    return (20 * label).expand(3, -1, -1).to(torch.uint8).contiguous(), label.to(torch.uint8)


def draws(count: int, **fields: Any) -> list[tuple[Tensor, Tensor]]:
    image, label = colored()
    config = MaskAugmentConfig(**{"crop": (24, 32), "photometric": False, **fields})
    return [
        augmented(image, label, config, fill=[100, 100, 100], random=generator(0, epoch, 0)) for epoch in range(count)
    ]


def test_image_and_label_stay_together() -> None:
    """Away from the edges of blocks, which interpolation blurs."""
    for image, label in draws(20, scale=(0.5, 2.0)):
        assert image.shape == (3, 24, 32)
        assert label.shape == (24, 32)
        assert image.dtype == label.dtype == torch.uint8
        known = label != IGNORED
        wrong = (image[0].int() - 20 * label.int()).abs() > 20  # more than a block
        assert (wrong & known).sum() < 0.01 * known.sum()
        assert (image[:, ~known] == 100).all()


def test_they_differ_between_epochs_and_repeat() -> None:
    first, second = draws(6, scale=(0.5, 2.0)), draws(6, scale=(0.5, 2.0))
    assert all(
        torch.equal(a, b) for one, other in zip(first, second, strict=True) for a, b in zip(one, other, strict=True)
    )
    assert len({image.numpy().tobytes() for image, _ in first}) == 6


def test_small_images_are_padded_at_right_and_below() -> None:
    ((image, label),) = draws(1, crop=(64, 80), scale=(1.0, 1.0), hflip=0.0)
    assert (label != IGNORED).sum() == 40 * 60
    assert (label[:40, :60] != IGNORED).all()
    assert image.shape == (3, 64, 80)


def test_an_image_can_shrink_to_almost_nothing() -> None:
    image, label = draws(1, scale=(1e-6, 1e-6))[0]
    assert (image.shape, label.shape) == ((3, 24, 32), (24, 32))
    assert (label != IGNORED).sum() == 2


@pytest.mark.parametrize("scale", [(0.0, 1.0), (2.0, 1.0), (1.0, 1e9)])
def test_scales_are_limited(scale: tuple[float, float]) -> None:
    with pytest.raises(FieldError, match="increasing numbers above 0, at most 32"):
        MaskAugmentConfig(scale=scale)
    with pytest.raises(FieldError, match="numbers above 0, at most 32"):
        InferenceConfig(scales=(1000.0,))
    with pytest.raises(FieldError, match="must be positive numbers"):
        MaskLossConfig(class_weights=())


def test_a_class_that_dominates_is_avoided() -> None:
    """The right tenth has another label; few crops contain it by chance."""
    label = torch.zeros(60, 200, dtype=torch.uint8)
    label[:, 180:] = 1
    image = label.expand(3, -1, -1).contiguous()
    config = MaskAugmentConfig(crop=(40, 60), scale=(1.0, 1.0), photometric=False, max_share=0.95)
    free = MaskAugmentConfig(crop=(40, 60), scale=(1.0, 1.0), photometric=False, max_share=1.0)
    found = {
        name: np.mean(
            [
                bool((augmented(image, label, each, fill=[0, 0, 0], random=generator(0, epoch, 0))[1] == 1).any())
                for epoch in range(60)
            ]
        )
        for name, each in {"avoided": config, "free": free}.items()
    }
    assert found["avoided"] > 0.6 > 0.3 > found["free"]


def test_colors_change_and_labels_do_not() -> None:
    plain, recolored = draws(12, hflip=0.0), draws(12, hflip=0.0, photometric=True)
    assert all(torch.equal(a[1], b[1]) for a, b in zip(plain, recolored, strict=True))
    assert sum(not torch.equal(a[0], b[0]) for a, b in zip(plain, recolored, strict=True)) >= 6


def test_evaluation_examples_have_their_own_size(tmp_path: Path) -> None:
    source = open_masks(MaskDataConfig(source=str(write_drawings(tmp_path, train=4, val=3))))
    train = MaskSplit(source.train, host=HOST, augment=MaskAugmentConfig(crop=(16, 20)))
    batch = train.collate([train[0, index] for index in range(3)])
    assert (batch["image"].shape, batch["label"].shape) == ((3, 3, 16, 20), (3, 16, 20))
    val = MaskSplit(source.val, host=HOST)
    batch = val.collate([val[0, index] for index in range(3)])
    for index, (image, label) in enumerate(zip(batch["image"], batch["label"], strict=True)):
        assert image.shape[1:] == label.shape == source.val.label(index).shape
    assert val.name(0) == source.val.names[0]
