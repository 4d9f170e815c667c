"""Damaged files of a finished run are found when they are read, and made again where the checkpoint has their content."""

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from attngraft.errors import FolderError, TrainingError
from attngraft.study.predictions import open_predictions, read_statistics
from attngraft.targets.run import open_run
from attngraft.training.build import build_task
from attngraft.training.checkpoint import read_checkpoint
from attngraft.training.evaluate import evaluate_run, weights_file
from attngraft.training.journal import Journal
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from attngraft.training.recipe import Recipe, load_recipe
from attngraft.training.run_folder import RunFolder, read_run
from tests.training.toys import assert_same_outcome, with_new_checksums


def recipe() -> Recipe:
    size = "{img_size: 8, patch_size: 4, depth: 1, embed_dim: 12, num_heads: 2, in_chans: 1}"
    host = ["host.name=vit_tiny_patch16_224", f"host.args={size}", "task.augment.crop=center"]
    return load_recipe("cpu-small", [*host, "task.data.source=digits", "schedule.epochs=1", "train.batch_size=512"])


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    train(recipe(), folder, progress=Silent())
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def other_metric(folder: Path) -> None:
    path = folder / "metrics.jsonl"
    path.write_text(re.sub(r'"val/top1": 0\.\d', '"val/top1": 0.9', path.read_text()))


def all_right(folder: Path) -> None:
    with np.load(folder / "predictions.npz") as file:
        columns = dict(file)
    columns["score"] = np.ones_like(columns["score"])
    np.savez_compressed(folder / "predictions.npz", **columns)


