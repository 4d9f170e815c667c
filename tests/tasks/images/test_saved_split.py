"""Random splits: saved in the run folder, used again on resume, and passed to other runs as a file."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attngraft.errors import DataError
from attngraft.study import StudyConfig, Tools, compare, study_from_dict
from attngraft.training.evaluate import evaluate_run
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from attngraft.training.recipe import Recipe
from attngraft.training.run_folder import RunFolder
from tests.tasks.images.datasets import load, make_folder, make_task, picture
from tests.tasks.images.test_training import recipe


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "data", {"a": 12, "ä, b": 12})


def begun(given: Recipe, run: Path) -> Path:
    """The run after its first epoch."""
    train(given, run, progress=Silent(), stop_after_epoch=1)
    return run


def kept(folder: Path) -> dict[str, str]:
    """Name to part, as a spreadsheet would read the file."""
    with (folder / "split.csv").open(encoding="utf-8", newline="") as file:
        return {row["name"]: row["part"] for row in csv.DictReader(file)}


def facts(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "data.json").read_text(encoding="utf-8"))["facts"]
    return found


def validation(run: Path) -> list[str]:
    with np.load(run / "predictions.npz") as arrays:
        return sorted(arrays["name"].tolist())


def images_of(split: dict[str, str], part: str) -> list[str]:
    return sorted(name for name, its_part in split.items() if its_part == part)


def test_a_run_that_goes_on_keeps_its_split_when_images_go(folder: Path, tmp_path: Path) -> None:
    given = recipe({"source": str(folder)})
    run = begun(given, tmp_path / "run")
    split, before = kept(run), facts(run)
    assert (len(split), before["split_file"]) == (24, "split.csv")
    assert images_of(split, "val") == sorted(load(folder).val.name(i) for i in range(4))
    gone = images_of(split, "train")[0]
    (folder / gone).unlink()
    assert load(folder).facts["split_digest"] != before["split_digest"], "drawn anew it would be another"
    assert train(given, run, progress=Silent()).finished
    assert validation(run) == images_of(split, "val")
    assert facts(run)["split_digest"] == before["split_digest"]
    assert facts(run)["split"] == before["split"]
    assert "1 image listed in the split file is not in the data." in facts(run)["notes"]
    assert kept(run) == split, "and an image that comes back finds its place"
    assert sorted(evaluate_run(run).predictions.names) == images_of(split, "val")


def test_images_that_come_are_named_before_the_run_goes_on(folder: Path, tmp_path: Path) -> None:
    given = recipe({"source": str(folder)})
    run = begun(given, tmp_path / "run")
    before = (run / "split.csv").read_bytes(), (run / "metrics.jsonl").read_bytes()
    make_folder(folder, {"a": 13})
    message = r"run/split\.csv: does not list 1 of 25 images .* \(a/12\.png\).*remove them .* another folder"
    with pytest.raises(DataError, match=message):
        train(given, run, progress=Silent())
    assert ((run / "split.csv").read_bytes(), (run / "metrics.jsonl").read_bytes()) == before
    (run / "split.csv").write_bytes(before[0] + b"a/12.png,train\n")
    assert train(given, run, progress=Silent()).finished


def test_given_to_another_run_as_a_file_it_is_the_same_split(folder: Path, tmp_path: Path) -> None:
    first = begun(recipe({"source": str(folder), "split_seed": 5}), tmp_path / "first")
    data = {"source": str(folder), "split_file": str(first / "split.csv")}
    second = begun(recipe(data), tmp_path / "second")
    for digest in (lambda found: found["split_digest"], lambda found: found["check"]["train_digest"]):
        assert digest(facts(second)) == digest(facts(first)) != digest(load(folder).facts)
    assert not (second / "split.csv").exists(), "it drew nothing"
    assert "split_file" not in facts(second)


def test_data_with_parts_leave_no_file(tmp_path: Path) -> None:
    make_folder(tmp_path / "data", {"train": {"a": 8, "b": 8}, "val": {"a": 2, "b": 2}})
    run = begun(recipe({"source": str(tmp_path / "data")}), tmp_path / "run")
    assert not (run / "split.csv").exists()
    drawn = begun(recipe({"source": str(tmp_path / "data"), "val_fraction": 0.5}), tmp_path / "drawn")
    assert len(kept(drawn)) == 16, "of the training part"


def test_a_try_that_saved_nothing_leaves_no_split_to_another_recipe(folder: Path, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.checkpoints.mkdir(parents=True, exist_ok=True)
    task = make_task(folder, data={"val_fraction": 0.5})
    task.load(model_data_config={"input_size": (3, 16, 16)})
    assert task.save_split(run.split)
    run.write_recipe(recipe({"source": str(folder), "val_fraction": 0.5}))
    begun(recipe({"source": str(folder)}), run.path)
    assert len(images_of(kept(run.path), "val")) == 4


def test_an_image_that_is_repaired_has_its_part(folder: Path, tmp_path: Path) -> None:
    """It was drawn with all the others, though it could not be read."""
    (folder / "a" / "3.png").write_bytes(b"")
    given = recipe({"source": str(folder), "max_corrupt": 2})
    run = begun(given, tmp_path / "run")
    assert kept(run)["a/3.png"] in ("train", "val")
    assert sum(facts(run)["sizes"].values()) == 23
    picture(3).save(folder / "a" / "3.png")
    train(given, run, progress=Silent())
    assert sum(facts(run)["sizes"].values()) == 24


def test_images_of_one_name_are_trained_on_without_a_file(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [f'"{path.relative_to(folder)}","{path.parent.name}"' for path in sorted(folder.glob("*/*.png"))]
    (folder / "labels.csv").write_text("\n".join(["path,label", *rows, rows[0]]), encoding="utf-8")
    task = make_task(folder / "labels.csv")
    task.load(model_data_config={"input_size": (3, 16, 16)})
    assert not task.save_split(folder / "split.csv")
    assert not (folder / "split.csv").exists()
    assert "labels.csv: the random split cannot be saved, because some images have the same name" in caplog.text


def study(folder: Path, out: Path, **more: Any) -> StudyConfig:
    """Of one graft, without a report."""
    size = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2}
    plain = {"host": {"name": "vit_tiny_patch16_224", "args": size}, "grafts": ["cb_s"], "data": str(folder)}
    settings = {"set": ["train.batch_size=8"], "epochs": 1, "seeds": 1, "out": str(out)}
    return study_from_dict(plain | settings | more)


def test_all_runs_of_a_study_have_the_split_of_the_first(folder: Path, tmp_path: Path) -> None:
    out, tools = tmp_path / "study", Tools(write_report=lambda result, folder: folder)
    result = compare(study(folder, out), costs=False, tools=tools)
    split = kept(out)
    assert result.data["split_file"] == "split.csv"
    (folder / images_of(split, "train")[0]).unlink()
    again = compare(study(folder, out, seeds=2), costs=False, tools=tools)
    runs = [out / run.folder for variant in again.variants for run in variant.runs]
    assert len(runs) == 4
    for run in runs:
        assert kept(run) == split == kept(out)
        assert validation(run) == images_of(split, "val")
    other = study(folder, tmp_path / "other", data={"source": str(folder), "split_file": str(out / "split.csv")})
    assert compare(other, costs=False, tools=tools).data["split_digest"] == result.data["split_digest"]
    assert not (tmp_path / "other" / "split.csv").exists()


def test_a_study_that_saved_nothing_draws_anew(folder: Path, tmp_path: Path) -> None:
    """Its settings may change until then, and so may the split."""
    out, tools = tmp_path / "study", Tools(write_report=lambda result, folder: folder)
    out.mkdir()
    (out / "split.csv").write_text("name,part\na/0.png,val\n", encoding="utf-8")
    compare(study(folder, out), costs=False, tools=tools)
    assert len(kept(out)) == 24
