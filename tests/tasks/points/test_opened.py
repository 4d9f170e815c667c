"""Division of point clouds, and data that no run should use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attngraft.errors import ConfigError, DataError
from attngraft.strict import read
from attngraft.tasks.images.sources.splitting import save_split
from attngraft.tasks.points.config import PointPartsConfig, PointsConfig
from attngraft.tasks.points.opened import open_clouds, sampling_of
from tests.tasks.points.shapes import write_shapes


def config(source: Path, **data: Any) -> PointsConfig:
    return read(PointsConfig, {"data": {"source": str(source), **data}, "points": 40}, where="task")


def test_a_random_part_of_each_class_is_for_validation(tmp_path: Path) -> None:
    path = write_shapes(tmp_path / "shapes.npz", train=10, test=3)
    opened = open_clouds(config(path, val_fraction=0.3))
    assert {name: len(clouds) for name, clouds in opened.splits().items()} == {"train": 21, "val": 9, "test": 9}
    assert np.bincount(opened.val.categories).tolist() == [3, 3, 3]
    assert set(opened.drawn) == {"train", "val"}
    facts = opened.facts()
    assert facts["counts"]["train"] == {"lamp": 7, "mug": 7, "table": 7}
    assert facts["points"] == {"smallest": 64, "largest": 64}
    saved = save_split(tmp_path / "split.csv", opened.drawn)
    again = open_clouds(config(path, val_fraction=0.3, split_seed=5), saved_split=saved)
    assert again.val.names == opened.val.names


def test_a_validation_part_of_the_data_is_used(tmp_path: Path) -> None:
    opened = open_clouds(config(write_shapes(tmp_path / "shapes.npz", train=4, val=2, test=3)))
    assert [len(clouds) for clouds in opened.splits().values()] == [12, 6, 9]
    assert not opened.drawn


def test_the_best_epoch_is_picked_on_test_only_on_request_and_says_so(tmp_path: Path) -> None:
    path = write_shapes(tmp_path / "shapes.npz", train=4, val=2, test=3)
    opened = open_clouds(config(path, validation="test"))
    assert {name: len(clouds) for name, clouds in opened.splits().items()} == {"train": 18, "val": 9}
    assert "picked on the test part" in opened.notes[0]
    with pytest.raises(ConfigError, match="has no test part; use --set task.data.validation=part"):
        open_clouds(config(write_shapes(tmp_path / "bare.npz", train=4), validation="test"))


def test_folds_pool_training_and_validation(tmp_path: Path) -> None:
    path = write_shapes(tmp_path / "shapes.npz", train=4, val=2, test=3)
    parts = [open_clouds(config(path, folds=3, fold=fold)) for fold in range(3)]
    assert sorted(name for part in parts for name in part.val.names) == sorted(
        {*parts[0].train.names, *parts[0].val.names}
    )
    assert all(part.test is None for part in parts)
    assert "test part is not used" in parts[0].notes[-1]


def test_copies_in_other_parts_are_refused(tmp_path: Path) -> None:
    path = write_shapes(tmp_path / "shapes.npz", train=4, val=2)
    with np.load(path) as archive:
        arrays = dict(archive)
    arrays["x_val"][:3] = arrays["x_train"][:3]
    np.savez(path, **arrays)
    assert "3 of 6 validation clouds are copies" in open_clouds(config(path)).refusal
    assert open_clouds(config(path, check="off")).refusal == ""


def test_normals_are_those_that_the_model_was_trained_with(tmp_path: Path) -> None:
    plain = config(tmp_path)
    assert sampling_of(plain, has_normals=True, known=None).channels == 6
    assert sampling_of(plain, has_normals=False, known=None).channels == 3
    assert sampling_of(plain, has_normals=True, known=False).channels == 3
    with pytest.raises(DataError, match="trained with normals, which these clouds lack"):
        sampling_of(plain, has_normals=False, known=True)


def test_parts_are_needed_for_the_task_of_parts(tmp_path: Path) -> None:
    path = write_shapes(tmp_path / "shapes.npz", train=4)
    section = {"data": {"source": str(path)}, "points": 40}
    assert open_clouds(read(PointPartsConfig, section, where="task")).parts == {0: (0, 1, 2), 1: (3, 4), 2: (5, 6)}
    with np.load(path) as archive:
        np.savez(path, **{name: archive[name] for name in archive if not name.startswith("parts")})
    with pytest.raises(DataError, match="the points have no parts; .* or use --task points"):
        open_clouds(read(PointPartsConfig, section, where="task"))


def test_fewer_points_than_models_get_are_refused_or_repeated(tmp_path: Path) -> None:
    path = write_shapes(tmp_path / "shapes.npz", train=4)
    section = {"data": {"source": str(path)}, "points": 65}
    with pytest.raises(DataError, match="has 64 points, but 65 are needed"):
        open_clouds(read(PointsConfig, section, where="task"))
    assert len(open_clouds(read(PointsConfig, {**section, "sample": "repeated"}, where="task")).train)


def test_colors_are_not_taken_for_normals(tmp_path: Path) -> None:
    path = write_shapes(tmp_path / "shapes.npz", normals=True, train=4)
    with np.load(path) as archive:
        arrays = dict(archive)
    arrays["x_train"][..., 3:] = np.random.default_rng(0).random(arrays["x_train"][..., 3:].shape)
    np.savez(path, **arrays)
    opened = open_clouds(config(path))
    assert not opened.train.has_normals
    assert opened.train.cloud(0).normals is None
    assert "they are no normals" in opened.notes[0]
    assert open_clouds(config(path, normals=True)).train.has_normals
    assert open_clouds(config(write_shapes(path, normals=True, train=4))).train.has_normals


@pytest.mark.parametrize("points", [0, 10**9])
def test_the_number_of_points_is_bounded(points: int) -> None:
    with pytest.raises(ConfigError, match=r"task\.points: must be between 1 and 1,000,000"):
        read(PointsConfig, {"data": {"source": "x.npz"}, "points": points}, where="task")


def test_classes_and_points_that_are_probably_mistakes_are_noted(tmp_path: Path) -> None:
    path = write_shapes(tmp_path / "shapes.npz", train=4)
    with np.load(path) as archive:
        arrays = dict(archive)
    arrays["x_train"][0, 20:] = 0
    np.savez(path, **{**arrays, "y_train": arrays["y_train"] + 1, "classes": np.array(["none", "lamp", "mug", "Mug"])})
    notes = open_clouds(config(path, val_fraction=0.3, check="off")).notes
    assert any("'mug' and 'Mug' may be one" in note for note in notes)
    assert any("No training clouds of class none" in note for note in notes)
    padded = open_clouds(config(path, validation="part", val_fraction=0.3, split_seed=1)).notes
    assert any("repeat one point in more than half" in note for note in (*notes, *padded))


def test_a_single_part_is_nothing_to_segment(tmp_path: Path) -> None:
    path = write_shapes(tmp_path / "shapes.npz", train=4)
    with np.load(path) as archive:
        np.savez(path, **{**archive, "parts_train": np.zeros_like(archive["parts_train"])})
    with pytest.raises(DataError, match="every category has a single part"):
        open_clouds(read(PointPartsConfig, {"data": {"source": str(path)}, "points": 40}, where="task"))
