"""Feature maps as pictures, their structural similarity and sharpness."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy import ndimage

import attngraft
from attngraft.analysis.structure import ANALYSIS, gradient, pictures, sharpness, structural_similarity
from attngraft.errors import DataError, RecordError, UsageError
from tests.analysis.requests import inputs, make_request, nest, rows_of, run_and_check, swin, vit


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
    with pytest.raises(UsageError, match="the same shape|must be odd"):
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
    with pytest.raises(UsageError, match="the same shape"):
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
    with pytest.raises(UsageError, match="must have the same shape"):
        sharpness(picture, boundary[:, :4])


def outputs(model: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    """What leaves the first attention of a swin, in the block."""
    kept: list[torch.Tensor] = []
    hook = (
        model.layers[0]
        .blocks[0]
        .register_forward_hook(lambda module, given, _: kept.append(module._attn(module.norm1(given[0]))))
    )
    with torch.no_grad():
        model(images)
    hook.remove()
    return kept[0]


def scaled(component: np.ndarray, mean: np.ndarray) -> np.ndarray:
    component = -component if component @ mean < 0 else component
    return (component - component.min()) / (component.max() - component.min())


def test_components_and_edges(tmp_path: Path) -> None:
    given = make_request(swin(), swin(), names=("first", "second"), limit=4)
    result = run_and_check(ANALYSIS, given, tmp_path)
    images = inputs(given, [9])
    maps = [outputs(subject.model, images)[0].flatten(0, 1).double().numpy() for subject in given.models]
    steep = np.zeros((8, 8))
    gray = torch.nn.functional.avg_pool2d(images.mean(1), 4)[0].double().numpy()
    padded = np.pad(gray, 1, mode="edge")
    for row in range(8):
        for column in range(8):
            part = padded[row : row + 3, column : column + 3]
            weights = np.array([1, 2, 1]) / 8
            steep[row, column] = np.hypot(weights @ (part[:, 2] - part[:, 0]), weights @ (part[2] - part[0]))
    edges = steep / steep.max()
    common, own = result.panels
    torch.testing.assert_close(
        torch.tensor(own.rows[1].pictures[1].values), torch.tensor(edges), atol=1e-5, rtol=1e-4, check_dtype=False
    )
    for place, pixels in enumerate(maps):
        centred = pixels - pixels.mean(0)
        component = centred @ np.linalg.svd(centred)[2][0]
        expected = scaled(component, centred.mean(1)).reshape(8, 8)
        found_here = np.array(own.rows[1].pictures[2 + place].values)
        np.testing.assert_allclose(found_here, expected, atol=1e-4)
    both = np.concatenate(maps)
    centred = both - both.mean(0)
    expected = scaled(centred @ np.linalg.svd(centred)[2][0], centred.mean(1)).reshape(2, 8, 8)
    for place in range(2):
        np.testing.assert_allclose(np.array(common.rows[1].pictures[2 + place].values), expected[place], atol=1e-4)
    (row,) = rows_of(result, model="first", image="noise/9", component="own")
    unlike = np.array(own.rows[1].pictures[4].values)
    assert row["dissimilarity"] == pytest.approx(unlike.mean(), rel=1e-4)
    assert row["layer"] == "layers.0.blocks.0.attn"
    assert len(result.table.rows) == 4 * 2 * 2
    values = [row["dissimilarity"] for row in rows_of(result, model="second", component="common")]
    assert result.numbers["of both maps together: dissimilarity"] == pytest.approx(sum(values) / 4)


def test_a_model_is_like_itself_also_where_a_graft_stands_in(tmp_path: Path) -> None:
    model = swin()
    attngraft.graft(model, "elsa(kernel=3)@layers.0.blocks.0")
    result = run_and_check(ANALYSIS, make_request(model, model, names=("a", "b")), tmp_path)
    assert result.numbers["of each map by itself: dissimilarity"] == pytest.approx(0, abs=1e-6)
    with pytest.raises(UsageError, match="requires 2 models, got 1"):
        ANALYSIS(make_request(model))


def test_an_image_without_edges_has_no_boundaries(tmp_path: Path) -> None:
    given = make_request(vit(), vit(), shown=1, limit=1)
    flat = given.models[0].view(given.images.open(0)).new_full((32, 32, 3), 90).numpy()
    given = dataclasses.replace(
        given, image_set=dataclasses.replace(given.images, open=lambda place: Image.fromarray(flat))
    )
    result = run_and_check(ANALYSIS, given, tmp_path)
    assert {row["correlation with edges"] for row in rows_of(result)} == {None}


def test_maps_of_unlike_shapes() -> None:
    with pytest.raises(RecordError, match=r"a has a map of 8 x 8 x 24 .* b has a map of 4 x 4 x 24 .* --sites"):
        ANALYSIS(make_request(swin(), vit()))
    with pytest.raises(RecordError, match="no chosen attention layer"):
        ANALYSIS(make_request(vit(), vit(), sites="blocks.0.mlp"))


def labelled(folder: Path, changes: dict[str, np.ndarray] | None = None) -> Path:
    """Two halves of 32 x 32, the left one of class 3 and the right one of class 7, for each of ten images."""
    halves = np.where(np.arange(32) < 16, 3, 7).astype(np.uint8)[None].repeat(32, 0)
    for name in (f"noise/{place}" for place in range(10)):
        file = folder / f"{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((changes or {}).get(name, halves)).save(file)
    return folder


def test_boundaries_of_label_maps(tmp_path: Path) -> None:
    flat = np.zeros((32, 32), dtype=np.uint8)
    folder = labelled(tmp_path / "labels", {"noise/0": flat})
    given = make_request(swin(), swin(), names=("first", "second"), limit=4, batch=3, label_maps=folder)
    subject = given.models[0]
    assert subject.preparation.host.crop_pct == 0.9, "the outer pixels are cut away"
    result = run_and_check(ANALYSIS, given, tmp_path)
    own = result.panels[1]
    assert own.rows[1].pictures[1].caption == "boundaries of its labels"
    expected = np.zeros((8, 8))
    # Of 35 pixels the halves meet at 17, and 2 are cut away before: pixels 13 to 16 are boundary, 3 of them in place 3.
    expected[:, 3], expected[:, 4] = 0.75, 0.25
    np.testing.assert_allclose(np.array(own.rows[1].pictures[1].values), expected)
    np.testing.assert_array_equal(np.array(own.rows[0].pictures[1].values), 0)
    picture = torch.tensor(own.rows[1].pictures[2].values)[None]
    sharp = sharpness(picture, torch.tensor(expected)[None])
    (row,) = rows_of(result, model="first", image="noise/9", component="own")
    assert row["at boundaries over elsewhere"] == pytest.approx(float(sharp.at_boundaries), rel=1e-3)
    assert row["correlation with boundaries"] == pytest.approx(float(sharp.correlation), rel=1e-3)
    (none,) = rows_of(result, model="first", image="noise/0", component="own")
    assert none["correlation with boundaries"] is None, "a label map without boundaries"
    assert "of each map by itself: correlation with boundaries, first" in result.numbers
    assert "at most 2 pixels away" in result.note


def test_label_maps_are_found_by_their_stems(tmp_path: Path) -> None:
    folder = labelled(tmp_path / "labels")
    given = make_request(vit(), vit(), limit=2, label_maps=folder / "noise")
    assert len(ANALYSIS(given).table.rows) == 8
    twice = dataclasses.replace(given.images, names=[f"{place % 2}/{place // 2}" for place in range(10)])
    with pytest.raises(DataError, match=r"noise/0/0.png: label map of 0/0 not found; add a label map for each image"):
        ANALYSIS(dataclasses.replace(given, image_set=twice))


def test_label_maps_that_do_not_fit(tmp_path: Path) -> None:
    given = make_request(vit(), vit(), limit=2)

    def asked(folder: Path) -> None:
        ANALYSIS(dataclasses.replace(given, label_maps=folder))

    with pytest.raises(UsageError, match=r"--label-maps .*nowhere: the folder does not exist"):
        asked(tmp_path / "nowhere")
    small, colors = np.zeros((20, 32), dtype=np.uint8), np.zeros((32, 32, 3), dtype=np.uint8)
    with pytest.raises(DataError, match=r"noise/0.png: has 32 x 20 labels for an image of 32 x 32 pixels"):
        asked(labelled(tmp_path / "small", {"noise/0": small}))
    with pytest.raises(DataError, match=r"noise/0.png: not a label map"):
        asked(labelled(tmp_path / "colors", {"noise/0": colors}))
    (tmp_path / "colors" / "noise" / "0.png").write_text("text")
    with pytest.raises(DataError, match=r"noise/0.png: cannot be read as a mask \(unrecognized image format\)"):
        asked(tmp_path / "colors")
    Image.fromarray(colors[..., 0]).save(tmp_path / "colors" / "noise" / "0.png", "JPEG")
    with pytest.raises(DataError, match=r"noise/0.png: JPEG, lossy WebP and GIF change the values"):
        asked(tmp_path / "colors")


def test_blocks_of_nest_are_compared_as_a_map() -> None:
    result = ANALYSIS(make_request(nest(), nest(), limit=2, sites="levels.1"))
    values = np.array(result.panels[0].rows[0].pictures[2].values)
    assert values.shape == (8, 8)
