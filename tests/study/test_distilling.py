"""A study whose runs learn from a teacher: one for all variants, named in the results and the report."""

from __future__ import annotations

from pathlib import Path

import pytest

from attngraft.errors import AttngraftError
from attngraft.report.page import report_html
from attngraft.study import Tools, compare
from attngraft.study.checks import check_variants
from attngraft.study.plan import resolve_runs
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from attngraft.training.run_folder import read_run
from tests.study.fakes import study
from tests.training.test_teacher import VIT, digits


@pytest.mark.slow
def test_all_variants_learn_from_one_teacher_and_the_report_names_it(tmp_path: Path) -> None:
    place = tmp_path / "<teacher>"
    train(digits(task={"augment": {"padding": 0}}, schedule={"epochs": 1}), place, progress=Silent())
    config = study(
        tmp_path / "study",
        host={"name": "vit_tiny_patch16_224", "args": VIT},
        grafts=["cb_s"],
        set=["train.batch_size=256", "train.threads=1", f"distill.teacher.weights={place}"],
        seeds=1,
        epochs=1,
    )
    result = compare(config, costs=False, tools=Tools(write_report=lambda result, folder: folder))
    folders = [tmp_path / "study" / run.folder for variant in result.variants for run in variant.runs]
    records = [read_run(folder) for folder in folders]
    assert len({record.teacher["sha256"] for record in records}) == 1
    assert len(records) == 2
    top1 = records[0].teacher["metrics"]["val/top1"]
    best = place / "checkpoints" / "best.safetensors"
    note = (
        "The runs learn from a teacher in addition to the labels: vit_tiny_patch16_224 "
        f"(weights of {best} (epoch 1); val/top1 {top1:.4g})."
    )
    assert note in result.notes
    assert result.recipe["distill"]["teacher"]["weights"] == str(place)
    page = report_html(result)
    assert "The runs learn from a teacher" in page
    assert "<teacher>" not in page


def test_a_teacher_that_is_not_there_is_found_out_before_anything_trains(tmp_path: Path) -> None:
    with pytest.raises(AttngraftError, match=r"distill\.teacher\.weights: .*gone is not the folder of a run or"):
        check_variants(resolve_runs(study(tmp_path / "study", set=[f"distill.teacher.weights={tmp_path / 'gone'}"])))
