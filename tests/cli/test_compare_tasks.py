"""`attngraft compare` on data of both kinds: the recipe says which task it is, and the wrong one is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args, get_type_hints

import numpy as np
import pytest
from PIL import Image

from attngraft.cli import main
from attngraft.study import Tools, load_result, runner
from attngraft.tasks.classification import Classification
from attngraft.tasks.multilabel import MultiLabel
from attngraft.tasks.token_labeling import TokenLabeling
from tests.tasks.images.datasets import make_folder

HOST = ["--host", "vit_tiny_patch16_224"]
for _argument in ("img_size=16", "patch_size=8", "embed_dim=24", "depth=1", "num_heads=3"):
    HOST += ["--host-arg", _argument]


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """`several.csv` with lists of labels and `one.csv` with a label each, on the same images."""
    random = np.random.default_rng(0)
    several, one = ["path,labels"], ["path,label"]
    for i in range(30):
        bright, red = i % 2, i % 3 == 0
        pixels = random.integers(0, 60, (16, 16, 3)) + 120 * bright
        pixels[..., 0] += 60 * red
        Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / f"{i}.png")
        several.append(f"{i}.png,{'|'.join(['bright'] * bright + ['red'] * red)}")
        one.append(f"{i}.png,{'bright' if bright else 'dark'}")
    (tmp_path / "several.csv").write_text("\n".join(several) + "\n")
    (tmp_path / "one.csv").write_text("\n".join(one) + "\n")
    return tmp_path


def call(*arguments: str) -> int:
    """The exit code."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


def _compare(folder: Path, table: str, *more: str) -> int:
    common = ["--graft", "cb_s", "--seeds", "2", "--set", "train.batch_size=8"]
    more = more if "--epochs" in more else ("--epochs", "1", *more)
    return call("compare", *HOST, *common, "--data", str(folder / table), "--out", str(folder / "study"), *more)


def test_a_table_of_several_labels_and_the_recipe_for_it(
    tables: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = Tools(measure_costs=lambda *_, **__: {}, write_report=lambda result, folder: folder)
    monkeypatch.setattr(runner, "Tools", lambda: bare)
    assert _compare(tables, "several.csv", "--recipe", "multilabel", "--metric", "map") == 0
    result = load_result(tables / "study")
    assert (result.task, result.metric, result.higher_is_better) == ("multilabel", "map", True)
    baseline, variant = result.variants
    assert {"image_ap", "map", "macro_f1", "micro_f1", "loss"} == variant.last.keys()
    assert {"image_ap", "macro_f1", "micro_f1", "loss"} == variant.other_differences.keys()
    for metric, found in {"map": variant.difference, **variant.other_differences}.items():
        assert found is not None
        assert found.mean == pytest.approx(variant.last[metric].mean - baseline.last[metric].mean, abs=1e-6)
        assert found.bootstrap.low <= found.mean <= found.bootstrap.high
    assert [section.name for section in result.variants[1].sections] == ["classes", "reliability"]
    shown = capsys.readouterr().out
    assert "Other metrics: differences to the baseline" in shown
    assert "lower is better" in shown
    assert (tables / "study" / "metrics.csv").read_text().startswith("metric,primary,")
    split = tables / "study" / "split.csv"
    assert f"Split: {split} (reuse it with --set task.data.split_file={split})" in shown
    assert split.read_text(encoding="utf-8").count(",val") == result.data["sizes"]["val"]


@pytest.mark.parametrize(
    "means",
    [[], ["--set", "task.sampling=null", "--set", "task.loss.class_weights=balanced"]],
    ids=["sampling", "weights"],
)
@pytest.mark.slow
def test_classes_of_unequal_size_and_the_recipe_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, means: list[str]
) -> None:
    rare = {"train": {"common": 30, "rare <one>": 4}, "val": {"common": 6, "rare <one>": 3}}
    make_folder(tmp_path / "data", rare, size=(16, 16))
    monkeypatch.setattr(runner, "Tools", lambda: Tools(measure_costs=lambda *_, **__: {}))
    assert _compare(tmp_path, "data", "--recipe", "imbalanced", *means) == 0
    result = load_result(tmp_path / "study")
    assert (result.metric, result.data["counts"]["train"]) == ("balanced_accuracy", rare["train"])
    task = result.recipe["task"]
    assert (task["sampling"], task["loss"]["class_weights"]) == ((None, "balanced") if means else ("sqrt", None))
    for variant in result.variants:
        (table,) = [section.table for section in variant.sections if section.name == "classes"]
        assert table is not None
        assert [row[:2] for row in table.rows] == [["common", 6], ["rare <one>", 3]]
        recalls = [float(row[2]) for row in table.rows]
        assert np.mean(recalls) == pytest.approx(variant.last["balanced_accuracy"].mean, abs=1e-6)
    page = (tmp_path / "study" / "report.html").read_text(encoding="utf-8")
    assert "Class by class" in page
    assert (
        "always predicting common, the class with the most training images, is correct for 66.67 % of the images"
        in page
    )
    assert "rare &lt;one&gt;" in page and "rare <one>" not in page


