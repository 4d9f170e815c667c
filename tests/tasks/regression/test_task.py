"""Regression as the engine, a study and the command line use it, on the generated bars."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from attngraft.cli import main
from attngraft.errors import ConfigError, DataError
from attngraft.results.records import RecordTable
from attngraft.study import Tools, load_result, runner
from attngraft.tasks.images.config import NumbersConfig
from attngraft.tasks.images.sources import open_source
from attngraft.tasks.regression import Regression
from tests.tasks.images.datasets import host_config

HOST = ["--host", "vit_tiny_patch16_224"]
for _argument in ("img_size=16", "patch_size=8", "in_chans=1", "embed_dim=24", "depth=1", "num_heads=3"):
    HOST += ["--host-arg", _argument]


def call(*arguments: str) -> int:
    """The exit code."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


def make(**sections: Any) -> Regression:
    return Regression.from_config({"data": {"source": "bars"}, **sections}, seed=0)  # type: ignore[return-value]


def write_table(folder: Path, *, header: str = "image,length", images: int = 30, shift: float = 0.0) -> Path:
    """Bars as files, with as many of their numbers as the header names."""
    bars, rows = open_source(NumbersConfig(source="bars")).train, [header]
    for index in range(images):
        bars.open(index).save(folder / f"{index}.png")
        rows.append(",".join([f"{index}.png", *(f"{n + shift:.3f}" for n in bars.labels[index, : header.count(",")])]))
    path = folder / "table.csv"
    path.write_text("\n".join(rows) + "\n")
    return path


def test_targets_are_standardized_by_the_training_part() -> None:
    task = make()
    data = task.load(model_data_config=host_config(16))
    train = data.train.labels  # type: ignore[attr-defined]
    assert (data.model_args, data.facts["targets"]) == ({"num_classes": 2}, ["length", "thickness"])
    assert data.facts["sizes"] == {"train": 400, "val": 100}
    assert train.dtype == np.float32
    np.testing.assert_allclose([train.mean(0), train.std(0)], [[0, 0], [1, 1]], atol=1e-5)
    batch = data.val.collate([data.val[0, index] for index in range(3)])
    found = task.predict(torch.zeros(3, 2), batch)
    np.testing.assert_allclose(found["predicted"][0], data.facts["scale"]["mean"])
    source = open_source(NumbersConfig(source="bars"))
    numbers = dict(zip(source.train.names, source.train.labels, strict=True))
    expected = [numbers[data.val.name(index)] for index in range(3)]
    np.testing.assert_allclose(found["target"], expected, rtol=1e-6)


def test_a_trained_models_numbers_and_scale_are_used_for_other_data(tmp_path: Path) -> None:
    facts = make(data={"source": "bars", "label_column": "length"}).load(model_data_config=host_config(16)).facts
    task = make(data={"source": str(write_table(tmp_path, shift=100))})
    task.use_fitted_transform(facts)
    data = task.load(model_data_config=host_config(16))
    assert data.facts["scale"] == facts["scale"]
    assert data.val.labels.min() > 30  # type: ignore[attr-defined]
    (tmp_path / "other").mkdir()
    task = make(data={"source": str(write_table(tmp_path / "other", header="image,size"))})
    task.use_fitted_transform(facts)
    with pytest.raises(ConfigError, match="has no column 'length'"):
        task.load(model_data_config=host_config(16))


def test_an_underscore_is_in_no_number(tmp_path: Path) -> None:
    table = write_table(tmp_path)
    table.write_text(f"{table.read_text()}0.png,1_0\n")
    with pytest.raises(DataError, match=r"row 32: column 'length' contains '1_0', not a number"):
        make(data={"source": str(table)}).load(model_data_config=host_config(16))


