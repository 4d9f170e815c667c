"""Experiment trackers of a run: one tracker run per run, continued on resume, and never in its way."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from accelerate.tracking import LOGGER_TYPE_TO_CLASS

from attngraft.errors import ConfigError
from attngraft.training import tracking
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from attngraft.training.recipe import Recipe, load_recipe
from attngraft.training.tracking import Tracking, check_trackers
from tests.training.toys import assert_same_outcome, toy_recipe
from tests.training.trackers import Fake, install


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


def tracked(*names: str, **sections: object) -> Recipe:
    return toy_recipe(**{"train": {"track": list(names)}, **sections})


def test_a_tracker_gets_settings_and_metrics_and_changes_nothing(tmp_path: Path) -> None:
    record = train(tracked("fake", "fake"), tmp_path / "tracked", progress=Silent())
    (one,) = Fake.made
    assert (one.project, one.started, one.finished) == ("attngraft", 1, 1)
    assert one.config["name"] == "tracked"
    assert (one.config["host.name"], one.config["optimizer.lr"]) == ("toy_vit", 3e-3)
    assert one.config["train.track"] == '["fake", "fake"]'
    assert one.rows == [(1, record.epochs[0]), (2, record.epochs[1])]
    train(toy_recipe(), tmp_path / "plain", progress=Silent())
    assert_same_outcome(tmp_path / "tracked", tmp_path / "plain")
    assert not (tmp_path / "plain" / "trackers.json").exists()


def test_a_resumed_run_sends_what_is_missing_also_of_epochs_without_the_tracker(tmp_path: Path) -> None:
    longer = {"schedule": {"epochs": 4}}
    for names, end in (("wandb",), 1), ((), 2), (("wandb",), 3), (("wandb",), None):
        train(tracked(*names, **longer), tmp_path, progress=Silent(), stop_after_epoch=end)
    assert [[step for step, _ in one.rows] for one in Fake.made] == [[1], [2, 3], [4]]
    assert [one.config is None for one in Fake.made] == [False, True, True], "settings are stored once"
    assert len({one.arguments["id"] for one in Fake.made}) == 1
    train(tracked("wandb", **longer), tmp_path, progress=Silent())
    assert len(Fake.made) == 3, "a finished run starts no tracker"


def test_a_tracker_that_cannot_continue_a_run_gets_all_of_it_again(tmp_path: Path) -> None:
    for end in (1, None):
        train(tracked("fake"), tmp_path, progress=Silent(), stop_after_epoch=end)
    assert [[step for step, _ in one.rows] for one in Fake.made] == [[1], [1, 2]]
    assert Fake.made[0].config == Fake.made[1].config


def test_what_is_judged_is_a_result_without_a_step(tmp_path: Path) -> None:
    record = train(tracked("fake", train={"track": ["fake"], "judge": "best"}), tmp_path, progress=Silent())
    assert record.judged is not None
    expected = {f"judged/{name}": value for name, value in record.judged.metrics.items()}
    assert Fake.made[0].rows[-1] == (None, expected)


@pytest.mark.parametrize("method", ["start", "log", "finish"])
def test_a_tracker_that_fails_is_one_warning_and_no_more(
    tmp_path: Path, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    Fake.fails.add(method)
    assert train(tracked("fake"), tmp_path / "run", progress=Silent()).finished
    found = [record.getMessage() for record in caplog.records if record.name == tracking.__name__]
    expected = f"run: tracking with fake failed and is off until the next start: RuntimeError: {method}: no network"
    assert found == [expected]


def test_damaged_trackers_json_starts_new_tracker_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "trackers.json").write_text("{")
    assert train(tracked("fake"), tmp_path, progress=Silent()).finished
    assert "trackers.json: cannot be read" in caplog.text
    assert len(Fake.made[0].rows) == 2


def test_another_recipe_in_the_folder_of_a_failed_attempt_starts_new_tracker_runs(tmp_path: Path) -> None:
    (tmp_path / "trackers.json").write_text('{"wandb": {"id": "old", "step": 7}}')
    (tmp_path / "recipe.yaml").write_text("seed: 3\n")
    train(tracked("wandb"), tmp_path, progress=Silent())
    assert [step for step, _ in Fake.made[0].rows] == [1, 2]


def test_trackers_that_cannot_be_used_are_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "get_available_trackers", list)
    for name, message in {
        "wandbb": r"train\.track: unknown tracker 'wandbb' \(did you mean wandb\?\); use .*mlflow",
        "comet_ml": r"train\.track: comet_ml is not installed; run pip install comet-ml",
        "tensorboard": "remove tensorboard",
    }.items():
        with pytest.raises(ConfigError, match=message):
            train(tracked(name), tmp_path / "run", progress=Silent())
    assert not (tmp_path / "run").exists()
    check_trackers(["fake"])
    monkeypatch.delitem(tracking.LOGGER_TYPE_TO_CLASS, "trackio", raising=False)  # newer than the oldest accelerate
    with pytest.raises(ConfigError, match="trackio requires a newer accelerate; run pip install -U accelerate"):
        check_trackers(["trackio"])
    assert not {"wandb", "mlflow", "trackio", "comet_ml"} & set(sys.modules)


@pytest.mark.parametrize(
    ("name", "first", "again"),
    [
        ("wandb", {"id", "name", "resume"}, {"id", "name", "resume"}),
        ("trackio", {"name", "resume"}, {"name", "resume"}),
        ("comet_ml", {"experiment_key"}, {"experiment_key"}),
        ("mlflow", {"run_name"}, {"run_id"}),
    ],
)
def test_known_trackers_continue_their_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, first: set[str], again: set[str]
) -> None:
    class Known(Fake):
        info = type("Info", (), {"run_id": "given by mlflow"})
        set_name = property(lambda self: lambda text: self.arguments.update(named=text))

    monkeypatch.setitem(LOGGER_TYPE_TO_CLASS, name, Known)
    for _ in range(2):
        with Tracking([name], file=tmp_path / "trackers.json", label="study/cb_s/seed0", config={}):
            pass
    one, two = (dict(each.arguments) for each in Fake.made)
    for each in (one, two):
        assert each.pop("named", "study/cb_s/seed0") == "study/cb_s/seed0"
    assert (set(one), set(two)) == (first, again)
    if name == "mlflow":
        assert two == {"run_id": "given by mlflow"}
    else:
        assert one == two


def test_recipes_and_options_name_trackers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from attngraft.cli import main

    assert load_recipe("digits").train.track == ()
    command = ["--recipe", "digits", "--track", "fake", "--track", "wandbb", "--out", str(tmp_path / "run")]
    for verb in (["train"], ["compare", "--graft", "cb_s"]):
        with pytest.raises(SystemExit) as end:
            main([*verb, *command])
        assert end.value.code == 2
        assert "unknown tracker 'wandbb'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_files_tell_what_trackers_have(tmp_path: Path) -> None:
    train(tracked("fake"), tmp_path, progress=Silent())
    known = json.loads((tmp_path / "trackers.json").read_text())["fake"]
    assert known["step"] == 2
    assert len(known["id"]) == 32
