"""`attngraft data check` on point clouds."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from attngraft import cache
from attngraft.cli import main
from attngraft.cli.data_points import draw_cloud
from attngraft.tasks.points.clouds import Cloud
from tests.cli.test_data import check
from tests.tasks.points.shapes import write_shapes


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.ENVIRONMENT, str(tmp_path / "cache"))


@pytest.fixture
def shapes(tmp_path: Path) -> Path:
    """Clouds of 64 points with parts."""
    return write_shapes(tmp_path / "shapes.npz", train=10, test=2)


def test_parts_are_found_and_shown(shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sheet, split = tmp_path / "sheet.png", tmp_path / "split.csv"
    assert check(shapes, "--set", "task.points=64", "--contact-sheet", sheet, "--save-split", split) == 0
    shown = capsys.readouterr().out
    assert f"{shapes}: point clouds without normals, 3 classes, for point_parts" in shown
    assert "0.2 of each class" in shown
    assert "64, 64, 64" in shown
    row = next(line for line in shown.splitlines() if "lamp" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")] == ["lamp", "8", "2", "2", "0, 1, 2"]
    assert "Note: Batches of" not in shown
    ready = f"--data {shapes} --recipe tiny-parts --set task.points=64 --host attngraft:bixt_parts_naive --graft ..."
    assert f"Ready: attngraft compare {ready}" in shown
    assert len(split.read_text().splitlines()) == 31
    with Image.open(sheet) as picture:
        assert picture.size == (150 + 6 * 120, 3 * 120)
        pixels = np.asarray(picture)[:120, 150:]  # lamps
    hues = np.unique(np.asarray(Image.fromarray(pixels).convert("HSV"))[np.ptp(pixels, axis=2) > 40][:, 0] // 16)
    assert len(hues) >= 3, "a color for each part"


def test_classes_as_json(shapes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(shapes, "--task", "points", "--set", "task.points=32", "--val-fraction", "0.5", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["task"], found["classes"]) == ("points", ["lamp", "mug", "table"])
    assert found["sizes"] == {"train": 15, "val": 15, "test": 6}
    assert found["counts"]["test"] == {"lamp": 2, "mug": 2, "table": 2}
    assert found["points"] == {"smallest": 64, "largest": 64}
    assert found["normals"] is False
    assert "parts" not in found
    assert found["notes"] == ["Batches of 32 are cut to the 15 training clouds."]
    assert found["refusals"] == []


def test_too_few_points_are_refused(shapes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(shapes, "--task", "points") == 2
    shown = capsys.readouterr().out
    assert "Training would be refused:" in shown
    assert "has 64 points, but 256 are needed" in shown
    assert "Ready" not in shown
    assert check(shapes, "--task", "points", "--json") == 2
    assert "256 are needed" in json.loads(capsys.readouterr().out)["refusals"][0]


def test_copies_in_validation_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_shapes(tmp_path / "shapes.npz", train=4)
    with np.load(tmp_path / "shapes.npz") as archive:
        arrays = dict(archive)
    twice = {f"{name}_val": arrays[f"{name}_train"] for name in ("x", "y", "parts")}
    np.savez(tmp_path / "twice.npz", **arrays, **twice)
    assert check(tmp_path / "twice.npz", "--set", "task.points=64") == 2
    assert "12 of 12 validation clouds are copies" in capsys.readouterr().out
    assert check(tmp_path / "twice.npz", "--set", "task.points=64", "--save-split", tmp_path / "split.csv") == 2
    assert "--save-split: these data already have a validation split" in capsys.readouterr().err


@pytest.mark.slow
def test_the_proposed_command_is_accepted(shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(shapes, "--set", "task.points=64", "--task", "points") == 0
    proposed = capsys.readouterr().out.partition("Ready: attngraft ")[2].strip()
    words = [
        *shlex.split(proposed.replace("--graft ...", "--graft vertical")),
        "--dry-run",
        "--out",
        str(tmp_path / "s"),
    ]
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert not stop.value.code
    assert "vertical" in capsys.readouterr().out


@pytest.mark.slow
def test_compare_finds_the_task(shapes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--set", "task.points=64", "--graft", "vertical", "--dry-run", "--out", str(tmp_path / "s")]
    with pytest.raises(SystemExit) as stop:
        main(["compare", "--data", str(shapes), *options])
    shown = capsys.readouterr()
    assert not stop.value.code
    assert f"Task: point_parts (point clouds with parts in {shapes}; --task NAME for another)" in shown.err


def test_near_points_cover_far_ones_and_are_darker() -> None:
    line = np.stack(
        [-np.sin(np.deg2rad(35)) * np.arange(9.0), np.cos(np.deg2rad(35)) * np.arange(9.0), np.zeros(9)], axis=1
    )
    picture = draw_cloud(Cloud("line", line.astype(np.float32), None, None, 0), size=64)
    dots = [row[row.sum(axis=1) < 700] for row in picture if (row.sum(axis=1) < 700).any()]
    shades = [int(dot.sum(axis=1)[0]) for dot in dots]
    assert shades[0] > shades[-1], "far points are higher, and paler"
    assert picture.shape == (64, 64, 3)
