"""Image batches: uint8 until they are on the device, then torchvision's numbers, mixed after that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms import Compose, Normalize, ToTensor

from attngraft.errors import ConfigError
from attngraft.tasks.images.inputs import HostInput, ImageBatches
from tests.tasks.images.datasets import host_config, make_task, picture

HOST = HostInput.from_model(host_config(12))


@pytest.mark.parametrize("crop_pct", [0, 1e-9, 1e9, float("nan")])
def test_crops_out_of_range_are_refused(crop_pct: float) -> None:
    with pytest.raises(ConfigError, match=r"crop_pct must be from 0.01 to 10.0, got"):
        HostInput.from_model({"crop_pct": crop_pct})


@pytest.mark.parametrize(
    "config",
    [
        {"input_size": (3, 10**6, 10**6)},
        {"input_size": (3, float("nan"), 8)},
        {"input_size": (3, 8)},
        {"mean": ["a"]},
        {"mean": 0.5},
        {"mean": [0.5] * 7},
        {"std": [0.0, 1.0, 1.0]},
        {"std": []},
    ],
)
def test_numbers_that_no_input_has_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"host: (input_size|mean) .*correct"):
        HostInput.from_model(config)


def batch(images: Tensor) -> dict[str, Tensor]:
    return {"image": images, "target": torch.arange(len(images))}


def pictures(mode: str = "RGB") -> tuple[Tensor, Tensor]:
    """Three as bytes, and as torchvision normalizes them."""
    host = HostInput.from_model(host_config(12, channels=len(mode)))
    steps = Compose([ToTensor(), Normalize(host.mean, host.std)])
    images = [picture(number, mode=mode) for number in range(3)]
    shape = (12, 12, len(mode))
    raw = [torch.from_numpy(np.array(image).reshape(shape)).permute(2, 0, 1) for image in images]
    return torch.stack(raw), torch.stack([steps(image) for image in images])


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("strided", [False, True])
def test_bytes_become_torchvisions_numbers(mode: str, strided: bool) -> None:
    raw, expected = pictures(mode)
    if strided:
        raw = raw.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    host = HostInput.from_model(host_config(12, channels=len(mode)))
    for images in (raw, raw[:1]):
        (found,), keywords = ImageBatches(host).to_model(batch(images))
        assert torch.equal(found, expected[: len(images)])
        assert found.is_contiguous()
        assert keywords == {}
    assert torch.equal(host.normalize(raw[0]), expected[0])


def test_preparing_and_calling_normalize_once() -> None:
    raw, expected = pictures()
    batches = ImageBatches(HOST)
    prepared = batches.prepare(batch(raw), epoch=0, step=0)
    assert torch.equal(prepared["image"], expected)
    assert batches.to_model(prepared)[0][0] is prepared["image"]
    assert batches.prepare(prepared, epoch=0, step=0)["image"] is prepared["image"]


def test_what_is_mixed_is_normalized() -> None:
    raw, expected = pictures()

    def mix(images: Tensor, target: Tensor, *, epoch: int, step: int) -> tuple[Tensor, Tensor]:
        assert torch.equal(images, expected)
        return images.flip(0), target + 10 * epoch + step

    prepared = ImageBatches(HOST, mix).prepare(batch(raw), epoch=3, step=2)
    assert torch.equal(prepared["image"], expected.flip(0))
    assert prepared["target"].tolist() == [32, 33, 34]


@pytest.mark.parametrize(("augment", "dtype"), [({}, torch.uint8), ({"erasing": 1.0}, torch.float32)])
def test_loading_processes_send_bytes_unless_parts_are_erased(augment: dict[str, Any], dtype: torch.dtype) -> None:
    for crop in ("pad", "resized"):
        task = make_task("digits", augment={"crop": crop, **augment})
        data = task.load(model_data_config=host_config(8))
        assert data.train.collate([data.train[(0, i)] for i in range(2)])["image"].dtype == dtype
        assert data.val.collate([data.val[(0, i)] for i in range(2)])["image"].dtype == torch.uint8
