"""Feature maps as pictures, their structural similarity and sharpness."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from attngraft.analysis.structure import gradient, pictures, sharpness, structural_similarity
from attngraft.errors import UsageError


def by_scipy(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """SSIM of two pictures with scipy's Gaussian filter, cut at five pixels."""

    def blurred(picture: np.ndarray) -> np.ndarray:
        return np.asarray(ndimage.gaussian_filter(picture, 1.5, mode="reflect", radius=5))

    m_x, m_y = blurred(x), blurred(y)
    s_x, s_y, s_xy = blurred(x * x) - m_x**2, blurred(y * y) - m_y**2, blurred(x * y) - m_x * m_y
    c1, c2 = 0.01**2, 0.03**2
    return (2 * m_x * m_y + c1) * (2 * s_xy + c2) / ((m_x**2 + m_y**2 + c1) * (s_x + s_y + c2))


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 14), columns=st.integers(1, 14), seed=st.integers(0, 99))
def test_similarity_as_scipy_has_it(rows: int, columns: int, seed: int) -> None:
    x, y = np.random.default_rng(seed).random((2, rows, columns))
    found = structural_similarity(torch.from_numpy(x)[None], torch.from_numpy(y)[None])
    np.testing.assert_allclose(found[0].numpy(), by_scipy(x, y), rtol=1e-9, atol=1e-12)


def test_a_picture_is_like_itself_and_unlike_its_negative() -> None:
    x = torch.rand(2, 16, 20)
    torch.testing.assert_close(structural_similarity(x, x), torch.ones_like(x))
    assert structural_similarity(x, 1 - x).mean() < -0.5


@pytest.mark.parametrize(("shape", "window"), [((1, 4, 5), 11), ((1, 4, 4), 10)])
def test_what_cannot_be_compared_is_refused(shape: tuple[int, ...], window: int) -> None:
    with pytest.raises(UsageError, match="pixel by pixel|odd number"):
        structural_similarity(torch.rand(1, 4, 4), torch.rand(shape), window=window)


def test_pictures_show_the_direction_in_which_both_vary_most() -> None:
    """One direction of 8 carries everything but a little noise; scikit-learn finds the same one."""
    from sklearn.decomposition import PCA

    torch.manual_seed(0)
    along, direction = torch.randn(2, 1, 6, 7, 1, dtype=torch.float64), torch.rand(8, dtype=torch.float64)
    first, second = along * direction + 0.01 * torch.randn(2, 1, 6, 7, 8, dtype=torch.float64)
    found = torch.stack(pictures(first, second), 1)[0]
    pixels = torch.stack([first, second], 1)[0].reshape(-1, 8).numpy()
    expected = PCA(1, svd_solver="full").fit_transform(pixels)[:, 0]
    expected *= np.sign(np.corrcoef(expected, pixels.mean(1))[0, 1])
    expected = (expected - expected.min()) / np.ptp(expected)
    np.testing.assert_allclose(found.flatten().numpy(), expected, atol=1e-9)


def test_pictures_of_maps_without_a_difference() -> None:
    first, second = pictures(torch.ones(1, 3, 3, 4), torch.ones(1, 3, 3, 4))
    assert not first.any()
    assert not second.any()
    with pytest.raises(UsageError, match="pixel by pixel"):
        pictures(torch.ones(1, 3, 3, 4), torch.ones(1, 3, 4, 4))


def test_the_gradient_is_scipys() -> None:
    picture = np.random.default_rng(0).random((9, 11))
    expected = np.hypot(*(ndimage.sobel(picture, axis, mode="nearest") / 8 for axis in (0, 1)))
    np.testing.assert_allclose(gradient(torch.from_numpy(picture)[None])[0].numpy(), expected, atol=1e-12)
    ramp = torch.arange(6.0).expand(1, 5, 6)
    torch.testing.assert_close(gradient(ramp)[:, :, 1:-1], torch.ones(1, 5, 4))


def test_a_picture_with_its_edges_at_boundaries_is_sharp_there() -> None:
    picture = torch.zeros(1, 8, 8)
    picture[:, :, 4:] = 1
    boundary = torch.zeros(1, 8, 8)
    boundary[:, :, 3:5] = 1
    there, elsewhere = sharpness(picture, boundary), sharpness(picture, boundary.roll(3, 2))
    assert there.correlation.item() == pytest.approx(1)
    assert there.at_boundaries.isinf().all()
    assert elsewhere.correlation.item() < 0
    assert elsewhere.at_boundaries.item() == 0
    assert there.mean.item() == pytest.approx(elsewhere.mean.item()) == pytest.approx(0.5 * 2 / 8)
    assert sharpness(picture, torch.zeros(1, 8, 8)).correlation.isnan().all()
    with pytest.raises(UsageError, match="resize one"):
        sharpness(picture, boundary[:, :4])
