"""What each condition does to an image, against plain ways to the same with the numbers that the papers give."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from attngraft.evaluation.suites import Condition, suites
from attngraft.tasks.images.suites.changes import AttackTarget, SalientDropped, noise_generator
from tests.tasks.images.suites.making import MEAN, attack_target, smooth_picture
from tests.tasks.images.suites.plain import LEVELS, MOST_APART, differences, noisy

#: by suite and group, the corruption and its level
CORRUPTED = {
    "corruptions": {
        f"{name}-{severity}": (name, level)
        for name, levels in LEVELS.items()
        for severity, level in enumerate(levels, start=1)
    },
    "noise": {
        "gaussian_noise-5": ("gaussian_noise", 5 / 255),
        "gaussian_noise-10": ("gaussian_noise", 10 / 255),
        "shot_noise-60": ("shot_noise", 60),
        "gaussian_blur-1": ("gaussian_blur", 1),
        "gaussian_blur-2": ("gaussian_blur", 2),
    },
}
GROUPS = [(suite, group, *what) for suite, groups in CORRUPTED.items() for group, what in groups.items()]


def of_group(suite: str, group: str) -> list[Condition]:
    return [condition for condition in suites()[suite].conditions if condition.group == group]


def shown(condition: Condition, pixels: Tensor, number: int = 0) -> np.ndarray:
    """An example of this number, under the condition."""
    assert condition.example is not None
    return condition.example(pixels, noise_generator(condition.noise_seed or 0, number), color=MEAN).numpy()


@pytest.mark.parametrize("suite", CORRUPTED)
def test_which_corruptions_there_are(suite: str) -> None:
    assert {condition.group for condition in suites()[suite].conditions} == CORRUPTED[suite].keys()


@pytest.mark.parametrize(("suite", "group", "name", "level"), [each for each in GROUPS if each[2] in MOST_APART])
def test_what_draws_nothing(suite: str, group: str, name: str, level: float) -> None:
    image = smooth_picture(112, 96)  # large enough that 0.01 more or less is another number of pixels
    (condition,) = of_group(suite, group)
    mean, most = differences(name, image.numpy(), level, shown(condition, image))
    assert mean < MOST_APART[name][0] and most < MOST_APART[name][1]


@pytest.mark.parametrize(("suite", "group", "name", "level"), [each for each in GROUPS if each[2] not in MOST_APART])
def test_noise(suite: str, group: str, name: str, level: float) -> None:
    """Over its five seeds: how far values go from dark, gray and bright, and how far squared, to five standard errors."""
    conditions = of_group(suite, group)
    assert [condition.noise_seed for condition in conditions] == [0, 1, 2, 3, 4]
    for gray in (0.25, 0.5, 0.8):
        plain = np.full((3, 96, 96), gray, dtype=np.float32)
        found = np.stack([shown(condition, torch.from_numpy(plain)) for condition in conditions]) - gray
        expected = noisy(name, np.full(10 * plain.size, gray), level, np.random.default_rng(0)) - gray
        for power in (1, 2):
            error = np.std(expected**power) * (1 / found.size + 1 / expected.size) ** 0.5
            assert abs(np.mean(found**power) - np.mean(expected**power)) < 5 * error


def test_hidden_center() -> None:
    image = smooth_picture(32, 64)
    expected = image.numpy().copy()
    expected[:, 8:24, 16:48] = np.array(MEAN)[:, None, None]
    (condition,) = of_group("occlusion", "center")
    np.testing.assert_array_equal(shown(condition, image), expected)


@pytest.mark.parametrize("percent", [25, 50, 75])
def test_dropped_patches(percent: int) -> None:
    """Of 8 pixels, those with the highest draws."""
    image = smooth_picture(64, 96)
    conditions = of_group("patches", f"random-{percent}")
    assert [condition.noise_seed for condition in conditions] == [0, 1, 2, 3, 4]
    for condition in conditions:
        draws = torch.rand(96, generator=noise_generator(condition.noise_seed or 0, 7)).numpy()
        expected = image.numpy().copy()
        for place in np.argsort(-draws)[: 96 * percent // 100]:
            row, column = divmod(place, 12)
            expected[:, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8] = np.array(MEAN)[:, None, None]
        np.testing.assert_array_equal(shown(condition, image, number=7), expected)
    (salient,) = of_group("patches", f"salient-{percent}")
    assert salient.batch == SalientDropped(percent / 100)


def attacked(name: str, part: int, pixels: Tensor, model: AttackTarget) -> np.ndarray:
    (condition,) = of_group(name, f"{name}-{part}")
    assert condition.batch is not None
    return condition.batch(pixels, model, noise_seed=condition.noise_seed or 0).numpy()


@pytest.mark.parametrize("part", [1, 2, 4, 8])
def test_fgsm(part: int) -> None:
    """On a softmax regression, whose gradient is W^T (p - y)."""
    torch.manual_seed(0)
    linear, labels = nn.Linear(3 * 4 * 4, 5).double(), torch.tensor([0, 1, 2, 3])
    pixels = torch.rand(4, 3, 4, 4, dtype=torch.float64)
    x, weight, bias = pixels.flatten(1).numpy(), linear.weight.detach().numpy(), linear.bias.detach().numpy()
    shares = np.exp(x @ weight.T + bias)
    gradient = (shares / shares.sum(1, keepdims=True) - np.eye(5)[labels.numpy()]) @ weight
    found = attacked("fgsm", part, pixels, attack_target(nn.Sequential(nn.Flatten(), linear), labels, [0, 1, 2, 3]))
    expected = np.clip(x + part / 255 * np.sign(gradient), 0, 1)
    np.testing.assert_allclose(found.reshape(4, -1), expected, atol=1e-12)


@pytest.mark.parametrize("part", [1, 2, 4, 8])
def test_pgd(part: int) -> None:
    """Uphill to a top of the loss near each pixel, and to and fro around it: where that ends is a matter of every step."""
    torch.manual_seed(0)
    numbers, epsilon = [7, 8, 9, 10], part / 255
    pixels = torch.rand(4, 3, 4, 4, dtype=torch.float64)
    top = pixels + 1.5 * epsilon * (2 * torch.rand_like(pixels) - 1)
    hill = replace(
        attack_target(nn.Identity(), torch.zeros(4), numbers), losses=lambda x: -(x - top).square().sum((1, 2, 3))
    )
    start = pixels.numpy()
    draws = (
        torch.stack([torch.rand(3, 4, 4, generator=noise_generator(0, number)) for number in numbers]).double().numpy()
    )
    moved = np.clip(start + epsilon * (2 * draws - 1), 0, 1)
    for _ in range(10):
        moved = moved + 0.25 * epsilon * np.sign(top.numpy() - moved)
        moved = np.clip(np.clip(moved, start - epsilon, start + epsilon), 0, 1)
    np.testing.assert_allclose(attacked("pgd", part, pixels, hill), moved, atol=1e-7)  # draws are of single precision