def flipped(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(content)

    return change


@pytest.mark.parametrize(
    ("damage", "name"),
    [(other_metric, "metrics.jsonl"), (all_right, "predictions.npz"), (flipped("finished.json"), "finished.json")],
)
def test_what_the_checkpoint_contains_is_made_again(
    damage: Callable[[Path], None], name: str, run: Path, finished: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damage(run)
    message = rf"{name}: damaged .*rerun the command that made it"
    with pytest.raises(TrainingError, match=message), open_predictions(read_run(run)):
        pass
    with caplog.at_level("WARNING"):
        train(recipe(), run, progress=Silent())
    assert f"{name}: damaged since the run finished; making it again from the checkpoint" in caplog.text
    assert_same_outcome(run, finished)
    assert (run / "metrics.jsonl").read_bytes() == (finished / "metrics.jsonl").read_bytes()
    assert read_run(run).checksums.damaged() == {}  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["recipe.yaml", "data.json", "split.csv"])
def test_other_damage_is_named_with_the_remedy(name: str, run: Path) -> None:
    (run / name).write_text((run / name).read_text() + "\n")
    for work in (lambda: read_run(run), lambda: train(recipe(), run, progress=Silent())):
        with pytest.raises(TrainingError, match=rf"{name}: damaged .*restore a good copy, or delete .*run, and rerun"):
            work()
    assert (run / "finished.json").is_file()


@pytest.mark.parametrize(("weights", "name"), [("last", "last.pt"), ("best", "best.safetensors")])
def test_weights_are_checked_when_they_are_loaded(weights: str, name: str, run: Path) -> None:
    flipped(f"checkpoints/{name}")(run)
    record = read_run(run)  # does not read them
    with pytest.raises(TrainingError, match=rf"{name}: damaged since the run finished"):
        evaluate_run(record.folder, weights=weights)  # type: ignore[arg-type]


def test_a_finished_run_has_no_weights_but_its_last(run: Path) -> None:
    for name in ("previous.pt", "damaged.pt"):  # of which neither has a checksum
        shutil.copy(run / "checkpoints/last.pt", run / "checkpoints" / name)
    last = run / "checkpoints/last.pt"
    last.unlink()
    assert weights_file(run, "last") == last
    with pytest.raises(TrainingError, match=r"last\.pt: damaged since the run finished \(it is missing\)"):
        evaluate_run(run)
    with_new_checksums(run)
    with pytest.raises(FolderError, match=r"run: this run has no checkpoint; restore .*last\.pt"):
        evaluate_run(run)
    shutil.copy(run / "checkpoints/previous.pt", last)
    with pytest.raises(TrainingError, match=r"last\.pt: damaged .*\(it is not listed in finished\.json\)"):
        evaluate_run(run)
    facts = json.loads((run / "finished.json").read_text())
    del facts["files"], facts["sha256"]
    (run / "finished.json").write_text(json.dumps(facts))  # as earlier versions did
    assert evaluate_run(run).metrics


def test_without_a_checkpoint_nothing_is_made_again(run: Path) -> None:
    other_metric(run)
    (run / "checkpoints" / "last.pt").unlink()
    with pytest.raises(TrainingError, match=r"metrics\.jsonl: damaged, and .*last\.pt is missing; restore a good copy"):
        train(recipe(), run, progress=Silent())
    assert (run / "finished.json").is_file()


def test_weights_that_are_not_finite_are_not_evaluated(run: Path) -> None:
    path = run / "checkpoints" / "best.safetensors"
    weights = safetensors.torch.load_file(path)
    weights["head.bias"][0] = torch.nan
    safetensors.torch.save_file(weights, path)
    with_new_checksums(run)
    with pytest.raises(TrainingError, match=r"best\.safetensors: weights are not finite \(head\.bias\)"):
        evaluate_run(run, weights="best")


def test_metrics_of_earlier_versions_are_compared_with_predictions(run: Path) -> None:
    facts = json.loads((run / "finished.json").read_text())
    del facts["files"], facts["sha256"]
    (run / "finished.json").write_text(json.dumps(facts))
    read_statistics(read_run(run), build_task(recipe()))
    other_metric(run)
    with pytest.raises(TrainingError, match=r"its recorded top1 is 0\.9\d*, but its predictions give 0\."):
        read_statistics(read_run(run), build_task(recipe()))
    RunFolder(run).mend()  # without checksums nothing is known to be damaged
    assert (run / "finished.json").is_file()


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("format", "x"),
        ("model", [1]),
        ("model", {"head.weight": 3}),
        ("optimizer", []),
        ("sums", []),
        ("sums", [{"loss": 1.0}, {}]),
        ("counters", {"epoch": -1, "step": 0, "seconds": 0.0, "rows": [], "best": {}}),
        ("counters", {"epoch": 0, "step": 0, "seconds": 0.0, "rows": [3], "best": {}}),
        ("counters", {"epoch": 0, "step": 0, "seconds": 0.0, "rows": [], "best": {"val": "x"}}),
        ("counters", {"epoch": 0, "step": 0, "seconds": 0.0, "rows": [], "best": {}, "__class__": 3}),
        ("ema", 3),
    ],
)
def test_checkpoints_with_other_contents_are_damaged(entry: str, value: object, run: Path) -> None:
    change_checkpoint(run, **{entry: value})
    with pytest.raises(TrainingError, match=rf"last\.pt: this checkpoint is damaged \(its entry {entry}"):
        read_checkpoint(RunFolder(run))


def test_progress_and_moments_of_another_run_are_refused(run: Path) -> None:
    (run / "finished.json").unlink()
    whole = torch.load(run / "checkpoints/last.pt", weights_only=True)
    change_checkpoint(run, counters={**whole["counters"], "epoch": 10**9})
    with pytest.raises(TrainingError, match=r"last\.pt: this checkpoint is of epoch 1000000000, but the run has 1;"):
        train(recipe(), run, progress=Silent())
    state = whole["optimizer"]["state"]
    moments = {name: {**each, "exp_avg": torch.zeros(each["exp_avg"].ndim * [3])} for name, each in state.items()}
    change_checkpoint(run, counters=whole["counters"], optimizer={**whole["optimizer"], "state": moments})
    with pytest.raises(TrainingError, match=r"last\.pt: this checkpoint does not fit the run \(exp_avg of"):
        train(recipe(), run, progress=Silent())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"epoch": 0, "step": 3}, "is after step 3 of epoch 1, which has 2"),
        ({"step": 1}, "is after step 1 of epoch 2, which has 0"),
        ({"best": {"val": 0.99}}, "has another best val than its metrics"),
        ({"best": {"val": math.nan}}, "has another best val"),
        ({"best": {}}, "has another best val"),
        ({"best": {"ema": 0.1}}, "has another best ema"),
        ({"best": {"stage1": 0.1}}, "has another best stage1"),
        ({"rows": [{"epoch": 1, "seconds": 1.0, "val/loss": 2.0}]}, "has metrics without epoch, seconds, val/top1"),
    ],
)
def test_progress_that_the_run_cannot_have_is_refused(changed: dict[str, Any], message: str, run: Path) -> None:
    (run / "finished.json").unlink()
    counters = torch.load(run / "checkpoints/last.pt", weights_only=True)["counters"]
    best = {**counters["best"], **changed["best"]} if changed.get("best") else changed.get("best", counters["best"])
    change_checkpoint(run, counters={**counters, **changed, "best": best})
    with pytest.raises(TrainingError, match=rf"last\.pt: this checkpoint {re.escape(message)}.*delete .*checkpoints"):
        train(recipe(), run, progress=Silent())


