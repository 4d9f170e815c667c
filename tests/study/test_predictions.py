"""What tasks say of a variant, from the predictions that its runs saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attngraft.errors import DataError, TrainingError
from attngraft.results.measured import ClosedForm, MeanScore
from attngraft.results.sections import Column, Section, Table
from attngraft.results.study import Chance
from attngraft.study import compare, load_result
from attngraft.study.predictions import (
    RunStatistics,
    aligned,
    chance_of,
    part_differences,
    read_statistics,
    read_statistics_of,
    relative_change,
    variant_sections,
)
from attngraft.tasks.classification import Classification
from attngraft.tasks.task import Predictions
from attngraft.training.run_folder import RunFolder, RunRecord, read_run

from .fakes import FakeTrainer, study, tools


class _Said(Classification):
    """Keeps what it was asked with."""

    def sections(self, predictions: Sequence[Mapping[str, np.ndarray]], *, facts: Mapping[str, Any]) -> list[Section]:
        self.asked = [dict(each) for each in predictions], facts
        return [Section(name="said", title="Said", numbers={"seeds": float(len(predictions))})]


def _task() -> _Said:
    return _Said.from_config({"data": {"source": "digits"}}, seed=0)  # type: ignore[return-value]


@pytest.fixture
def records(tmp_path: Path) -> list[RunRecord]:
    """Two finished runs, with an array of the task's own in each."""
    compare(study(tmp_path, grafts=["cb_s"]), tools=tools(FakeTrainer()))
    found = []
    for seed in range(2):
        run = RunFolder(tmp_path / "runs" / "cb_s" / f"seed{seed}")
        arrays = {"target": np.arange(3) + seed}
        run.write_predictions(Predictions(names=["a", "b", "c"], score=np.ones(3), binary=True, arrays=arrays))
        found.append(read_run(run.path))
    return found


def test_the_task_is_asked_with_its_own_arrays_of_all_seeds(records: list[RunRecord]) -> None:
    task = _task()
    assert [section.numbers for section in variant_sections(task, records)] == [{"seeds": 2.0}]
    predictions, facts = task.asked
    assert [list(each) for each in predictions] == [["target"], ["target"]]
    assert predictions[1]["target"].tolist() == [1, 2, 3]
    assert facts == records[0].facts


def test_without_runs_or_arrays_nothing_is_said(tmp_path: Path, records: list[RunRecord]) -> None:
    assert variant_sections(_task(), []) == []
    run = RunFolder(records[1].folder)
    run.write_predictions(Predictions(names=["a"], score=np.ones(1), binary=True))
    assert variant_sections(_task(), [records[0], read_run(run.path)]) == []
    assert load_result(tmp_path).variants[0].sections == []  # the fake trainer keeps none


def test_damaged_predictions_are_named(records: list[RunRecord]) -> None:
    path = records[1].predictions
    assert path is not None
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TrainingError, match=r"seed1/predictions\.npz: .*delete this run's folder"):
        variant_sections(_task(), records)
    place = whole.index(b"target.npy") + 40
    path.write_bytes(whole[:place] + b"\xff\xff\xff\xff" + whole[place + 4 :])
    with pytest.raises(TrainingError, match=r"seed1/predictions\.npz"):
        variant_sections(_task(), records)


def test_columns_that_no_evaluation_gives_are_named(records: list[RunRecord]) -> None:
    run = RunFolder(records[0].folder)
    for arrays, message in (
        ({"confidence": np.array([0.5, 5, 1])}, "confidence contains 5, but must be from 0 to 1"),
        ({"confidence": np.array(["a", "b", "c"])}, "ufunc"),
    ):
        run.write_predictions(Predictions(names=["a", "b", "c"], arrays={"target": np.arange(3), **arrays}))
        with pytest.raises(TrainingError, match=rf"seed0/predictions\.npz: .*{message}.*; restore a good copy"):
            read_statistics(read_run(run.path), _task())


def test_runs_with_other_labels_of_the_same_examples_are_named() -> None:
    def run(folder: str, names: Sequence[str], target: Sequence[int]) -> RunStatistics:
        return RunStatistics(
            folder=Path(folder), names=np.array(list(names)), truth={"target": np.array(target)}, statistics={}
        )

    first = run("first", "abc", [0, 1, 2])
    _, moved, bare = aligned([first, run("moved", "cab", [2, 0, 1]), run("bare", "abc", [0, 1, 2])])
    assert moved.names.tolist() == bare.names.tolist() == list("abc")
    assert np.asarray(moved.truth["target"]).tolist() == [0, 1, 2]
    for other in (run("other", "abc", [0, 2, 1]), run("other", "cab", [0, 1, 2])):
        with pytest.raises(DataError, match="other and first have different target"):
            aligned([first, other])


