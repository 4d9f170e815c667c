from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from attngraft.cache import DECODED_FOLDER
from attngraft.checksums import write_checksums
from attngraft.environment import environment
from attngraft.errors import ConfigError, FolderError, TrainingError
from attngraft.tasks.task import Predictions
from attngraft.training.lock import locked
from attngraft.training.loop import train
from attngraft.training.run_folder import RunFolder, read_run
from tests.training.toys import toy_recipe


def test_a_run_that_has_just_begun_can_be_read(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="not a run folder"):
        read_run(tmp_path)
    run = RunFolder(tmp_path)
    run.write_recipe(toy_recipe())
    record = read_run(tmp_path)
    assert record.recipe == toy_recipe()
    assert (record.epochs, record.finished, record.predictions, record.seconds) == ([], False, None, 0)


def test_damaged_files_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = RunFolder(tmp_path)
    run.write_recipe(toy_recipe())
    run.metrics.write_text('{"epoch": 1}\n{"epo')
    with caplog.at_level("WARNING"):
        assert read_run(tmp_path).epochs == []
    assert "metrics.jsonl: cannot be read" in caplog.text
    assert "it is written again when the run resumes" in caplog.text
    run.environment.write_text("{")
    with pytest.raises(TrainingError, match=r"environment\.json: cannot be read"):
        read_run(tmp_path)
    run.recipe.write_text("sead: 1")
    with pytest.raises(ConfigError, match=r"recipe\.yaml: sead: unknown field \(did you mean seed"):
        read_run(tmp_path)