def test_sums_of_other_losses_are_refused(run: Path) -> None:
    (run / "finished.json").unlink()
    counters = torch.load(run / "checkpoints/last.pt", weights_only=True)["counters"]
    counters |= {"epoch": 0, "step": 1, "rows": [], "best": {}}
    change_checkpoint(run, counters=counters, sums=[{"loss": 2.0, "other": 1.0}])
    with pytest.raises(TrainingError, match=r"this checkpoint has sums of other losses \(loss, other\)"):
        train(recipe(), run, progress=Silent())


def test_a_best_metric_without_a_row_is_of_an_evaluation_that_was_stopped(run: Path) -> None:
    (run / "finished.json").unlink()
    whole = torch.load(run / "checkpoints/last.pt", weights_only=True)
    counters = {**whole["counters"], "epoch": 0, "step": 2, "rows": []}
    change_checkpoint(run, counters=counters, sums=[{"loss": 4.0}])
    assert train(recipe(), run, progress=Silent()).epochs[-1]["val/top1"] == counters["best"]["val"]


def negative(state: dict[str, Any]) -> None:
    state["exp_avg_sq"][0] = -1


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda state: state.update(exp_avg=torch.ones(1)),
            "exp_avg of head.bias is not that of the recipe's optimizer",
        ),
        (lambda state: state.update(exp_avg=state["exp_avg"].double()), "exp_avg of head.bias is not that"),
        (lambda state: state.update(step=torch.tensor(-1.0)), "step of head.bias is negative"),
        (lambda state: state.update(extra=torch.ones(3)), "extra of head.bias is not that"),
        (lambda state: state.pop("exp_avg_sq"), "exp_avg_sq of head.bias is not that"),
        (negative, "exp_avg_sq of head.bias is negative"),
    ],
)
def test_another_state_of_the_optimizer_is_refused(damage: Callable[[Any], None], message: str, run: Path) -> None:
    (run / "finished.json").unlink()
    optimizer = torch.load(run / "checkpoints/last.pt", weights_only=True)["optimizer"]
    damage(optimizer["state"]["head.bias"])
    change_checkpoint(run, optimizer=optimizer)
    with pytest.raises(TrainingError, match=rf"last\.pt: this checkpoint does not fit the run \({message}"):
        train(recipe(), run, progress=Silent())


def test_a_state_without_parameters_is_refused(run: Path) -> None:
    (run / "finished.json").unlink()
    change_checkpoint(run, optimizer={"state": {}, "param_groups": []})
    with pytest.raises(TrainingError, match=r"the optimizer's state has missing or additional parameters: blocks\.0\."):
        train(recipe(), run, progress=Silent())


def test_metrics_of_fewer_epochs_than_trained_are_refused(run: Path) -> None:
    (run / "finished.json").unlink()
    counters = torch.load(run / "checkpoints/last.pt", weights_only=True)["counters"]
    change_checkpoint(run, counters={**counters, "epoch": 1, "step": 0, "rows": []})
    with pytest.raises(TrainingError, match=r"last\.pt: this checkpoint has metrics of 0 epochs, but is of epoch 1;"):
        train(recipe(), run, progress=Silent())