def test_the_task_follows_from_the_data(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _compare(tables, "several.csv", "--dry-run") == 0
    said = capsys.readouterr().err
    assert said.startswith(
        "Task: multilabel (lists of labels in column 'labels' of several.csv; --task NAME for another)"
    )
    assert _compare(tables, "one.csv", "--dry-run") == 0
    said = capsys.readouterr().err
    assert said.startswith("Task: classification (one label per image in column 'label' of one.csv;")


@pytest.mark.parametrize("choice", [["--recipe", "default"], ["--task", "classification"]])
def test_a_task_that_does_not_fit_is_refused(
    tables: Path, capsys: pytest.CaptureFixture[str], choice: list[str]
) -> None:
    assert _compare(tables, "several.csv", *choice, "--dry-run") != 0
    said = capsys.readouterr().err
    assert said.startswith("Task: classification\n")
    assert "several labels each" in " ".join(said.split())
    assert "--recipe multilabel" in said
    assert not (tables / "study" / "runs").exists()


def test_an_image_that_patches_do_not_cover_is_told_at_once(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _compare(tables, "one.csv", "--set", "host.args.img_size=20") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "the image size 20 is not a multiple of the patch size 8; use --host-arg img_size=16" in said


def test_one_label_with_the_recipe_for_several_is_refused(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _compare(tables, "one.csv", "--recipe", "multilabel", "--dry-run") != 0
    said = " ".join(capsys.readouterr().err.split())
    assert "one label each" in said
    assert "remove --recipe multilabel" in said


def test_the_metric_is_any_of_the_task(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _compare(tables, "one.csv", "--metric", "macro_f1", "--dry-run") == 0
    capsys.readouterr()
    assert _compare(tables, "one.csv", "--metric", "macro_f2") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "task.metrics.primary: 'macro_f2' is not a choice (did you mean macro_f1?)" in said
    assert "top1, top5, balanced_accuracy, macro_f1, loss" in said
    assert _compare(tables, "one.csv", "--metric", "top5") == 2
    assert "top5 needs more than five classes" in " ".join(capsys.readouterr().err.split())


def test_a_task_brings_its_recipe(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _compare(tables, "several.csv", "--task", "multilabel", "--dry-run") == 0
    capsys.readouterr()
    assert _compare(tables, "several.csv", "--task", "multilabel", "--recipe", "imbalanced", "--dry-run") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert (
        "--task multilabel: the recipe imbalanced is for the task classification; use --recipe multilabel, or" in said
    )
    assert _compare(tables, "several.csv", "--set", "task=5", "--dry-run") == 2
    assert "--set task: expected a section of fields, found 5; for a name, use --task" in capsys.readouterr().err
    assert _compare(tables, "several.csv", "--task", "multilable", "--dry-run") == 2
    assert "did you mean multilabel" in capsys.readouterr().err
    assert not (tables / "study").exists() or not list((tables / "study").iterdir())


def test_a_host_that_the_task_cannot_use_is_refused_with_those_that_it_can(
    tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = (
        "task token_labeling: cannot use the host vit_tiny_patch16_224: it has no logits for its patches (aux_head); "
        "use one of volo_*, elsa_volo_*"
    )
    assert _compare(tables, "one.csv", "--task", "token_labeling", "--epochs", "40") == 2
    assert expected in " ".join(capsys.readouterr().err.split())
    assert not (tables / "study" / "study.yaml").exists()
    train = [
        "train",
        "--task",
        "token_labeling",
        *HOST,
        "--data",
        str(tables / "one.csv"),
        "--out",
        str(tables / "run"),
    ]
    assert call(*train) == 2
    assert expected in " ".join(capsys.readouterr().err.split())
    assert not (tables / "run" / "recipe.yaml").exists()


def test_a_variant_of_the_command_line_has_its_own_recipe(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = "{name: slow, graft: cb_s, set: {schedule.epochs: 2}}"
    assert _compare(tables, "one.csv", "--graft", own, "--dry-run", "--json") == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert {(run["variant"], run["epochs"], *run["set"]) for run in runs} == {
        ("baseline", 1),
        ("cb_s", 1),
        ("slow", 2, "schedule.epochs=2"),
    }
    assert _compare(tables, "several.csv", "--recipe", "multilabel", "--metric", "top1") == 2
    assert "image_ap, map, macro_f1, micro_f1, loss" in " ".join(capsys.readouterr().err.split())
    assert not (tables / "study" / "runs").exists()


def test_help_names_the_metrics_of_every_task(capsys: pytest.CaptureFixture[str]) -> None:
    """Those that the recipes allow."""
    assert call("compare", "--help") == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for task in (Classification, TokenLabeling, MultiLabel):
        primary = get_type_hints(get_type_hints(task.config_class)["metrics"])["primary"]
        assert list(get_args(primary)) == list(task.metrics)
        assert ", ".join(task.metrics) in shown