def test_the_scale_is_saved_and_not_fitted_anew(tmp_path: Path) -> None:
    task = make(data={"source": str(write_table(tmp_path))})
    scale = task.load(model_data_config=host_config(16)).facts["scale"]
    task.save_files(tmp_path / "fitted")
    task = make(data={"source": str(write_table(tmp_path, images=40, shift=100))})
    task.load_files(tmp_path / "fitted")
    assert task.load(model_data_config=host_config(16)).facts["scale"] == scale
    of_data = make(data={"source": str(tmp_path / "table.csv")})
    other = {**scale, "mean": [3.0]}
    of_data.use_fitted_transform({"targets": ["length"], "scale": other})
    with pytest.raises(DataError, match=r"scale\.json: is not the scale in data\.json; restore good copies of both"):
        of_data.load_files(tmp_path / "fitted")
    wrong = ("{", "[]", "{}", '{"mean": [1], "deviation": [NaN]}', '{"mean": "1", "deviation": [1]}')
    for text in (*wrong, '{"mean": [1], "deviation": [0]}'):
        (tmp_path / "fitted" / "scale.json").write_text(text)
        with pytest.raises(DataError, match=r"scale\.json: cannot be read"):
            task.load_files(tmp_path / "fitted")


@pytest.mark.parametrize(
    ("factor", "reason"), [(1e200, r"contains '.*e\+200', above 1e\+100; divide"), (1e-200, "nothing to learn")]
)
@pytest.mark.filterwarnings("error")
def test_numbers_whose_squares_are_no_numbers(tmp_path: Path, factor: float, reason: str) -> None:
    path = write_table(tmp_path)
    first, *rows = path.read_text().splitlines()
    names, numbers = zip(*(row.split(",") for row in rows), strict=True)
    rows = [f"{name},{float(number) * factor:g}" for name, number in zip(names, numbers, strict=True)]
    path.write_text("\n".join([first, *rows]))
    with pytest.raises(DataError, match=reason):
        make(data={"source": str(path)}).load(model_data_config=host_config(16))


@pytest.mark.parametrize("name", ["mse", "l1", "huber"])
def test_losses(name: str) -> None:
    task = make(loss={"name": name})
    task.load(model_data_config=host_config(16))
    outputs, target = torch.randn(5, 2), 3 * torch.randn(5, 2)
    loss = task.loss((outputs, outputs), {"target": target})["loss"]
    error = (outputs - target).abs()
    huber = torch.where(error < 1, error**2 / 2, error - 0.5)
    expected = {"mse": error**2, "l1": error, "huber": huber}[name].mean()
    torch.testing.assert_close(loss, expected)


@pytest.mark.parametrize("numbers", [1, 3])
def test_metrics_are_means_over_the_numbers(numbers: int) -> None:
    random = np.random.default_rng(0)
    target = random.normal(size=(40, numbers)) * [1, 10, 100][:numbers]
    predicted = target + random.normal(size=target.shape)
    table = RecordTable(names=np.arange(40).astype(str), columns={"target": target, "predicted": predicted})
    values = make().measure(table, {}).values
    pairs = list(zip(target.T, predicted.T, strict=True))
    assert values["rmse"] == pytest.approx(np.mean([root_mean_squared_error(*pair) for pair in pairs]))
    assert values["mae"] == pytest.approx(np.mean([mean_absolute_error(*pair) for pair in pairs]))
    assert values["r2"] == pytest.approx(np.mean([r2_score(*pair) for pair in pairs]))
    assert values["spearman"] == pytest.approx(np.mean([spearmanr(*pair).statistic for pair in pairs]))


def test_sections() -> None:
    target = np.arange(20.0)[:, None]
    seeds = [{"target": target, "predicted": target + shift} for shift in (-1.0, 3.0)]
    errors, truth = make().sections(seeds, facts={"targets": ["age"]})
    assert errors.table is not None
    assert errors.table.rows[0][:4] == ["age", pytest.approx(target.std()), pytest.approx(2.0), pytest.approx(2.0)]
    assert truth.table is not None
    assert truth.table.rows[0] == ["age 0 to 3", 4, 1.5, 2.5, pytest.approx(np.sqrt(5))]
    assert [row[1] for row in truth.table.rows] == [4] * 5


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"augment": {"mixup": 0.2}}, "mixup and cutmix are for classes"),
        ({"loss": {"delta": 2.0}}, "applies to loss huber only"),
        ({"data": {"source": "bars", "classes": ["a", "b"]}}, "does not apply to numbers"),
        ({"data": {"source": "bars", "label_column": "lenght"}}, r"bars have no 'lenght' \(did you mean length\?\)"),
        ({"data": {"source": "digits"}}, "digits: no such file or folder.*columns of numbers"),
        ({"data": {"source": "."}}, "regression needs a .csv"),
    ],
)
def test_wrong_sections(sections: dict[str, Any], reason: str) -> None:
    with pytest.raises((ConfigError, DataError), match=reason):
        make(**sections).load(model_data_config=host_config(16))


