"""Results of a suite for one run: table, files."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from rich.console import Console

from attngraft.evaluation.suites.catalog import parse_suites
from attngraft.evaluation.suites.result import GroupResult, SuiteRun, find_suite_run, group_metric, save_suite_run
from attngraft.report.suites import suite_heading, suite_table
from attngraft.tasks.classification import Classification


def found(metric: str = "top1", **more: object) -> SuiteRun:
    groups = [
        GroupResult(
            name="a",
            label="[red]noise",
            noise_seeds=[0, 1],
            metrics={metric: group_metric([0.5, 0.52]), "loss": group_metric([1.25, 1.3])},
            files=["last/x/a.parquet"],
        ),
        GroupResult(name="b", label="salient", noise_seeds=[], metrics={}, files=[], reason="no maps"),
    ]
    return SuiteRun(
        suite="noise",
        title="Noise",
        run="runs/x",
        weights="last",
        checkpoint="0" * 64,
        data="the run's own validation part",
        examples=12,
        metric=metric,
        higher_is_better=True,
        groups=groups,
    )


def shown(result: SuiteRun) -> str:
    console = Console(width=100, record=True)
    console.print(suite_table(result, Classification.metrics))
    return console.export_text()


def test_percent_intervals_and_what_is_missing() -> None:
    text = shown(found())
    assert "51.00" in text and "38.29 to 63.71" in text and "1.275" in text
    assert "[red]noise" in text
    assert "n/a" in text
    assert "12 examples of the run's own validation part, last weights" in suite_heading(found())
    assert "ReaL %" in shown(found("real"))


def test_results_are_read_back(tmp_path: Path) -> None:
    (choice,) = parse_suites(["noise"])
    assert find_suite_run(tmp_path, choice) is None
    save_suite_run(found(), tmp_path / "noise")
    assert find_suite_run(tmp_path, choice) == found()
    rows = (tmp_path / "noise" / "results.csv").read_text().splitlines()
    assert rows[1].startswith("noise,a,[red]noise,top1,0.51,0.38")
    assert rows[-1] == "noise,b,salient,,,,,0,12,no maps"


def test_the_newest_whole_result_is_read(tmp_path: Path) -> None:
    (choice,) = parse_suites(["clean=pictures-limit-9"])
    for age, (folder, examples) in enumerate({"a": 30, "b": 20, "c": 10, "d-limit5": 5}.items()):
        path = tmp_path / f"clean--{folder}"
        save_suite_run(dataclasses.replace(found(), data=choice.data, examples=examples), path)
        os.utime(path / "results.json", (1000 - abs(age - 1), 1000 - abs(age - 1)))
    os.utime(tmp_path / "clean--d-limit5" / "results.json", (2000, 2000))
    newest = find_suite_run(tmp_path, choice)
    assert newest is not None and newest.examples == 20


def test_what_a_folder_of_images_is_called_does_not_matter(tmp_path: Path) -> None:
    (choice,) = parse_suites(["clean=pictures-limit-9"])
    save_suite_run(dataclasses.replace(found(), data=choice.data), tmp_path / "clean--pictures-limit-9-0123abcd")
    assert find_suite_run(tmp_path, choice) is not None
