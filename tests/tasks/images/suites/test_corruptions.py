"""Corruptions, against independent ways to the same images, and the noise against its moments."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torchvision.transforms.v2 import functional

from attngraft.errors import UsageError
from attngraft.tasks.images.suites.corruptions import CORRUPTIONS, SEVERITIES, corruption
from tests.tasks.images.suites.making import smooth_picture
from tests.tasks.images.suites.plain import LEVELS, MOST_APART, differences, noisy


def corrupted(name: str, image: Tensor, severity: int, seed: int = 0) -> Tensor:
    return corruption(name)(image, severity, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("shape", [(3, 48, 64), (1, 33, 20), (3, 1, 1)])
def test_images_stay_images(name: str, shape: tuple[int, ...]) -> None:
    image = torch.rand(shape)
    for severity in range(1, SEVERITIES + 1):
        found = corrupted(name, image, severity)
        assert (found.shape, found.dtype) == (image.shape, image.dtype)
        assert found.min() >= 0
        assert found.max() <= 1


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_seed_gives_the_same_image_and_severities_hurt_more(name: str) -> None:
    image = smooth_picture()
    assert torch.equal(corrupted(name, image, 3), corrupted(name, image, 3))
    assert torch.equal(corrupted(name, image, 3), corrupted(name, image, 3, seed=1)) != CORRUPTIONS[name].random
    harm = [float((corrupted(name, image, severity) - image).square().mean()) for severity in range(1, 6)]
    assert harm == sorted(harm)
    assert harm[0] > 0


@pytest.mark.parametrize("name", ["gaussian_noise", "shot_noise", "speckle_noise"])
def test_noise_has_the_mean_and_the_deviation_that_it_should(name: str) -> None:
    """Of a gray image, at a level that nothing is clamped by."""
    gray, level = 0.5, {"gaussian_noise": 0.05, "shot_noise": 200.0, "speckle_noise": 0.1}[name]
    expected = {"gaussian_noise": level, "shot_noise": (gray / level) ** 0.5, "speckle_noise": gray * level}[name]
    found = corruption(name).apply(torch.full((3, 200, 200), gray), level, torch.Generator().manual_seed(0))
    assert float(found.mean()) == pytest.approx(gray, abs=4 * expected / 120_000**0.5)
    assert float(found.std()) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("severity", [1, 3, 5])
@pytest.mark.parametrize("name", ["gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise"])
def test_noise_is_distributed_as_numpys(name: str, severity: int) -> None:
    """The formulas of ImageNet-C's own code, in numpy: both samples are of one distribution, dark, gray and bright."""
    level, random = CORRUPTIONS[name].levels[severity - 1], np.random.default_rng(severity)
    for gray in (0.1, 0.5, 0.9):
        expected = noisy(name, np.full(3 * 60 * 60, gray), level, random)
        found = corruption(name)(torch.full((3, 60, 60), gray), severity, torch.Generator().manual_seed(severity))
        both = (np.round(found.flatten().double().numpy(), 6), np.round(expected, 6))
        assert stats.ks_2samp(*both).pvalue > 1e-4
        beside = np.corrcoef(found[0, :, :-1].flatten(), found[0, :, 1:].flatten())[0, 1]
        assert abs(beside) < 0.08  # neighbors draw apart


def test_shot_noise_counts_whole_photons() -> None:
    found = corrupted("shot_noise", smooth_picture(), 5) * 3
    assert torch.allclose(found, found.round(), atol=1e-6)


def test_impulses_are_half_salt_half_pepper() -> None:
    found = corrupted("impulse_noise", torch.full((3, 200, 200), 0.5), 5)
    shares = [float((found == value).float().mean()) for value in (0, 0.5, 1)]
    assert shares == pytest.approx([0.135, 0.73, 0.135], abs=0.006)


@pytest.mark.parametrize("severity", [1, 3])
def test_blur_is_torchvisions_away_from_the_border(severity: int) -> None:
    sigma = CORRUPTIONS["gaussian_blur"].levels[severity - 1]
    image = smooth_picture()
    kernel = 2 * int(4 * sigma + 0.5) + 1
    padded = functional.pad(image, [kernel // 2], padding_mode="edge")
    expected = functional.gaussian_blur(padded, [kernel, kernel], [sigma, sigma])
    inside = expected[:, kernel // 2 : -(kernel // 2), kernel // 2 : -(kernel // 2)]
    torch.testing.assert_close(corrupted("gaussian_blur", image, severity), inside, atol=1e-5, rtol=0)


def test_severities_are_imagenet_cs() -> None:
    assert {name: each.levels for name, each in CORRUPTIONS.items()} == LEVELS


@pytest.mark.parametrize("severity", range(1, SEVERITIES + 1))
@pytest.mark.parametrize("name", MOST_APART)
@pytest.mark.parametrize("channels", [1, 3])
def test_what_draws_nothing_by_numpy(name: str, severity: int, channels: int) -> None:
    image = smooth_picture()[:channels]
    if name == "brightness":
        image[:, :2] = 0
        image = image.expand(3, -1, -1)  # gray is a color there
    found = corrupted(name, image, severity)
    mean, most = differences(name, image.numpy(), LEVELS[name][severity - 1], found.numpy())
    assert mean < MOST_APART[name][0] and most < MOST_APART[name][1]


def test_levels_of_the_papers_table_12() -> None:
    image = torch.full((3, 100, 100), 0.5)
    found = corruption("gaussian_noise").apply(image, 5 / 255, torch.Generator().manual_seed(0))
    assert float((255 * (found - image)).std()) == pytest.approx(5, rel=0.02)


def test_half_precision_stays_half() -> None:
    half = smooth_picture().half()
    for name in CORRUPTIONS:
        found = corrupted(name, half, 2)
        assert torch.equal(found, corrupted(name, half.float(), 2).half())


@pytest.mark.parametrize("image", [torch.randn(3, 8, 8), torch.full((3, 8, 8), torch.nan)])
def test_normalized_images_are_refused(image: Tensor) -> None:
    with pytest.raises(UsageError, match="before normalization"):
        corrupted("contrast", image, 1)


@pytest.mark.parametrize("image", [torch.zeros(3, 8, 8, dtype=torch.uint8), torch.rand(1, 3, 8, 8)])
def test_bytes_and_batches_are_refused(image: Tensor) -> None:
    with pytest.raises(UsageError, match=r"a float tensor \(channels, H, W\)"):
        corrupted("contrast", image, 1)


def test_what_there_is_not() -> None:
    with pytest.raises(UsageError, match="did you mean 'gaussian_noise'|did you mean gaussian_noise"):
        corruption("gausian_noise")
    for severity in (0, 6):
        with pytest.raises(UsageError, match="severity must be 1 to 5"):
            corrupted("contrast", smooth_picture(), severity)
    for name in ("jpeg", "pixelate"):
        with pytest.raises(UsageError, match="must have 1 or 3 channels"):
            corrupted(name, torch.rand(4, 8, 8), 1)
