"""Judging models that are not runs: exported folders, hosts with weights, files that name their host."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from attngraft.cli import main
from attngraft.errors import UsageError
from attngraft.evaluation.suites import evaluate_suites, parse_suites
from attngraft.evaluation.suites.cache import read_columns
from attngraft.export.run import export_run
from attngraft.models.convert import convert_checkpoint
from attngraft.results.records import open_records
from attngraft.targets.handle import open_handle
from attngraft.targets.judged import HostOptions, open_target, save_evaluation
from attngraft.training.evaluate import Weights, evaluate_run, evaluate_target
from tests.evaluation.suites.making import NAMES, run_with_images
from tests.export.runs import VIT, make_run
from tests.tasks.images.datasets import make_folder

HOST, ARGS = VIT["name"], VIT["args"]


def options(run: Path, **changes: object) -> HostOptions:
    """The host of a run with the run's best weights."""
    return HostOptions(**({"weights": run / "checkpoints" / "best.safetensors", "arguments": ARGS} | changes))


def call(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return int(ended.value.code or 0)


#: MKL's matrix products depend on the alignment of memory on some CPUs (unless MKL_CBWR is set)
ROUNDING = 1e-6


def test_all_forms_of_a_model_have_the_same_records(tmp_path: Path) -> None:
    run, data = run_with_images(tmp_path / "run"), str(tmp_path / "images")
    expected = evaluate_run(run, weights="best")
    export_run(run, tmp_path / "taken", checkpoint="best")
    convert_checkpoint(
        run / "checkpoints" / "best.safetensors",
        tmp_path / "named.safetensors",
        host=HOST,
        host_args=ARGS | {"num_classes": 3},
    )
    targets = {
        "host": open_target(f"timm:{HOST}", host=options(run)),
        "file": open_target(str(tmp_path / "named.safetensors")),
        "folder": open_target(str(tmp_path / "taken")),
    }
    for name, target in targets.items():
        found = evaluate_target(target, data=data)
        assert found.predictions.names == expected.predictions.names
        difference = found.predictions.arrays["logits"] - expected.predictions.arrays["logits"]
        # small images are not cropped by `decide`; the folder keeps the run's crop, as the run does
        assert name != "folder" or np.abs(difference).max() < ROUNDING
        assert dict(found.metrics).keys() == dict(expected.metrics).keys()
    host, file = (evaluate_target(targets[name], data=data) for name in ("host", "file"))
    assert np.array_equal(host.predictions.arrays["logits"], file.predictions.arrays["logits"])
    assert targets["host"].digest() == targets["file"].digest()
    assert targets["host"].digest() == targets["folder"].digest()


def test_records_and_result_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, data = run_with_images(tmp_path / "run"), tmp_path / "images"
    taken, out = tmp_path / "taken", tmp_path / "out"
    export_run(run, taken, checkpoint="last")
    assert call("eval", taken, "--data", data, "--split", "train", "--out", out, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    result = json.loads((out / "evaluation.json").read_text())
    assert result["metrics"] == shown["metrics"]
    assert shown["metrics"] == pytest.approx(dict(evaluate_run(run, split="train").metrics), rel=ROUNDING)
    assert (result["task"], result["kind"], result["examples"]) == ("classification", "exported model", 12)
    assert (result["data"], result["split"], result["weights"]) == (str(data), "train", "last")
    with open_records(out / "predictions.npz") as table:
        assert len(table.names) == 12
    assert call("eval", run, "--out", out) == 0  # a run, too, and its own predictions stay
    assert json.loads((out / "evaluation.json").read_text())["kind"] == "run"


def test_suites(tmp_path: Path) -> None:
    run = run_with_images(tmp_path / "run", "cb_s")
    export_run(run, tmp_path / "taken")
    choices = parse_suites(["clean", "occlusion", "calibration"])
    data = str(tmp_path / "images" / "val")
    expected = evaluate_suites(run, choices, data=data)
    found = evaluate_suites(open_target(str(tmp_path / "taken"), out=tmp_path / "out"), choices, data=data)
    for mine, theirs in zip(found, expected, strict=True):
        for ours, those in zip(mine.groups, theirs.groups, strict=True):
            means = [{name: each.mean for name, each in group.metrics.items()} for group in (ours, those)]
            assert means[0] == pytest.approx(means[1], rel=ROUNDING)
        assert mine.examples == theirs.examples == 12
        assert mine.classes == list(NAMES)
    (folder,) = (tmp_path / "out").glob("clean--*")
    assert set(read_columns(folder / "clean.parquet")) >= {"name", "target", "predicted"}
    host = open_target(HOST, host=options(run_with_images(tmp_path / "plain")), out=tmp_path / "host")
    (clean,) = evaluate_suites(host, choices[:1], data=data)  # the classes are those of the folder, all images are used
    assert clean.examples == 12
    assert clean.classes == list(NAMES)


REFUSED = {
    "vit_tiny_patch16_224": "add --pretrained, or --host-weights FILE",
    "nothing:vit": "unknown scheme",
    "runs/nothing": "no such folder, file or host",
    "vit_tini_patch16_224": "no such folder, file or host (did you mean vit_tiny_patch16_224?)",
    "{run} --pretrained": "apply to hosts, not folders",
    "{run} --task multilabel": "its task is classification; remove --task",
    "{taken}": "--data SOURCE",
    "{taken} --data {images} --weights best": "chooses among the weights of a run",
    "{taken} --data {others}": "head has 3 outputs, but the data have 2 classes",
    "{taken} --data {renamed}": "the model lacks 'ox'",
    "{taken} --data {images} --suite clean": "--out FOLDER",
    "{best}": "does not name its model",
    "{host} --host-weights {best} --data {others}": "head has 3 outputs, but the data have 2 classes",
    "{host} --host-weights {best} --task regression --data x.csv": "lack the mean and deviation",
    "{host} --host-weights {best} --data {images} --out {run}": "is the folder of a run",
    "{host} --host-weights {best} --pretrained --data {images}": "remove one of them",
    "{host} --host-weights {grafted} --data {images}": "has weights of grafts",
}


def test_what_cannot_be_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_with_images(tmp_path / "run")
    export_run(run, tmp_path / "taken")
    grafted = run_with_images(tmp_path / "grafted", "cb_s") / "checkpoints" / "best.safetensors"
    make_folder(tmp_path / "others", {"train": {"a": 2, "b": 2}, "val": {"a": 1, "b": 1}}, size=(20, 16))
    renamed = {part: {"cat": 2, "dog": 2, "ox": 2} for part in ("train", "val")}
    make_folder(tmp_path / "renamed", renamed, size=(20, 16))
    paths = {name: tmp_path / name for name in ("run", "taken", "images", "others", "renamed")}
    paths |= {"best": run / "checkpoints" / "best.safetensors", "grafted": grafted}
    before = sorted(tmp_path.rglob("*"))
    for command, message in REFUSED.items():
        typed = [word.format(host=HOST, **paths) for word in command.split()]
        if "{host}" in command:
            typed += [word for name, value in ARGS.items() for word in ("--host-arg", f"{name}={value}")]
        assert call("eval", *typed) == 2, command
        assert message in " ".join(capsys.readouterr().err.split()), command
    assert sorted(tmp_path.rglob("*")) == before


def test_handles_of_files_and_hosts_with_weights(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    best = run / "checkpoints" / "best.safetensors"
    convert_checkpoint(best, tmp_path / "named.safetensors", host=HOST, host_args=ARGS | {"num_classes": 5})
    named, given = open_handle(str(tmp_path / "named.safetensors")), open_handle(HOST, host=options(run))
    weights: Weights = "best"
    expected = open_handle(str(run), weights=weights).model.state_dict()
    assert named.name == "named"
    for handle in (named, given):
        assert all(value.equal(expected[name]) for name, value in handle.model.state_dict().items())
    with pytest.raises(UsageError, match="does not name its model"):
        open_handle(str(best))


def test_a_result_is_of_the_model_that_was_judged(tmp_path: Path) -> None:
    run = run_with_images(tmp_path / "run")
    target = open_target(HOST, host=options(run))
    evaluation = evaluate_target(target, data=str(tmp_path / "images"))
    save_evaluation(evaluation, target, tmp_path / "out", data=str(tmp_path / "images"))
    result = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    assert result["checkpoint"] == target.digest()
    assert result["weights"] == str(run / "checkpoints" / "best.safetensors")