def test_decoded_images_have_no_checksums(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.write_recipe(toy_recipe())
    decoded = tmp_path / DECODED_FOLDER / "images"
    decoded.parent.mkdir()
    decoded.write_bytes(b"pixels")
    run.write_finished({"epochs": 0})
    assert [*run.read_finished()[1].entries] == ["recipe.yaml"]
    write_checksums(run.finished, [run.recipe, decoded], facts={"epochs": 0})  # as earlier versions did
    decoded.unlink()
    assert run.read_finished()[1].damaged() == {}


def test_metrics_of_classes_without_examples_are_not_finite(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.write_recipe(toy_recipe())
    metrics = '{"val/miou": 1, "val/boundary_miou": NaN}'
    run.finished.write_text(f'{{"judged": {{"weights": "last", "epoch": 1, "split": "val", "metrics": {metrics}}}}}')
    judged = read_run(tmp_path).judged
    assert judged is not None
    assert judged.metrics["val/miou"] == 1
    assert math.isnan(judged.metrics["val/boundary_miou"])


_OTHER = ["[]", "null", "3", '"x"', "[" * 5000, "1" * 5000, "\ufeff", "{} {}"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *((name, text) for name in ("data", "environment", "start", "teacher", "finished") for text in _OTHER),
        ("data", '{"model_args": 1}'),
        ("data", '{"model_args": {}, "facts": []}'),
        ("data", '{"model_args": {}, "facts": {}, "cut": {"train.batch_size": [-8, 4]}}'),
        ("data", '{"model_args": {}, "facts": {}, "cut": {"train.batch_size": [8, 5]}}'),
        ("environment", '{"batch_norm_examples": [4]}'),
        ("start", '{"metrics": {}}'),
        ("start", '{"from": "w.pt", "sha256": ["0"]}'),
        ("start", '{"from": "w.pt", "metrics": {"val/top1": [1, 2]}}'),
        ("teacher", '{"name": "a", "from": "b"}'),
        ("teacher", '{"name": "a", "from": "b", "sha256": ["0"]}'),
        ("finished", '{"judged": [1]}'),
        ("finished", '{"judged": {"weights": "last", "epoch": 1, "split": "val", "metrics": {"a": "1"}}}'),
        ("finished", '{"judged": {"weights": "last", "epoch": "1", "split": "val", "metrics": {"a": 1}}}'),
    ],
)
def test_files_of_another_form_are_named(name: str, text: str, tmp_path: Path) -> None:
    RunFolder(tmp_path).write_recipe(toy_recipe())
    (tmp_path / f"{name}.json").write_text(text)
    with pytest.raises(TrainingError, match=rf"{name}\.json: .*restore"):
        read_run(tmp_path)


@pytest.mark.parametrize(("name", "recipe"), [("start", "host"), ("teacher", "distill")])
def test_facts_about_weights_are_of_a_recipe_that_has_them(name: str, recipe: str, tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.write_recipe(toy_recipe())
    run.write_metrics([{"epoch": 1, "seconds": 1}])
    (tmp_path / f"{name}.json").write_text('{"name": "a", "from": "w.pt", "sha256": "0"}')
    assert getattr(read_run(tmp_path), name) == {}  # of an attempt with another recipe
    run.write_finished({})
    with pytest.raises(TrainingError, match=rf"{name}\.json: is not of a run with this recipe\.yaml; restore"):
        read_run(tmp_path)
    more = {"host": {"pretrained": True}, "distill": {"teacher": {"name": "a"}}}[recipe]
    run.write_recipe(toy_recipe(**{recipe: more}))
    run.write_finished({})
    assert getattr(read_run(tmp_path), name)["from"] == "w.pt"


def test_a_run_is_judged_on_the_split_of_its_data(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.write_recipe(toy_recipe())
    run.write_metrics([{"epoch": 1, "seconds": 1}])
    run.write_data(model_args={}, facts={})
    run.write_finished({"judged": {"weights": "last", "epoch": 1, "split": "test", "metrics": {"test/top1": 1}}})
    with pytest.raises(TrainingError, match=r"judged\.split is test, but judged_split in data\.json val; restore"):
        read_run(tmp_path)


@pytest.mark.parametrize("line", ["3", "[1]", "{}", '{"epoch": "1"}', "[" * 5000])
def test_rows_of_another_form_are_named(line: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = RunFolder(tmp_path)
    run.write_recipe(toy_recipe())
    run.metrics.write_text('{"epoch": 1}\n' + line + "\n")
    read_run(tmp_path)
    assert f"{run.metrics}: cannot be read" in caplog.text


@pytest.mark.parametrize(
    "rows",
    [
        [{"epoch": 10**15, "seconds": 1}],
        [{"epoch": 0, "seconds": 1}],
        [{"epoch": -3, "seconds": 1}, {"epoch": 1, "seconds": 1}],
        [{"epoch": 1, "seconds": 1}, {"epoch": 1, "seconds": 1}],
        [{"epoch": 1, "step": 2, "seconds": 1}, {"epoch": 1, "step": 1, "seconds": 1}],
        [{"epoch": 1, "seconds": math.nan}],
        [{"epoch": 1, "seconds": -1}],
    ],
)
def test_rows_that_no_run_of_the_recipe_has_are_named(rows: list[dict[str, float]], tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.write_recipe(toy_recipe())
    run.write_metrics(rows)
    run.write_finished({})
    with pytest.raises(TrainingError, match=rf"{run.metrics}: cannot be read: .*restore"):
        read_run(tmp_path)


def test_only_what_has_saved_something_keeps_its_recipe(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.write_recipe(toy_recipe(train={"auto_batch": True, "accumulate": 4}))
    other = toy_recipe(optimizer={"lr": 1.0}, train={"auto_batch": True})
    run.refuse_other_recipe(other)
    assert run.with_chosen(other) == other
    run.write_metrics([])
    run.refuse_other_recipe(other)
    run.write_metrics([{"epoch": 1, "seconds": 1.0}])
    with pytest.raises(TrainingError, match=r"a different recipe: optimizer\.lr"):
        run.refuse_other_recipe(other)


def test_what_memory_allowed_is_kept_by_those_who_may_choose(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.record_choice(toy_recipe(train={"auto_batch": True, "accumulate": 4}), epoch=2, step=3)
    run.write_metrics([{"epoch": 1, "seconds": 1.0}])
    assert read_run(tmp_path).environment["chosen_by_memory"] == [
        {"epoch": 2, "step": 3, "accumulate": 4, "eval_batch_size": None}
    ]
    assert run.with_chosen(toy_recipe(train={"auto_batch": True})).train.accumulate == 4
    fixed = toy_recipe()
    assert run.with_chosen(fixed) == fixed
    with pytest.raises(TrainingError, match=r"train\.accumulate \(4 -> 1\)"):
        run.refuse_other_recipe(fixed)


def test_predictions_hold_plain_arrays(tmp_path: Path) -> None:
    names = ["a/é.png", "b, c.png"]
    arrays = {"logits": np.zeros((2, 3), np.float32)}
    RunFolder(tmp_path).write_predictions(
        Predictions(names=names, score=np.array([0.5, 1]), binary=False, arrays=arrays)
    )
    with np.load(tmp_path / "predictions.npz", allow_pickle=False) as found:
        assert found["name"].tolist() == names
        assert found["score"].tolist() == [0.5, 1]
        assert not found["binary"]
        assert found["logits"].shape == (2, 3)


def test_a_lock_keeps_others_of_this_process_out_and_is_given_back(tmp_path: Path) -> None:
    with locked(tmp_path):
        with (
            pytest.raises(TrainingError, match="another run is using this folder"),
            locked(tmp_path / "." / "x" / ".."),
        ):
            pass
        (tmp_path / "other").mkdir()
        with locked(tmp_path / "other"):
            pass
    with locked(tmp_path):
        pass
    with pytest.raises(RuntimeError), locked(tmp_path):
        raise RuntimeError
    with locked(tmp_path):
        pass


def test_the_environment_says_what_a_run_stood_on() -> None:
    import torch

    found = environment(torch.device("cpu"), processes=2)
    assert found["processes"] == 2
    assert found["device"] == "cpu"
    assert found["device_name"]
    assert found["packages"]["timm"]
    assert found["commit"] is None or len(found["commit"].rstrip("+")) == 40


def test_a_study_is_no_folder_for_a_run(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text("")
    with pytest.raises(FolderError, match="is the folder of a study"):
        train(toy_recipe(), tmp_path)