def test_runs_with_equal_examples_share_one_copy(records: list[RunRecord], monkeypatch: pytest.MonkeyPatch) -> None:
    def read(record: RunRecord, task: Any) -> RunStatistics:
        truth = {"target": np.full(2, record.folder.name == "seed1", dtype=int)}
        return RunStatistics(folder=record.folder, names=np.array(["a", "b"]), truth=truth, statistics={})

    monkeypatch.setattr("attngraft.study.predictions.read_statistics", read)
    by_seed = dict(enumerate([records[0], records[0], records[1]]))
    same, again, other = read_statistics_of({"cb_s": by_seed}, _task())["cb_s"].values()
    assert again.names is same.names and again.truth is same.truth
    assert np.asarray(other.truth["target"]).tolist() == [1, 1]


def test_a_mistake_in_a_task_is_not_blamed_on_the_file(records: list[RunRecord]) -> None:
    class Mistaken(_Said):
        def sections(self, predictions: Any, *, facts: Any) -> list[Section]:
            raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine$"):
        variant_sections(Mistaken.from_config({"data": {"source": "digits"}}, seed=0), records)


def test_the_change_of_scores_against_brute_force() -> None:
    generator = np.random.default_rng(0)
    scores = generator.random((2, 3, 20)).round(1)
    scores[0, 0] = scores[0, 0].round()

    def runs(each: np.ndarray) -> dict[int, RunStatistics]:
        return {
            seed: RunStatistics(folder=Path(), names=np.arange(20), statistics={"loss": MeanScore(row)})
            for seed, row in enumerate(each)
        }

    found = relative_change(runs(scores[0]), runs(scores[1]), metric="top1")
    pairs = np.abs(scores[0][:, :, None] - scores[0][:, None, :]).mean()
    assert found == pytest.approx(np.abs(scores[1] - scores[0]).mean() / pairs)
    assert relative_change(runs(scores[0]), runs(scores[0]), metric="loss") == 0
    assert relative_change(runs(np.ones((3, 20))), runs(scores[0]), metric="loss") is None
    assert relative_change({}, {}, metric="loss") is None
    ranked = {0: RunStatistics(folder=Path(), names=np.arange(20), statistics={})}
    assert relative_change(ranked, ranked, metric="loss") is None


def test_chance_without_columns_or_with_undefined_metrics(records: list[RunRecord]) -> None:
    class Guess(_Said):
        def chance(self, table: Any, facts: Mapping[str, Any]) -> Chance:
            return Chance(description="a coin", values={"top1": 0.5, "spearman": float("nan")})

    guess = Guess.from_config({"data": {"source": "digits"}}, seed=0)
    assert chance_of(records[0], guess) == Chance(description="a coin", values={"top1": 0.5})
    bare = Predictions(names=["a", "b"], score=np.ones(2), binary=True)
    RunFolder(records[0].folder).write_predictions(bare)
    assert chance_of(records[0], guess) is None


def test_differences_in_the_parts_that_a_column_names() -> None:
    """One example per class and seed is wrong for the baseline, none for the variant; the score has no parts."""

    def runs(right: np.ndarray) -> dict[int, RunStatistics]:
        shares = ClosedForm(
            np.concatenate([right, np.full((4, 2), 10.0)], axis=1), lambda sums: sums[:, :2] / sums[:, 2:]
        )
        statistics = {"recall": shares, "score": MeanScore(right[:, 0])}
        return dict.fromkeys((0, 1), RunStatistics(folder=Path(), names=np.arange(4), statistics=statistics))

    def section(*metrics: str) -> Section:
        columns = [Column(name="class", kind="text"), *(Column(name=name, parts_of=name) for name in metrics)]
        return Section(name="classes", title="Classes", table=Table(columns=columns, rows=[]))

    before, after = runs(np.array([[10.0, 10], [10, 0], [0, 10], [10, 10]])), runs(np.full((4, 2), 10.0))
    found = part_differences([section("recall", "score", "missing", ""), section("recall")], before, after)
    assert list(found) == ["recall"]
    assert [each and each.point for each in found["recall"]] == [0.25, 0.25]
    assert part_differences([Section(name="a", title="A"), section("")], before, after) == {}