def test_compare_eval_export_and_predict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = Tools(measure_costs=lambda *_, **__: {}, write_report=lambda result, folder: folder)
    monkeypatch.setattr(runner, "Tools", lambda: bare)
    common = ["--task", "regression", *HOST, "--epochs", "1", "--set", "train.batch_size=40"]
    assert (
        call("compare", *common, "--data", "bars", "--graft", "cb_s", "--seeds", "2", "--out", str(tmp_path / "s")) == 0
    )
    result = load_result(tmp_path / "s")
    assert (result.task, result.metric, result.higher_is_better) == ("regression", "rmse", False)
    assert [section.name for section in result.variants[1].sections] == ["numbers", "predicted"]
    difference = result.variants[1].difference
    assert difference is not None
    assert difference.bootstrap is not None
    assert result.variants[1].other_differences.keys() == {"mae", "r2", "spearman"}
    run, table = str(tmp_path / "s" / "runs" / "cb_s" / "seed0"), write_table(tmp_path, header="image,length,thickness")
    capsys.readouterr()
    assert call("eval", run, "--json") == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["rmse"] == pytest.approx(
        result.variants[1].runs[0].last["rmse"]
    )
    assert call("eval", run, "--data", str(table)) == 0
    assert call("eval", run, "--suite", "noise") == 2
    assert "task regression: does not support suites" in capsys.readouterr().err
    assert call("export", run, "--out", str(tmp_path / "x")) == 0
    assert call("export", run, "--out", str(tmp_path / "y"), "--to", "hf") == 2
    capsys.readouterr()
    by_run, by_export = (
        (call("predict", model, str(tmp_path / "3.png")), capsys.readouterr().out)
        for model in (run, str(tmp_path / "x"))
    )
    assert by_run == by_export
    row = next(csv.DictReader(by_run[1].splitlines()))
    assert list(row) == ["image", "length", "thickness", "error"]
    assert 2 < float(row["length"]) < 13
    assert call("predict", run, str(tmp_path / "3.png"), "--top", "2") == 2
    card = (tmp_path / "x" / "README.md").read_text()
    assert " of 2 numbers. " in card
    assert "to get the numbers" in card


def test_data_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, sheet = str(write_table(tmp_path)), tmp_path / "sheet.png"
    assert call("data", "check", table, "--task", "regression", "--contact-sheet", str(sheet)) == 0
    assert "numbers: length, for regression" in capsys.readouterr().out
    assert sheet.is_file()
    assert call("data", "check", table, "--task", "regression", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["targets"], told["ready"], told["parts"]["val"]["images"]) == (["length"], True, 6)
    lowest, mean, highest = told["parts"]["train"]["ranges"]["length"]
    assert 3 <= lowest < mean < highest <= 12


def test_chance_is_the_mean_of_the_training_images() -> None:
    target = np.random.default_rng(0).normal([3.0, 5.0], [1.0, 2.0], (50, 2))
    facts = {"targets": ["length", "thickness"], "scale": {"mean": [3.0, 5.0], "deviation": [1.0, 2.0]}}
    values = make().chance(RecordTable(names=np.arange(50).astype(str), columns={"target": target}), facts).values
    predicted = np.broadcast_to([3.0, 5.0], target.shape)
    assert values["rmse"] == pytest.approx(np.sqrt(((predicted - target) ** 2).mean(axis=0)).mean())
    assert values["r2"] == pytest.approx(r2_score(target, predicted))
    assert np.isnan(values["spearman"])
