"""What runs wrote while they trained: curves, confusions, images that changed sides."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attngraft.analysis import confusion, curves, sides
from attngraft.errors import TrainingError, UsageError
from attngraft.results.analysis import Grid, Pictures
from attngraft.targets.handle import ModelHandle, open_handle
from attngraft.targets.images import ImageSet
from attngraft.training.run_folder import RunFolder
from tests.analysis.requests import image_set, make_request, rows_of, run_and_check, vit
from tests.export.runs import CLASSES, make_run

TARGET = np.array([0, 0, 1, 1, 2, 3, 4, 4, 4, 4])


def trained(
    folder: Path,
    predicted: list[int],
    *,
    losses: tuple[float, ...] = (2.0, 1.0),
    classes: tuple[str, ...] = tuple(CLASSES),
) -> ModelHandle:
    run = RunFolder(make_run(folder, classes=classes))
    rows = [
        {"epoch": epoch, "seconds": 1.0, "train/loss": loss, "val/top1": 1 / loss / 4, "val/loss": loss}
        for epoch, loss in enumerate(losses, start=1)
    ]
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = np.array(predicted)
    names = np.array([f"noise/{place}" for place in range(10)])
    np.savez(run.predictions, name=names, score=said == TARGET, binary=True, target=TARGET, predicted=said)
    return open_handle(str(folder))


@pytest.fixture
def runs(tmp_path: Path) -> tuple[ModelHandle, ModelHandle]:
    first = trained(tmp_path / "first", [0, 1, 1, 1, 2, 3, 4, 4, 0, 0])
    second = trained(tmp_path / "second", [0, 0, 1, 0, 2, 3, 4, 4, 4, 0], losses=(3.0, float("nan")))
    return first, second


def test_curves(runs: tuple[ModelHandle, ModelHandle], tmp_path: Path) -> None:
    result = run_and_check(curves.ANALYSIS, make_request(*runs, image_set=None), tmp_path)
    assert result.subjects == ["first", "second"]
    assert [panel.title for panel in result.panels] == [
        "top-1 accuracy, validation",
        "loss, validation",
        "loss, training",
    ]
    assert [line.y for line in result.panels[2].lines] == [[2.0, 1.0], [3.0, None]]
    (row,) = rows_of(result, model="first", epoch=2)
    assert row["val/top1"] == 0.25
    with pytest.raises(UsageError, match="a is not a run"):
        curves.ANALYSIS(make_request(vit()))


def test_epochs_to_the_baselines_best(tmp_path: Path) -> None:
    answers = [0] * 10
    runs = [
        trained(tmp_path / name, answers, losses=losses)
        for name, losses in {
            "slow": (4.0, 2.0, 1.0, 1.5),
            "soon": (2.0, 1.0, 0.5),
            "never": (4.0, float("nan"), 3.0),
        }.items()
    ]
    result = run_and_check(curves.ANALYSIS, make_request(*runs, image_set=None), tmp_path)
    assert result.numbers == {"slow: epochs to the best of slow": 3, "soon: epochs to the best of slow": 2}
    assert [row["epochs to baseline's best"] for row in rows_of(result, epoch=1)] == [3, 2, None]
    assert "top-1 accuracy is at least as good as the best of slow" in result.note
    other = curves.ANALYSIS(make_request(*runs, image_set=None, baseline=2))
    assert [row["epochs to baseline's best"] for row in rows_of(other, epoch=1)] == [2, 1, 3]


def test_confusion(runs: tuple[ModelHandle, ModelHandle], tmp_path: Path) -> None:
    result = run_and_check(confusion.ANALYSIS, make_request(*runs, image_set=None), tmp_path)
    own, difference = result.panels
    assert isinstance(own, Grid)
    assert isinstance(difference, Grid)
    assert own.cells[0] == [0.5, 0.5, 0, 0, 0]
    assert own.cells[4] == [0.5, 0, 0, 0, 0.5]
    assert difference.cells[0] == [0.5, -0.5, 0, 0, 0]
    assert difference.cells[4] == [-0.25, 0, 0, 0, 0.25]
    assert difference.diverging
    assert result.numbers == {"first: right": 0.7, "second: right": 0.8}


def test_sides(runs: tuple[ModelHandle, ModelHandle], tmp_path: Path) -> None:
    result = run_and_check(sides.ANALYSIS, make_request(*runs), tmp_path)
    gained, lost = (rows_of(result, side=side) for side in ("gained", "lost"))
    assert [(row["image"], row["true class"], row["first"], row["second"]) for row in gained] == [
        ("noise/1", CLASSES[0], CLASSES[1], CLASSES[0]),
        ("noise/8", CLASSES[4], CLASSES[0], CLASSES[4]),
    ]
    assert [row["image"] for row in lost] == ["noise/3"]
    (bees,) = rows_of(result, side="class", image=CLASSES[1])
    assert (bees["first"], bees["second"]) == (1.0, 0.5)
    assert result.numbers == {"gained": 2, "lost": 1, "of images": 10}
    pictures, classes = result.panels
    assert isinstance(pictures, Pictures)
    assert [(row.name, len(row.pictures)) for row in pictures.rows] == [("gained", 2), ("lost", 1)]
    assert isinstance(classes, Grid)


def test_images_that_are_not_the_runs_are_not_shown(runs: tuple[ModelHandle, ModelHandle]) -> None:
    other: ImageSet = replace(image_set(), names=[f"other/{place}" for place in range(10)])
    result = sides.ANALYSIS(make_request(*runs, image_set=other))
    assert [panel.kind for panel in result.panels] == ["grid"]


def test_runs_that_cannot_be_compared(runs: tuple[ModelHandle, ModelHandle], tmp_path: Path) -> None:
    first, second = runs
    assert second.record is not None
    assert second.record.predictions is not None
    np.savez(second.record.predictions, name=np.arange(3).astype(str), target=TARGET[:3], predicted=TARGET[:3])
    with pytest.raises(UsageError, match="validated on different images"):
        sides.ANALYSIS(make_request(first, second))
    np.savez(second.record.predictions, name=np.arange(3).astype(str), target=np.eye(3))
    with pytest.raises(UsageError, match="several labels"):
        confusion.ANALYSIS(make_request(first, second))
    with pytest.raises(UsageError, match="trained for different classes"):
        confusion.ANALYSIS(
            make_request(first, trained(tmp_path / "third", [0] * 10, classes=("a", "b", "c", "d", "e")))
        )
    second.record.predictions.write_bytes(b"PK, but no archive")
    with pytest.raises(TrainingError, match="predictions.npz"):
        confusion.ANALYSIS(make_request(first, second))
    second.record.predictions.unlink()
    with pytest.raises(UsageError, match="requires images"):
        confusion.ANALYSIS(make_request(first, open_handle(str(tmp_path / "second")), image_set=None))
