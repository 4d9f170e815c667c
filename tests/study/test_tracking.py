"""The summary of a study in experiment trackers."""

from __future__ import annotations

from pathlib import Path

import pytest

from attngraft.study import compare
from attngraft.training.run_folder import RunFolder
from tests.study.fakes import FakeTrainer, study, tools
from tests.training.trackers import Fake, install


def test_a_study_sends_its_numbers_as_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    out = tmp_path / "flowers"
    trainer = FakeTrainer({"cb_s": 0.1})
    plain = compare(study(out), tools=tools(trainer))
    assert not (out / "trackers.json").exists()
    tracked = study(out, set=['train.track=["wandb"]'])
    result = compare(tracked, tools=tools(trainer))
    assert result.variants == plain.variants
    (one,) = Fake.made
    assert one.config["name"] == "flowers/summary"
    assert one.config["variants.cb_s"] == "cb_s"
    ((step, values),) = one.rows
    assert step is None
    assert result.variants[1].difference is not None
    assert values["cb_s/verdict"] == {"better": 1, "inside the noise": 0}[result.variants[1].difference.verdict]
    assert values["cb_s/last_top1_mean"] == pytest.approx(result.variants[1].last["top1"].mean)
    assert all(isinstance(value, float) for value in values.values())
    compare(tracked, tools=tools(trainer))
    assert Fake.made[1].rows == [], "nothing is new"
    compare(study(out, set=['train.track=["wandb"]'], seeds=3), tools=tools(trainer))
    assert len(Fake.made[2].rows) == 1
    assert Fake.made[2].config is None, "the run is continued"


def test_runs_are_named_after_their_study(tmp_path: Path) -> None:
    from attngraft.training.tracking import _label

    assert _label(RunFolder(tmp_path / "runs" / "cb_s" / "seed0")) == "seed0"
    (tmp_path / "study.yaml").write_text("")
    assert _label(RunFolder(tmp_path / "runs" / "cb_s" / "seed0")) == f"{tmp_path.name}/cb_s/seed0"
