"""Label maps of images of any size: whole, in windows, at several scales and mirrored."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attngraft.tasks.segmentation import inference
from attngraft.tasks.segmentation.config import InferenceConfig
from attngraft.tasks.segmentation.inference import _logits, predict_labels

SIZES = [(1, 1), (33, 517), (180, 240), (64, 64)]
WINDOW = (64, 96)


def pointwise(images: Tensor) -> Tensor:
    """Three classes, from the three channels of each pixel."""
    return torch.einsum("kc,bchw->bkhw", torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0.5, 1]]).to(images), images)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("stride", [1.0, 2 / 3, 0.1])
def test_windows_of_a_pointwise_model_are_the_whole_image(size: tuple[int, int], stride: float) -> None:
    image = torch.rand(1, 3, *size, dtype=torch.float64)
    config = InferenceConfig(mode="slide", stride=stride)
    found = _logits(pointwise, image, config, WINDOW)[0][:, :, : size[0], : size[1]]
    torch.testing.assert_close(found, pointwise(image), atol=1e-6, rtol=0)


@pytest.mark.parametrize("mode", ["whole", "slide"])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("block", [1, 2])
def test_blocks_of_classes_change_no_label(
    monkeypatch: pytest.MonkeyPatch, mode: Literal["whole", "slide"], flip: bool, block: int
) -> None:
    def model(images: Tensor) -> Tensor:
        return F.avg_pool2d(pointwise(images), 4).repeat(1, 2, 1, 1)  # with equal largest logits

    image, config = torch.rand(3, 45, 70), InferenceConfig(mode=mode, scales=(1.5,), flip=flip)
    expected = predict_labels(model, image, config, window=WINDOW)
    monkeypatch.setattr(inference, "_VALUES", block * 45 * 70)
    assert torch.equal(predict_labels(model, image, config, window=WINDOW), expected)


def test_all_windows_have_their_size_and_cover_the_image() -> None:
    seen = []

    def model(images: Tensor) -> Tensor:
        seen.append(tuple(images.shape[-2:]))
        return pointwise(images)

    predict_labels(model, torch.rand(3, 100, 97), InferenceConfig(mode="slide"), window=WINDOW)
    assert set(seen) == {WINDOW}
    assert len(seen) == 4


@pytest.mark.parametrize("mode", ["whole", "slide"])
@pytest.mark.parametrize("size", SIZES)
def test_mirroring_changes_no_label_of_a_pointwise_model(size: tuple[int, int], mode: str) -> None:
    image = torch.rand(3, *size)
    plain, mirrored = (
        predict_labels(pointwise, image, InferenceConfig(mode=mode, flip=flip), window=WINDOW)  # type: ignore[arg-type]
        for flip in (False, True)
    )
    assert plain.shape == size
    assert torch.equal(plain, mirrored)


def test_scales_are_undone_and_the_result_has_the_size_of_the_labels() -> None:
    image = torch.zeros(3, 60, 80)
    image[0], image[1, :, 40:] = 0.5, 1.0  # class 1 on the right
    config = InferenceConfig(scales=(0.5, 1.0, 1.5), size=30)
    found = predict_labels(pointwise, image, config, window=WINDOW, size=(120, 160))
    expected = torch.zeros(120, 160, dtype=torch.long)
    expected[:, 80:] = 1
    assert found.shape == (120, 160)
    assert (found != expected).float().mean() < 0.03  # next to the boundary


def test_the_given_image_is_not_changed() -> None:
    image = torch.rand(3, 20, 20)
    before = image.clone()
    predict_labels(pointwise, image, InferenceConfig(flip=True, scales=(1.0, 2.0)), window=WINDOW)
    assert torch.equal(image, before)
