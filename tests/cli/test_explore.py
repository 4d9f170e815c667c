"""`attngraft explore --cloud`, as a user types it."""

from __future__ import annotations

from pathlib import Path

import pytest

from attngraft.cli import main
from attngraft.export.run import export_run
from tests.export.runs import make_run
from tests.report.test_text_explorer import data_of
from tests.tasks.points.runs import LEVELS, SIZES, train_shapes, write_cloud


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stop:
        main(["explore", *map(str, arguments)])
    return int(stop.value.code or 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clouds")
    train_shapes(folder / "naive", "bixt_points_naive", *SIZES, graft="vertical")
    train_shapes(folder / "pointnet", "pointnet")
    train_shapes(folder / "parts", "bixt_parts_hier", *SIZES, *LEVELS, "decoder=[16,16]", recipe="tiny-parts")
    export_run(folder / "naive", folder / "exported")
    make_run(folder / "images")
    export_run(folder / "images", folder / "exported-images")
    write_cloud(folder / "mug.npy")
    return folder


def test_two_classifiers(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.html"
    models = [f"--model={folder / name}" for name in ("exported", "pointnet")]
    assert run(*models, "--cloud", folder / "mug.npy", "--out", page, "--name", "mine") == 0
    assert f"{page} (0." in capsys.readouterr().out
    mine, other = data_of(page)["models"]
    assert (mine["name"], other["name"]) == ("mine", "pointnet")
    assert "bixt_points_naive" in mine["description"]
    assert mine["description"].endswith("vertical")
    assert len(mine["layers"]) == 2
    assert (other["layers"], other["missing"]) == ([], "PointNet has no attention that can be recorded")
    assert mine["points"] == other["points"]


def test_parts_in_a_page_of_the_files_name(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("--model", folder / "parts", "--cloud", f"mug={folder / 'mug.npy'}", "--sites", "blocks.1") == 0
    (found,) = data_of(tmp_path / "mug.html")["models"]
    assert len(found["parts"]) == 48
    assert [len(layer["points"]) for layer in found["layers"]] == [12]


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        ("naive", ["--image", "a.png"], "does not support the explorer of images"),
        ("naive", ["--image", "a.png"], "--cloud FILE for models of point clouds"),
        ("exported", ["--image", "a.png"], "takes point clouds, but this command requires an image model"),
        ("naive", ["--text", "a"], "takes point clouds, not texts; use --cloud FILE"),
        ("exported", ["--text", "a"], "takes point clouds, not texts; use --cloud FILE"),
        ("images", ["--cloud", "a.npy"], "takes images, not point clouds; use --image FILE"),
        ("exported-images", ["--cloud", "a.npy"], "takes images, not point clouds; use --image FILE"),
        ("exported-images", ["--text", "a"], "takes images, not texts; use --image FILE"),
        ("nowhere", ["--cloud", "a.npy"], "no such folder; --cloud takes runs and exported folders"),
        ("naive", ["--cloud", "a.npy", "--text", "a"], "give either --image FILE"),
        ("naive", ["--cloud", "a.npy", "--target", "a"], "--target belongs to --text TEXT, not to a point cloud"),
        ("naive", ["--cloud", "a.npy", "--pretrained"], "--cloud takes runs and exported folders"),
        ("naive", ["--cloud", "nowhere.npy"], "nowhere.npy: no such file"),
        ("parts", ["--cloud", "nowhere.npy"], "give CATEGORY=FILE"),
        ("naive", ["--cloud", "mug.npy", "--sites", "blocks.7"], "blocks.7"),
    ],
)
def test_wrong_calls(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    model: str,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(folder)
    assert run("--model", model, "--out", tmp_path / "page.html", *arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


def test_the_cloud_is_not_replaced(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (folder / "mug.npy").read_bytes()
    assert run("--model", folder / "naive", "--cloud", folder / "mug.npy", "--out", folder / "mug.npy") == 2
    assert "mug.npy: is read, and would be replaced" in capsys.readouterr().err
    assert (folder / "mug.npy").read_bytes() == before
