"""Runs under suites: what is written, that it goes on where it was stopped, and that it is what plain ways give."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from attngraft.errors import AttngraftError, ConfigError, DataError, TrainingError, UsageError
from attngraft.evaluation.suites import SuiteRun, SuitesFailed, evaluate_suites, parse_suites
from attngraft.evaluation.suites.cache import KEY, read_columns
from attngraft.evaluation.suites.progress import SuiteProgress
from attngraft.evaluation.suites.result import read_suite_run
from attngraft.study.verify import verify
from attngraft.tasks.images.suites.changes import noise_generator
from attngraft.tasks.images.suites.corruptions import corruption
from attngraft.training.evaluate import evaluate_run, open_split, run_target, trained_model
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from attngraft.training.run_folder import read_run
from attngraft.training.stopping import Interrupted
from tests.evaluation.suites.making import NAMES, run_with_images
from tests.export.runs import VIT
from tests.slow import slow_but
from tests.tasks.images.datasets import make_folder
from tests.training.toys import toy_recipe

SILENT = SuiteProgress()
EVERYTHING = ["robustness", "pgd", "clean", "calibration"]


def under(run: Path, *names: str, **more: object) -> dict[str, SuiteRun]:
    found = evaluate_suites(run, parse_suites(names), progress=SILENT, **more)  # type: ignore[arg-type]
    return {each.suite: each for each in found}


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Stopping(SuiteProgress):
    """Does something when so many conditions are done and the next one is under way."""

    def __init__(self, after: int, then: Callable[[], None]) -> None:
        self.left, self.then = after, then

    def on_outcome(self, label: str, outcome: str) -> None:
        self.left -= 1

    def on_examples(self, count: int) -> None:
        if self.left == 0:
            self.then()


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = run_with_images(tmp_path_factory.mktemp("done") / "run", "cb_s")
    under(run, *EVERYTHING)
    return run


def test_clean_is_what_eval_says(done: Path) -> None:
    plain = evaluate_run(done)
    kept = read_columns(done / "evaluation" / "last" / "clean" / "clean.parquet")
    assert kept["name"].tolist() == list(plain.predictions.names)
    assert kept["score"].tolist() == plain.predictions.score.tolist()
    for name in ("target", "predicted", "confidence"):
        np.testing.assert_array_equal(kept[name], plain.predictions.arrays[name])
    found = json.loads((done / "evaluation" / "last" / "clean" / "results.json").read_text())
    assert {name: each["mean"] for name, each in found["groups"][0]["metrics"].items()} == dict(plain.metrics)


def test_damaged_files_are_found_and_made_again(done: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = tmp_path / "run"
    shutil.copytree(done, run)
    folder = run / "evaluation" / "last" / "clean"
    under(run, "clean")  # the results contain the folder's name
    for name in ("clean.parquet", "results.json", "checksums.json"):
        path, before = folder / name, contents(folder)
        whole = before[name]
        middle = len(whole) // 2
        path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
        with pytest.raises(AttngraftError, match=rf"{name}: damaged"):
            read_suite_run(folder)
        assert any(f"{name}: damaged" in problem for problem in verify(run).problems)
        if name != "results.json":
            with pytest.raises(AttngraftError, match=rf"{name}: damaged"):
                read_columns(folder / "clean.parquet")
        caplog.clear()
        under(run, "clean")
        assert f"{name}: damaged" in caplog.text
        assert contents(folder) == before
        assert not any("/evaluation/" in problem for problem in verify(run).problems)


def test_noise_and_fgsm_by_a_plain_loop(done: Path) -> None:
    record = read_run(done)
    split = open_split(run_target(record, "last"), data=None, split=None).split
    model = trained_model(record, "last").eval()
    images = torch.stack([split[(0, index)][0] for index in range(len(split))]).float() / 255
    labels = torch.tensor([int(split[(0, index)][1]) for index in range(len(split))])
    mean = torch.tensor([0.5, 0.5, 0.5])[:, None, None]

    def predicted(pixels: torch.Tensor) -> list[int]:
        with torch.no_grad():
            return model((pixels - mean) / 0.5).argmax(1).tolist()

    noisy = torch.stack(
        [
            corruption("gaussian_noise").apply(each, 10 / 255, noise_generator(3, place))
            for place, each in enumerate(images)
        ]
    )
    folder = done / "evaluation" / "last"
    kept = read_columns(folder / "noise" / "gaussian_noise-10-seed3.parquet")
    assert kept["predicted"].tolist() == predicted(noisy)
    assert kept["noise_seed"].tolist() == [3] * len(split)
    moved = images.clone().requires_grad_()
    F.cross_entropy(model((moved - mean) / 0.5), labels, reduction="sum").backward()
    assert moved.grad is not None
    attacked = (images + 8 / 255 * moved.grad.sign()).clamp(0, 1)
    assert read_columns(folder / "fgsm" / "fgsm-8.parquet")["predicted"].tolist() == predicted(attacked)
    side = slice(4, 12)
    hidden = images.clone()
    hidden[:, :, side, side] = mean
    assert read_columns(folder / "occlusion" / "center.parquet")["predicted"].tolist() == predicted(hidden)


def test_means_and_intervals_are_students_over_noise_seeds(done: Path) -> None:
    noise = under(done, "noise")["noise"]
    group = next(group for group in noise.groups if group.name == "shot_noise-60")
    folder = done / "evaluation"
    scores = [float(read_columns(folder / name)["score"].mean()) for name in group.files]
    measured = group.metrics["loss"]
    assert group.metrics["top1"].values == pytest.approx(scores)
    assert (group.noise_seeds, len(measured.values)) == ([0, 1, 2, 3, 4], 5)
    low, high = stats.t.interval(0.95, 4, loc=np.mean(measured.values), scale=stats.sem(measured.values))
    assert measured.interval is not None
    assert (measured.interval.low, measured.interval.high) == pytest.approx((low, high))
    blur = next(group for group in noise.groups if group.name == "gaussian_blur-2")
    assert (blur.noise_seeds, blur.metrics["top1"].interval) == ([], None)


def test_calibration_by_numpy(done: Path) -> None:
    folder = done / "evaluation" / "last"
    kept = read_columns(folder / "clean" / "clean.parquet")
    right = (kept["predicted"] == kept["target"]).astype(float)
    place = np.minimum((kept["confidence"] * 15).astype(int), 14)
    error = sum(
        abs(right[place == b].mean() - kept["confidence"][place == b].mean()) * (place == b).mean()
        for b in np.unique(place)
    )
    found = under(done, "calibration")["calibration"]
    assert found.groups[0].metrics["ece"].mean == pytest.approx(error, abs=1e-6)
    assert found.reliability is not None
    assert sum(found.reliability.counts) == 12
    assert (folder / "calibration" / "reliability.svg").read_text().startswith("<?xml")
    assert (folder / "calibration" / "reliability.png").read_bytes().startswith(b"\x89PNG")
    assert not list((folder / "calibration").glob("*.parquet"))  # they are clean's


def test_what_is_done_is_not_done_again(done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(done / "evaluation")
    monkeypatch.setattr("attngraft.training.evaluate.trained_model", lambda *_: pytest.fail("made the model"))
    under(done, *EVERYTHING)
    assert contents(done / "evaluation") == before


@pytest.mark.parametrize("after", slow_but([3, 20], 20))
def test_killed_and_repeated_it_gives_the_same_bytes(done: Path, tmp_path: Path, after: int) -> None:
    run = run_with_images(tmp_path / "run", "cb_s", task={"name": "classification", "data": {"source": source(done)}})

    def die() -> None:
        raise MemoryError("killed")

    with pytest.raises(MemoryError):
        evaluate_suites(run, parse_suites(EVERYTHING), progress=Stopping(after, die))
    assert len(list(run.rglob("*.parquet"))) == after
    under(run, *EVERYTHING)
    found, expected = contents(run / "evaluation"), contents(done / "evaluation")
    assert found.keys() == expected.keys()
    for name, content in found.items():
        if name.endswith(".parquet"):  # but for the checkpoint, whose bytes are its own
            for column, values in read_columns(run / "evaluation" / name).items():
                np.testing.assert_array_equal(values, read_columns(done / "evaluation" / name)[column])
        elif name.endswith(".csv"):
            assert content == expected[name]


def source(run: Path) -> str:
    return str(read_run(run).recipe.task["data"]["source"])


def test_ctrl_c_keeps_what_is_done_and_the_same_call_goes_on(tmp_path: Path) -> None:
    import os
    import signal

    run = run_with_images(tmp_path / "run")
    press = Stopping(2, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(
        Interrupted, match="FGSM: 2 of 4 conditions are finished in .*; rerun the same command to resume"
    ):
        evaluate_suites(run, parse_suites(["fgsm"]), progress=press)
    kept = contents(run / "evaluation")
    assert sorted(kept) == ["last/fgsm/fgsm-1.parquet", "last/fgsm/fgsm-2.parquet"]
    under(run, "fgsm")
    after = contents(run / "evaluation")
    assert {name: after[name] for name in kept} == kept
    assert len(list(run.rglob("*.parquet"))) == 4
    again = tmp_path / "again"
    (run / "evaluation").rename(again)
    under(run, "fgsm")
    assert contents(run / "evaluation") == contents(again)  # byte for byte what an uninterrupted one gives


def test_other_weights_data_or_damage_are_evaluated_anew(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    run = run_with_images(tmp_path / "run")
    under(run, "occlusion")
    path = run / "evaluation" / "last" / "occlusion" / "center.parquet"
    first = path.read_bytes()
    path.write_bytes(first[:100])
    under(run, "occlusion")
    assert path.read_bytes() == first
    for name, value in {"metrics": {"top1": "1"}, "examples": [8], "said": [3]}.items():
        table = parquet.read_table(path)
        metadata = json.loads(table.schema.metadata[KEY]) | {name: value}
        parquet.write_table(table.replace_schema_metadata({KEY: json.dumps(metadata)}), path)
        (path.parent / "checksums.json").unlink()
        under(run, "occlusion")
        assert path.read_bytes() == first
    table = parquet.read_table(path)
    metadata = json.loads(table.schema.metadata[KEY])
    for name, metrics in {"score": {}, "confidence": {}, "predicted": {"macro_f1": 0.9876}}.items():
        column = table[name] if metrics else pa.array([2.0] * len(table))
        changed = table.set_column(table.column_names.index(name), name, column)
        described = json.dumps(metadata | {"metrics": metadata["metrics"] | metrics})
        parquet.write_table(changed.replace_schema_metadata({KEY: described}), path)
        (path.parent / "checksums.json").unlink()
        under(run, "occlusion")
        assert path.read_bytes() == first
    checkpoint = torch.load(run / "checkpoints" / "last.pt", weights_only=True)
    checkpoint["model"]["head.bias"][0] += 100
    torch.save(checkpoint, run / "checkpoints" / "last.pt")
    under(run, "occlusion")
    assert set(read_columns(path)["predicted"].tolist()) == {0}
    (tmp_path / "images" / "val" / "owl" / "0.png").unlink()
    under(run, "occlusion")
    assert len(read_columns(path)["name"]) == 11


def test_batches_and_processes_change_nothing(tmp_path: Path) -> None:
    found = []
    for name, training in (("one", {"batch_size": 12}), ("other", {"batch_size": 2, "workers": 2})):
        run = run_with_images(tmp_path / name, train=training | {"threads": 1})
        under(run, "patches", "noise")
        found.append({path.name: read_columns(path) for path in (run / "evaluation").rglob("*.parquet")})
    for name, columns in found[0].items():
        assert columns["predicted"].tolist() == found[1][name]["predicted"].tolist()
        np.testing.assert_allclose(columns["confidence"], found[1][name]["confidence"], atol=1e-5)


def test_a_part_of_the_images_has_the_same_noise_and_a_folder_of_its_own(done: Path) -> None:
    under(done, "noise", limit=5)
    part = read_columns(done / "evaluation" / "last" / "noise--limit5" / "gaussian_noise-5-seed0.parquet")
    whole = read_columns(done / "evaluation" / "last" / "noise" / "gaussian_noise-5-seed0.parquet")
    places = [whole["name"].tolist().index(name) for name in part["name"]]
    assert places == [0, 3, 6, 8, 11]
    np.testing.assert_allclose(part["confidence"], whole["confidence"][places], atol=1e-6)


def test_other_folders_of_the_same_classes(done: Path) -> None:
    folder = Path(source(done)) / "train"
    found = under(done, "clean", data=str(folder))["clean"]
    assert found.examples == 12  # all of them, without a fifth being drawn
    assert found.data == str(folder)
    assert any(path.name.startswith("clean--images-train-") for path in (done / "evaluation" / "last").iterdir())


def test_models_without_attention_over_patches_say_why(tmp_path: Path) -> None:
    host = {"name": "mixer_s32_224", "args": {"img_size": 32}}
    patches = under(run_with_images(tmp_path / "run", host=host), "patches")["patches"]
    by_name = {group.name: group for group in patches.groups}
    assert by_name["random-50"].metrics
    assert not by_name["salient-50"].metrics
    assert "this model has no attention over the patches" in by_name["salient-50"].reason


def test_several_labels(tmp_path: Path) -> None:
    run_with_images(tmp_path / "unused")
    rows = ["path,labels,split"]
    for part in ("train", "val"):
        for place, path in enumerate(sorted((tmp_path / "images" / part).rglob("*.png"))):
            rows.append(f"{path},{'cat|dog' if place % 2 else 'owl'},{part}")
    (tmp_path / "labels.csv").write_text("\n".join(rows) + "\n")
    task = {"name": "multilabel", "data": {"source": str(tmp_path / "labels.csv")}}
    found = under(run_with_images(tmp_path / "run", task=task), "fgsm", "occlusion", "calibration")
    assert found["fgsm"].metric == "image_ap"
    losses = [group.metrics["loss"].mean for group in found["fgsm"].groups]
    assert losses == sorted(losses)
    kept = read_columns(tmp_path / "run" / "evaluation" / "last" / "fgsm" / "fgsm-1.parquet")
    assert kept["target"].shape == kept["logits"].shape == (12, 3)
    stated, true = 1 / (1 + np.exp(-kept["logits"])), kept["target"] > 0
    assert found["calibration"].reliability is not None
    assert sum(found["calibration"].reliability.counts) == stated.size == true.size


def test_throughput(done: Path) -> None:
    (group,) = under(done, "throughput")["throughput"].groups
    rate = group.metrics["images_per_second"]
    assert rate.interval is not None
    assert 0 < rate.interval.low <= rate.mean <= rate.interval.high
    parameters = sum(each.numel() for each in trained_model(read_run(done), "last").parameters())
    assert group.metrics["peak_memory_bytes"].mean > 4 * parameters


def test_what_cannot_be_put_under_suites(tmp_path: Path, done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(toy_recipe(), tmp_path, progress=Silent())
    with pytest.raises(
        ConfigError, match=r"task toy: does not support suites that change images \(Task.suite_support\)"
    ):
        under(tmp_path, "noise")
    with pytest.raises(TrainingError, match="has not saved these weights"):
        under(done, "noise", weights="best-ema")
    with pytest.raises(UsageError, match="unknown suite 'noises'.*did you mean noise"):
        parse_suites(["noises"])
    with pytest.raises(UsageError, match="specified with two folders"):
        parse_suites(["a=x", "a=y"])
    assert [each.text for each in parse_suites(["a=x,y", "robustness", "noise,clean"])] == [
        *("a=x,y", "occlusion", "patches", "fgsm", "noise", "clean")
    ]
    import builtins

    usual = builtins.__import__

    def without(name: str, *rest: object, **more: object) -> object:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return usual(name, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"pip install 'attngraft\[data\]'"):
        under(done, "noise")


def broken_images(tmp_path: Path) -> Path:
    """A folder of the same classes, of which one image cannot be read."""
    folder = make_folder(tmp_path / "broken", dict.fromkeys(NAMES, 2))
    (folder / "dog" / "1.png").write_bytes(b"no image")
    return folder


def test_a_suite_that_fails_leaves_the_others(tmp_path: Path) -> None:
    """Before it, and behind it."""
    run, folder = run_with_images(tmp_path / "run"), broken_images(tmp_path)
    with pytest.raises(SuitesFailed) as told:
        under(run, "clean", f"occlusion={folder}", "fgsm", f"pgd={folder}")
    assert [each.suite for each in told.value.found] == ["clean", "fgsm"]
    assert list(told.value.failed) == [f"occlusion={folder}", f"pgd={folder}"]
    assert all("dog/1.png" in error for error in told.value.failed.values())
    assert sorted(path.parent.name for path in run.rglob("results.json")) == ["clean", "fgsm"]
    with pytest.raises(DataError, match=r"dog/1.png"):  # alone it is its own error
        under(run, f"occlusion={folder}")


def test_an_error_that_suites_share_is_told_once(tmp_path: Path) -> None:
    with pytest.raises(SuitesFailed, match="^suites clean, fgsm failed: .*has no moving average[^\n]*$"):
        under(run_with_images(tmp_path / "run"), "clean", "fgsm", weights="ema")


def test_what_can_be_known_before_is_said_before_anything_is_evaluated(tmp_path: Path) -> None:
    run = run_with_images(tmp_path / "run")
    for other in ("a", f"fgsm={tmp_path / 'nowhere'}"):
        with pytest.raises(DataError):
            under(run, "clean", other)
    assert not (run / "evaluation").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt("stopped"), ValueError("a fault of the program")])
def test_what_says_something_of_all_suites_ends_them(tmp_path: Path, error: BaseException) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        evaluate_suites(run_with_images(tmp_path / "run"), parse_suites(["clean", "fgsm"]), progress=Stopping(0, fail))


def test_of_several_processes_none_goes_on_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others would wait for it in the suite that it failed in."""
    from attngraft.evaluation.suites import evaluate

    run, asked = run_with_images(tmp_path / "run"), []

    def fail(self: object, choice: object, context: object, stop: object) -> None:
        asked.append(choice)
        raise AttngraftError("of this process alone")

    monkeypatch.setattr(evaluate._TargetEvaluator, "suite", fail)
    work = evaluate._TargetEvaluator(run_target(read_run(run), "last"), SILENT)
    work.model.accelerator = SimpleNamespace(num_processes=2)
    with pytest.raises(AttngraftError, match="^of this process alone$"):
        work.suites([(choice, None) for choice in parse_suites(["clean", "fgsm"])], None)  # type: ignore[misc,arg-type]
    assert len(asked) == 1


def test_corruptions_have_means_over_severities(tmp_path: Path) -> None:
    run = run_with_images(tmp_path / "run", host=VIT)
    found = under(run, "corruptions", limit=3)["corruptions"]
    by_name = {group.name: group for group in found.groups}
    assert len(by_name) == 9 * 5 + 9 + 1
    rows = [by_name[f"shot_noise-{severity}"].metrics["loss"].values for severity in range(1, 6)]
    assert by_name["shot_noise-mean"].metrics["loss"].values == pytest.approx(np.mean(rows, axis=0))
    kinds = [by_name[f"{name}-mean"].metrics["loss"].mean for name in ("gaussian_blur", "jpeg", "contrast")]
    assert all(np.isfinite(kinds))
    assert len(by_name["mean"].metrics["loss"].values) == 5
    assert by_name["mean"].metrics["top1"].mean == pytest.approx(
        np.mean([group.metrics["top1"].mean for group in found.groups if group.severity is not None])
    )
