"""Attacks, against their formulas in numpy on a model whose gradient is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from attngraft.errors import UsageError
from attngraft.tasks.images.suites.attacks import fgsm, pgd


def softmax_regression(pixels: np.ndarray, weight: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Gradient of its cross-entropy by the pixels: W^T (p - y)."""
    logits = pixels @ weight.T
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    shares[np.arange(len(labels)), labels] -= 1
    return shares @ weight


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 999), epsilon=st.floats(0, 0.3), steps=st.integers(1, 5))
def test_steps_by_numpy(seed: int, epsilon: float, steps: int) -> None:
    random = np.random.default_rng(seed)
    weight, pixels = random.standard_normal((3, 12)), random.random((4, 12))
    labels = random.integers(0, 3, 4)

    def loss(x: Tensor) -> Tensor:
        return F.cross_entropy(x @ torch.from_numpy(weight).T, torch.from_numpy(labels), reduction="sum")

    x = torch.from_numpy(pixels)
    expected = np.clip(pixels + epsilon * np.sign(softmax_regression(pixels, weight, labels)), 0, 1)
    np.testing.assert_allclose(fgsm(loss, x, epsilon=epsilon).numpy(), expected, atol=1e-12)
    moved = pixels
    for _ in range(steps):
        moved = moved + 0.1 * epsilon * np.sign(softmax_regression(moved, weight, labels))
        moved = np.clip(np.minimum(np.maximum(moved, pixels - epsilon), pixels + epsilon), 0, 1)
    found = pgd(loss, x, epsilon=epsilon, step=0.1 * epsilon, steps=steps)
    np.testing.assert_allclose(found.numpy(), moved, atol=1e-12)


def test_the_random_start_is_the_generators_and_stays_near() -> None:
    model, pixels = nn.Linear(12, 3), torch.rand(5, 12)

    def attacked(seed: int | None) -> Tensor:
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        return pgd(lambda x: model(x).square().sum(), pixels, epsilon=0.1, step=1e-4, steps=1, generator=generator)

    assert torch.equal(attacked(1), attacked(1))
    assert not torch.equal(attacked(1), attacked(2))
    for seed in (None, 1):
        found = attacked(seed)
        assert (found - pixels).abs().max() <= 0.1 + 1e-6
        assert (found.amin() >= 0, found.amax() <= 1) == (True, True)


def test_more_steps_do_more_harm_and_the_model_is_left_alone() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 32), nn.Tanh(), nn.Linear(32, 5)).eval()
    pixels, labels = torch.rand(16, 3, 8, 8), torch.randint(0, 5, (16,))

    def loss(x: Tensor) -> Tensor:
        return F.cross_entropy(model(x), labels, reduction="sum")

    with torch.no_grad():
        before, once = loss(pixels), loss(fgsm(loss, pixels, epsilon=8 / 255))
        often = loss(pgd(loss, pixels, epsilon=8 / 255, steps=10))
    assert before < once < often
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(fgsm(loss, pixels, epsilon=0), pixels)


def test_the_gradient_of_a_sure_model_does_not_vanish_under_autocast() -> None:
    """In fp16 softmax - onehot would come to nothing."""
    torch.manual_seed(0)
    model, pixels = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.GELU(), nn.Linear(64, 5)), torch.rand(8, 3, 8, 8)
    labels = torch.zeros(8, dtype=torch.long)
    with torch.no_grad():
        model[3].bias[0] += 20  # type: ignore[index,operator]

    def loss(x: Tensor) -> Tensor:
        return F.cross_entropy(model(x).float(), labels, reduction="sum")

    expected = [fgsm(loss, pixels, epsilon=8 / 255), pgd(loss, pixels, epsilon=8 / 255)]
    with torch.autocast("cpu", dtype=torch.float16):
        found = [fgsm(loss, pixels, epsilon=8 / 255), pgd(loss, pixels, epsilon=8 / 255)]
    assert all(map(torch.equal, found, expected))
    inside = (pixels > 0.1) & (pixels < 0.9)
    assert (found[0] != pixels)[inside].all()


@pytest.mark.parametrize(
    ("pixels", "epsilon", "steps", "message"),
    [
        (torch.full((1, 3), 2.0), 0.1, 1, "before normalization"),
        (torch.full((1, 3), torch.nan), 0.1, 1, "before normalization"),
        (torch.rand(1, 3), -0.1, 1, "must not be negative"),
        (torch.rand(1, 3), 0.1, 0, "steps must be at least 1"),
    ],
)
def test_what_cannot_be_attacked(pixels: Tensor, epsilon: float, steps: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        pgd(lambda x: x.sum(), pixels, epsilon=epsilon, steps=steps)
