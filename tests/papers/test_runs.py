"""Finished runs for a paper's table."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attngraft.errors import UsageError
from attngraft.evaluation.suites.result import GroupMetric, GroupResult, SuiteRun, save_suite_run
from attngraft.papers.compute import compute_table
from attngraft.papers.runs import find_runs
from attngraft.papers.schema import load_paper
from attngraft.training.recipe import recipe_from_dict, recipe_to_yaml


def a_run(
    folder: Path,
    *,
    graft: str | None,
    top1: list[float],
    finished: bool = True,
    teacher: str | None = None,
    host: dict[str, Any] | None = None,
) -> None:
    recipe = recipe_from_dict(
        {
            **({} if teacher is None else {"distill": {"teacher": {"name": teacher}}}),
            "host": host or {"name": "swin_tiny_patch4_window7_224", "args": {"drop_path_rate": 0.2}},
            "graft": graft,
            "task": {"name": "classification", "data": {"source": "imagenet100"}},
        }
    )
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(recipe_to_yaml(recipe))
    rows = [{"epoch": epoch, "seconds": 1.0, "val/top1": value} for epoch, value in enumerate(top1, start=1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if finished:
        (folder / "finished.json").write_text("{}")


@pytest.mark.slow
def test_a_studys_folder_fills_its_table(tmp_path: Path):
    a_run(tmp_path / "runs" / "none" / "seed0", graft=None, top1=[0.5, 0.87])
    a_run(tmp_path / "runs" / "vertical" / "seed0", graft="vertical", top1=[0.89])
    a_run(tmp_path / "runs" / "vertical" / "seed1", graft="vertical@all", top1=[0.90])
    a_run(tmp_path / "runs" / "both" / "seed0", graft="horizontal + vertical", top1=[0.9], finished=False)
    runs = find_runs(tmp_path)
    assert len(runs) == 3
    paper = load_paper("hv")
    rows = {row.label: row.cells["top1"] for row in compute_table(paper, paper.table("table3"), runs=runs).rows}
    assert rows["Swin-T"].ours == pytest.approx(87)
    assert (rows["Swin-T + Ver."].ours, rows["Swin-T + Ver."].runs) == (pytest.approx(89.5), 2)
    assert rows["Swin-T + Hor. + Ver."].verdict == "printed"


def test_runs_of_our_models_are_found_by_their_name_without_scheme(tmp_path: Path):
    a_run(
        tmp_path / "run", graft=None, top1=[0.9], host={"name": "attngraft:bixt_points_naive", "args": {"in_chans": 3}}
    )
    paper = load_paper("bixt")
    table = paper.table("1b")
    rows = tuple(
        replace(row, printed={"oa": row.printed["oa"]}) for row in table.rows if row.variant.startswith("BiXT")
    )
    result = compute_table(paper, replace(table, rows=rows), runs=find_runs(tmp_path))
    assert [row.cells["oa"].ours for row in result.rows] == [pytest.approx(90), None, None]


def test_a_single_runs_folder(tmp_path: Path):
    a_run(tmp_path / "run", graft="horizontal", top1=[0.1])
    (run,) = find_runs(tmp_path / "run")
    assert (run.host, run.spec, run.data) == ("swin_tiny_patch4_window7_224", "horizontal", "imagenet100")
    assert not run.distilled


def test_a_run_with_a_teacher(tmp_path: Path):
    a_run(tmp_path / "run", graft=None, top1=[0.1], teacher="vit_tiny_patch16_224")
    assert find_runs(tmp_path / "run")[0].distilled


def test_nothing_finished(tmp_path: Path):
    a_run(tmp_path / "run", graft=None, top1=[0.1], finished=False)
    with pytest.raises(UsageError, match="no finished run"):
        find_runs(tmp_path)


def test_a_run_of_the_plain_host_leaves_no_row_unread(tmp_path: Path):
    """ELSA's table of norms: a run of its host is compared with every row's graft."""
    paper = load_paper("elsa")
    table = paper.table("table2")
    identity = next(row.graft for row in table.rows if row.variant == "identity")
    a_run(tmp_path / "plain", graft=None, top1=[0.5])
    a_run(tmp_path / "identity", graft=identity, top1=[0.001])
    result = compute_table(paper, table, runs=find_runs(tmp_path))
    assert {row.label: row.cells["top1"].verdict for row in result.rows} == {
        "identity": "from runs",
        "filter norm": "printed",
        "softmax": "printed",
    }
    assert list(result.unmatched) == [str(tmp_path / "plain")]


def test_suites_fill_columns(tmp_path: Path) -> None:
    a_run(tmp_path / "run", graft="cb", top1=[0.5], host={"name": "vit_small_patch16_224"})
    metric = GroupMetric(mean=0.7, interval=None, values=[0.7])
    for suite, group, folder in (("occlusion", "center", "occlusion"), ("a", "a", "a--imagenet-a-1234")):
        groups = [
            GroupResult(name=group, label=group, noise_seeds=[], metrics={"top1": metric}, files=[]),
        ]
        result = SuiteRun(
            suite=suite,
            title=suite,
            run="run",
            weights="last",
            checkpoint="",
            data="",
            examples=1,
            metric="top1",
            higher_is_better=True,
            groups=groups,
        )
        save_suite_run(result, tmp_path / "run" / "evaluation" / "last" / folder)
    paper = load_paper("cb")
    rows = {row.label: row.cells for row in compute_table(paper, paper.table("table8"), runs=find_runs(tmp_path)).rows}
    assert [rows["ViT-S + CB"][name].ours for name in ("occ", "a")] == pytest.approx([70, 70])
    assert {name: cell.verdict for name, cell in rows["ViT-S"].items()} == dict.fromkeys(
        ("occ", "a", "fgsm"), "printed"
    )
    assert rows["ViT-S + CB"]["fgsm"].verdict == "printed"