def test_facts_are_checked_whatever_the_checksums_say(run: Path) -> None:
    content = json.loads((run / "data.json").read_text())
    for changed in ({"facts": {**content["facts"], "classes": 5}}, {"paths": {"task.data.source": 5}}):
        (run / "data.json").write_text(json.dumps({**content, **changed}))
        with_new_checksums(run)
        with pytest.raises(FolderError, match=r"data\.json: .*(classes|paths)"):
            read_run(run)


def test_classes_in_another_order_than_in_the_recipe_are_refused(run: Path) -> None:
    classes = json.loads((run / "data.json").read_text())["facts"]["classes"]
    text = (run / "recipe.yaml").read_text()
    for order, right in ((classes, True), (classes[::-1], False)):
        (run / "recipe.yaml").write_text(text.replace("data:\n", f"data:\n    classes: {json.dumps(order)}\n"))
        with_new_checksums(run)
        if right:
            read_run(run)
        else:
            with pytest.raises(FolderError, match=r"data\.json: facts\.classes are not those of task\.data\.classes"):
                read_run(run)


def test_another_normalization_than_that_of_the_data_is_refused(run: Path) -> None:
    changed = (
        (run / "recipe.yaml")
        .read_text()
        .replace("    img_size:", "    pretrained_cfg: {mean: [0.1], std: [0.2]}\n    img_size:")
    )
    (run / "recipe.yaml").write_text(changed)
    with_new_checksums(run)
    message = r"run: the host of recipe\.yaml has the mean \[0\.1\], but facts\.input of data\.json \[0\.5\]; restore"
    with pytest.raises(FolderError, match=message):
        evaluate_run(run)
    with pytest.raises(FolderError, match=message):
        open_run(run, purpose="export")
    (run / "finished.json").unlink()
    with pytest.raises(FolderError, match=message):
        train(load_recipe(run / "recipe.yaml"), run, progress=Silent())


def test_classes_of_one_name_are_damage(run: Path) -> None:
    content = json.loads((run / "data.json").read_text())
    content["facts"]["classes"][1] = content["facts"]["classes"][0]
    (run / "data.json").write_text(json.dumps(content))
    with_new_checksums(run)
    with pytest.raises(FolderError, match=r"data\.json: serving\.classes must be different names.*; restore the file"):
        open_run(run)


def test_checkpoints_are_not_written_through_a_link(run: Path, tmp_path: Path) -> None:
    (run / "checkpoints").rename(tmp_path / "elsewhere")
    (run / "checkpoints").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(
        FolderError, match="checkpoints: is a link, through which nothing is written; delete it, or move"
    ):
        Journal(RunFolder(run), [])


def test_scores_are_compared_with_the_other_columns(run: Path) -> None:
    all_right(run)
    with_new_checksums(run)
    record = read_run(run)
    with pytest.raises(TrainingError, match=r"the mean of the scores in predictions\.npz is 1, but their top1 0\."):
        read_statistics(record, build_task(record.recipe))


def test_integers_beyond_floats_are_no_metrics(run: Path) -> None:
    path = run / "metrics.jsonl"
    path.write_text(re.sub(r'"val/top1": [0-9.]+', f'"val/top1": {10**400}', path.read_text()))
    with_new_checksums(run)
    with pytest.raises(TrainingError, match=r"metrics\.jsonl: cannot be read: a line is not an object of numbers"):
        read_run(run)


def change_checkpoint(run: Path, **entries: object) -> None:
    path = run / "checkpoints/last.pt"
    torch.save({**torch.load(path, weights_only=True), **entries}, path)
    (run / "checkpoints/previous.pt").unlink(missing_ok=True)


def test_a_missing_column_is_named(run: Path) -> None:
    with np.load(run / "predictions.npz") as file:
        columns = {name: file[name] for name in file.files if name != "confidence"}
    np.savez(run / "predictions.npz", **columns)
    with_new_checksums(run)
    with (
        open_predictions(read_run(run)) as table,
        pytest.raises(TrainingError, match=r"npz: lacks the column confidence"),
    ):
        table["confidence"]
