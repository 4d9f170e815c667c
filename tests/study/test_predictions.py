"""What tasks say of a variant, from the predictions that its runs saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attngraft.errors import TrainingError
from attngraft.results.sections import Section
from attngraft.study import compare, load_result
from attngraft.study.predictions import variant_sections
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


def test_a_mistake_in_a_task_is_not_blamed_on_the_file(records: list[RunRecord]) -> None:
    class Mistaken(_Said):
        def sections(self, predictions: Any, *, facts: Any) -> list[Section]:
            raise ValueError("mine")

    with pytest.raises(ValueError, match=r"^mine$"):
        variant_sections(Mistaken.from_config({"data": {"source": "digits"}}, seed=0), records)
