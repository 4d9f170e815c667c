"""A study's result in notebooks and as a pandas DataFrame."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import attngraft
from attngraft.errors import ConfigError, UsageError
from attngraft.results import study as module
from attngraft.results.storage import csv_text, result_to_dict, save_result
from tests.report import studies


def test_a_result_as_a_frame(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas")
    result = studies.usual()
    save_result(result, tmp_path)
    study = attngraft.read_study(tmp_path)
    assert (study, study.folder) == (result, tmp_path)
    frame = study.to_frame()
    (tmp_path / "own.csv").write_text(csv_text(result), encoding="utf-8")
    pandas.testing.assert_frame_equal(
        frame, pandas.read_csv(tmp_path / "own.csv", keep_default_na=True), check_dtype=False
    )
    runs = study.to_frame("run")
    assert len(runs) == sum(len(variant.runs) for variant in result.variants)
    means = runs.groupby("variant")["last_top1"].mean()
    for variant in result.variants:
        assert means[variant.name] == pytest.approx(variant.last["top1"].mean)
    with pytest.raises(UsageError, match="by='seed' must be"):
        study.to_frame("seed")  # type: ignore[arg-type]


def test_a_frame_needs_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="run pip install pandas"):
        studies.usual().to_frame()


def test_the_report_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Path] = []
    monkeypatch.setattr(module, "show_page", shown.append)
    with pytest.raises(UsageError, match=r"attngraft\.read_study"):
        studies.usual().show()
    study = replace(studies.usual(), folder=tmp_path)
    with pytest.raises(UsageError, match=rf"run attngraft compare --report-only --out {tmp_path}"):
        study.show()
    (tmp_path / "report.html").touch()
    study.show()
    assert shown == [tmp_path / "report.html"]


@pytest.mark.parametrize("make", studies.ALL.values(), ids=list(studies.ALL))
def test_every_result_has_a_table(make) -> None:
    result = make()
    table = result._repr_html_()
    assert table.count("<tr>") == 1 + len(result.variants)
    assert "<script" not in table


def test_no_study(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a valid study result"):
        attngraft.read_study(tmp_path)


def test_seeds_that_are_no_numbers(tmp_path: Path) -> None:
    content = result_to_dict(studies.usual())
    reached = {
        "target": 0.5,
        "of_mean_curve": 3,
        "baseline_epoch": 3,
        "ratio": 1.0,
        "speed_up": None,
        "by_seed": {"x": 3},
    }
    content["variants"][1]["epochs_to_baseline"] = reached
    (tmp_path / "results.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=r"results\.json.*by_seed: expected seeds as keys"):
        attngraft.read_study(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"interval": {"point": 0.0, "low": 9.0, "high": -9.0}}, r"interval\.low: must not exceed high, -9; got 9"),
        ({"p_value": -1.0}, r"p_value: must be from 0 to 1; got -1"),
        ({"p_holm": 1.5}, r"p_holm: must be from 0 to 1; got 1\.5"),
        ({"examples": -3}, r"examples: must not be negative; got -3"),
    ],
)
def test_numbers_that_no_comparison_gives(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    content = result_to_dict(studies.usual())
    content["variants"][1]["difference"] |= changes
    (tmp_path / "results.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=rf"results\.json\.variants\[1\]\.difference\.{message}"):
        attngraft.read_study(tmp_path)
