from __future__ import annotations

import numpy as np
import pytest

from attngraft.errors import DataError
from attngraft.tasks.points.clouds import Cloud, check_cloud, cloud_columns, normalize, numbered
from tests.tasks.points.files import drawn


def cloud(values: np.ndarray) -> Cloud:
    points, normals, parts = values[:, :3].astype(np.float32), None, None
    if values.shape[1] == 4:
        parts = values[:, 3].astype(np.int64)
    return Cloud(name="a", points=points, normals=normals, parts=parts, category=0)


def test_normalize_puts_points_into_the_unit_ball() -> None:
    points = normalize(drawn(50).astype(np.float32) * 7 + 3)
    assert points.dtype == np.float32
    assert np.abs(points.mean(axis=0)).max() < 1e-6
    assert np.linalg.norm(points, axis=1).max() == pytest.approx(1)


def test_normalize_is_exact_for_huge_numbers_and_leaves_equal_points_finite() -> None:
    points = np.array([[0, 0, 0], [2e38, 0, 0]], dtype=np.float32)
    np.testing.assert_allclose(normalize(points), [[-1, 0, 0], [1, 0, 0]], atol=1e-6)
    assert (normalize(np.ones((4, 3), dtype=np.float32)) == 0).all()


@pytest.mark.parametrize("columns", [3, 4, 6, 7])
def test_columns(columns: int) -> None:
    values = drawn(5, columns=columns)
    points, normals, parts = cloud_columns(values, numbered("a"))
    assert points.dtype == np.float32 and (points == values[:, :3].astype(np.float32)).all()
    assert (normals is None) == (columns < 6)
    if normals is not None:
        assert (normals == values[:, 3:6].astype(np.float32)).all()
    assert (None if parts is None else (parts.dtype, parts.tolist())) == (
        (np.dtype(np.int64), [0, 1, 0, 1, 0]) if columns in (4, 7) else None
    )


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e39])
def test_a_number_that_is_not_finite_is_refused(wrong: float) -> None:
    values = drawn(5, columns=6)
    for column in (1, 4):
        broken = values.copy()
        broken[3, column] = wrong
        with pytest.raises(DataError, match=r"a: point 3 \(from 0\): .*not finite in float32; correct or remove"):
            cloud_columns(broken, numbered("a"))
    broken = values.copy()
    broken[2, 0] = wrong
    with np.errstate(over="ignore"), pytest.raises(DataError, match="a: point 2 .*not finite"):
        check_cloud(cloud(broken), where="a", place=numbered("a"))


@pytest.mark.parametrize("wrong", [0.5, -1, np.nan, 1e12])
def test_a_part_must_be_a_whole_number(wrong: float) -> None:
    values = drawn(5, columns=4)
    values[1, 3] = wrong
    with pytest.raises(DataError, match=r"a: point 1 \(from 0\): the part .* is not a whole number"):
        cloud_columns(values, numbered("a"))


def test_clouds_that_cannot_be_used() -> None:
    check_cloud(cloud(drawn(5, columns=4)), where="a", place=numbered("a"), least=5, parts=(0, 1))
    with pytest.raises(DataError, match="a: has 5 points, but 6 are needed; use fewer points, or remove"):
        check_cloud(cloud(drawn(5)), where="a", place=numbered("a"), least=6)
    with pytest.raises(DataError, match="a: has 0 points, but 1 are needed"):
        check_cloud(cloud(drawn(0)), where="a", place=numbered("a"))
    with pytest.raises(DataError, match="a: all 5 points are equal"):
        check_cloud(cloud(np.ones((5, 3))), where="a", place=numbered("a"))
    with pytest.raises(DataError, match=r"a: point 1 \(from 0\): the part 1 is none of its category's \(0, 3\)"):
        check_cloud(cloud(drawn(5, columns=4)), where="a", place=numbered("a"), parts=(0, 3))
