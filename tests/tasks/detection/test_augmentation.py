"""Joint augmentation: boxes follow masks, objects that vanish are dropped, and sizes keep their limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchvision.ops import masks_to_boxes

from attngraft.tasks.detection.augmentation import augmented, fitted_size, resized
from attngraft.tasks.detection.config import DetectionTestConfig, ObjectAugmentConfig
from attngraft.tasks.seeding import generator
from tests.tasks.detection.scenes import box_of, scene

STILL: dict[str, Any] = {"size": (), "hflip": 0.0}


def example(index: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Return image, boxes and masks of a scene, whose red channel is that of the number of the object."""
    _, objects = scene(index)
    masks = torch.from_numpy(np.stack([mask for _, mask in objects])).to(torch.uint8)
    boxes = torch.tensor([box_of(mask) for _, mask in objects], dtype=torch.float32)
    numbers = (masks * torch.arange(1, len(masks) + 1, dtype=torch.uint8)[:, None, None]).sum(0).to(torch.uint8)
    return numbers.expand(3, -1, -1).contiguous(), boxes, masks


def changed(
    index: int = 2, seed: int = 0, *, masked: bool = True, canvas: tuple[int, int] | None = None, **fields: Any
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    image, boxes, masks = example(index)
    config = ObjectAugmentConfig(**{**STILL, **fields})
    random = generator(seed, 0, 0)
    return augmented(image, boxes, [masks] if masked else None, config, fill=[9, 9, 9], random=random, canvas=canvas)


def edges(masks: Tensor) -> Tensor:
    found = masks_to_boxes(masks)
    found[:, 2:] += 1
    return found


@settings(deadline=None, max_examples=60, database=None)
@given(
    index=st.sampled_from([1, 2, 5, 6]),
    seed=st.integers(0, 10**6),
    crop=st.none() | st.tuples(st.integers(4, 60), st.integers(4, 60)),
    size=st.sampled_from([(), (24,), (36, 60)]),
    hflip=st.sampled_from([0.0, 1.0]),
    vflip=st.sampled_from([0.0, 1.0]),
    rotate=st.booleans(),
)
def test_boxes_are_those_of_masks(index: int, seed: int, size: tuple[int, ...], **fields: Any) -> None:
    """Exactly without resizing and after a crop, and to a pixel where the resized boxes and masks are rounded."""
    image, boxes, masks, kept = changed(index, seed, size=size, **fields)
    assert masks is not None
    assert len(boxes) == len(masks) == int(kept.sum())
    assert masks.shape[1:] == image.shape[1:]
    if fields["crop"] is not None:
        assert tuple(image.shape[1:]) == fields["crop"]
    if len(masks):
        torch.testing.assert_close(boxes, edges(masks), atol=1.0 if size else 0.0, rtol=0)
    if not size:
        for number, mask in zip((kept.nonzero() + 1).flatten().tolist(), masks, strict=True):
            assert torch.equal(image[0] == number, mask.bool())


def test_boxes_without_masks() -> None:
    """Boxes of a crop are cut, and thin ones are dropped."""
    for seed in range(20):
        image, boxes, none, kept = changed(seed=seed, masked=False, crop=(12, 14))
        _, other, masks, _ = changed(seed=seed, crop=(12, 14))
        assert none is None
        assert tuple(image.shape) == (3, 12, 14)
        assert len(boxes) == int(kept.sum())
        assert (boxes[:, 2:] - boxes[:, :2] >= 1).all()
        assert boxes.numel() == 0 or (boxes.min() >= 0 and boxes[:, 2].max() <= 14 and boxes[:, 3].max() <= 12)
        assert masks is not None and len(other) <= len(boxes)


def test_flips_and_turns() -> None:
    image, boxes, _ = example()
    height, width = image.shape[1:]
    flipped, found, *_ = changed(hflip=1.0)
    assert torch.equal(flipped, image.flip(2))
    assert found[0].tolist() == [width - boxes[0, 2], boxes[0, 1], width - boxes[0, 0], boxes[0, 3]]
    flipped, found, *_ = changed(vflip=1.0)
    assert torch.equal(flipped, image.flip(1))
    assert found[0].tolist() == [boxes[0, 0], height - boxes[0, 3], boxes[0, 2], height - boxes[0, 1]]
    turned = {tuple(changed(seed=seed, rotate=True)[0].flatten().tolist()) for seed in range(30)}
    assert turned == {tuple(torch.rot90(image, k, (1, 2)).flatten().tolist()) for k in range(4)}


def test_padding_is_filled() -> None:
    image, boxes, masks, _ = changed(crop=(60, 70))
    original = example()
    assert masks is not None
    assert torch.equal(image[:, :38, :48], original[0])
    assert set(image[:, 38:].flatten().tolist()) == {9}
    assert torch.equal(masks[:, :38, :48], original[2])
    assert not masks[:, 38:].any() and not masks[:, :, 48:].any()
    assert torch.equal(boxes, original[1])


def test_images_without_objects() -> None:
    image, *_ = example()
    config = ObjectAugmentConfig(size=(20, 30), crop_first=1.0, crop=(16, 18), rotate=True, vflip=0.5, photometric=True)
    for masks in (torch.zeros(0, *image.shape[1:], dtype=torch.uint8), None):
        pixels, boxes, found, kept = augmented(
            image,
            torch.zeros(0, 4),
            None if masks is None else [masks],
            config,
            fill=[0, 0, 0],
            random=generator(0, 0, 0),
        )
        assert tuple(pixels.shape) == (3, 16, 18)
        assert boxes.shape == (0, 4) and kept.shape == (0,)
        assert found is None if masks is None else found is not None and found.shape == (0, 16, 18)


def test_an_image_may_end_without_objects() -> None:
    counts = {len(changed(1, seed, crop=(4, 4))[1]) for seed in range(30)}
    assert 0 in counts and 1 in counts


def test_one_side_is_drawn() -> None:
    sizes = {min(changed(seed=seed, size=(20, 30, 40))[0].shape[1:]) for seed in range(20)}
    assert sizes == {20, 30, 40}
    assert max(changed(size=(40,), longest=44)[0].shape[1:]) == 44


def test_first_crop() -> None:
    """The shorter side becomes 400, 500 or 600 before a crop with sides of 384 to 600."""
    sizes = [tuple(changed(seed=seed, crop_first=1.0)[0].shape[1:]) for seed in range(12)]
    assert all(384 <= side <= 600 for size in sizes for side in size)
    assert len(set(sizes)) > 8
    assert max(changed(crop_first=1.0, size=(64,), longest=64)[0].shape[1:]) <= 64


def test_photometric_distortion_keeps_objects() -> None:
    differ = 0
    for seed in range(6):
        plain, distorted = (changed(seed=seed, hflip=0.5, photometric=on) for on in (False, True))
        differ += not torch.equal(plain[0], distorted[0])
        assert torch.equal(plain[1], distorted[1])
    assert differ


@pytest.mark.parametrize(
    ("size", "short", "longest", "canvas", "wanted"),
    [
        ((480, 640), 800, 1333, None, (800, 1067)),
        ((480, 640), 800, 1000, None, (750, 1000)),
        ((480, 640), None, 100, None, (480, 640)),
        ((480, 640), 800, 1333, (224, 224), (168, 224)),
        ((480, 640), None, 1333, (224, 160), (120, 160)),
        ((20, 30), None, 1333, (224, 224), (20, 30)),
        ((1, 2000), 10, 100, None, (1, 100)),
    ],
)
def test_sizes(
    size: tuple[int, int], short: int | None, longest: int, canvas: tuple[int, int] | None, wanted: tuple[int, int]
) -> None:
    assert fitted_size(size, short, longest, canvas) == wanted


def test_resized() -> None:
    image, *_ = example()
    config = DetectionTestConfig(size=76)
    assert resized(image, config).shape == (3, 76, 96)
    assert torch.equal(resized(image, DetectionTestConfig(size=None)), image)
    assert resized(image, config, (32, 32)).shape == (3, 25, 32)
    assert type(resized(image, config)) is Tensor
    assert resized(torch.zeros(3, 9, 9, dtype=torch.uint8), DetectionTestConfig(size=1)).shape[1:] == (2, 1)
    assert resized(torch.zeros(3, 1, 400, dtype=torch.uint8), DetectionTestConfig(size=8, longest=40)).shape[2] == 40
    for seed in range(10):
        found = changed(seed=seed, size=(60,), rotate=True, crop=(70, 20), canvas=(32, 24))[0].shape
        assert found == (3, 32, 20)
