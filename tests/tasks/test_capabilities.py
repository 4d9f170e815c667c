"""What tasks say that they can do, and that it is asked before anything is trained or written."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.utils import DistributedType
from torch import nn

from attngraft.cli import main
from attngraft.errors import ConfigError
from attngraft.evaluation.suites.catalog import suites
from attngraft.study import compare, study_from_dict
from attngraft.tasks.capabilities import CAPABILITIES, require
from attngraft.tasks.classification import Classification
from attngraft.tasks.regression import Regression
from attngraft.tasks.task import load_task, unwrapped
from attngraft.tasks.text import TextClassification
from attngraft.training.inputs import in_memory_format
from attngraft.training.loop import train
from attngraft.training.recipe import recipe_from_dict
from attngraft.training.run_folder import RunFolder
from attngraft.training.setup import prepare_run
from tests.contract.task_contract import tiny_vit
from tests.tasks.toy_dense import ToyDense


@pytest.mark.parametrize(
    "name", ["classification", "multilabel", "regression", "segmentation", "text_classification", "token_labeling"]
)
def test_built_in_tasks_declare_known_names(name: str) -> None:
    declared = load_task(name).capabilities
    assert declared is not None
    assert set(declared) <= CAPABILITIES.keys()


def test_a_task_that_declares_nothing_is_not_checked() -> None:
    require(ToyDense, *CAPABILITIES)
    with pytest.raises(
        ConfigError, match=r"task regression: does not support suites that change images; remove --suite"
    ):
        require(Regression, "halving", "suites")


def test_what_suites_need() -> None:
    found = {name: suites()[name].needs for name in ("clean", "fgsm", "pgd", "calibration", "v2")}
    assert found == {
        "clean": ("suites",),
        "fgsm": ("suites", "attacks"),
        "pgd": ("suites", "attacks"),
        "calibration": ("suites", "calibration"),
        "v2": ("suites", "labels"),
    }


HERE = {"host": tiny_vit(), "task": {"name": "regression", "data": {"source": "bars"}}}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"suites": ["clean"]}, "suites that change images; remove --suite"),
        ({"recipe_distill": True}, "training with a teacher; remove the section distill"),
    ],
)
def test_a_study_is_refused_before_its_folder_exists(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    sets = ["distill.teacher.name=vit_tiny_patch16_224"] if changes.pop("recipe_distill", False) else []
    plain = {"recipe": "regression", "host": tiny_vit(), "grafts": ["cb_s"], "data": "bars", "seeds": 1}
    with pytest.raises(ConfigError, match=f"task regression: does not support {reason}"):
        compare(study_from_dict({**plain, "set": sets, "out": str(tmp_path / "study"), **changes}))
    assert not (tmp_path / "study").exists()


def test_halving_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Regression, "capabilities", Regression.capabilities - {"halving"})
    plain = {"recipe": "regression", "host": tiny_vit(), "grafts": ["cb_s"], "data": "bars", "seeds": 1}
    with pytest.raises(ConfigError, match="does not support --halving; remove it"):
        compare(study_from_dict({**plain, "halving": 2, "epochs": 4, "out": str(tmp_path / "study")}))
    assert not (tmp_path / "study").exists()


def test_commands_on_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    train(recipe_from_dict({**HERE, "schedule": {"epochs": 1, "warmup_epochs": 0}}), run)
    monkeypatch.setattr(Regression, "capabilities", frozenset({"halving"}))
    before = sorted(tmp_path.rglob("*"))
    for arguments in (
        ["eval", str(run), "--suite", "clean"],
        ["export", str(run), "--out", str(tmp_path / "out")],
        ["predict", str(run), "x.png", "--out", str(tmp_path / "out.csv")],
        ["analyze", "entropy", "--run", str(run), "--out", str(tmp_path / "out")],
        ["explore", "--run", str(run), "--image", "x.png", "--out", str(tmp_path / "out.html")],
        ["data", "check", "bars", "--task", "regression"],
    ):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 2
        assert "task regression: does not support" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


def test_generation_is_refused_under_fsdp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Regression, "capabilities", Regression.capabilities | {"generation"})
    sharded: Any = SimpleNamespace(
        distributed_type=DistributedType.FSDP, num_processes=1, process_index=0, device=torch.device("cpu")
    )
    with pytest.raises(ConfigError, match=r"task regression: calls this model without FSDP's wrapper"):
        prepare_run(recipe_from_dict(HERE), RunFolder(tmp_path), sharded)
    assert not list(tmp_path.iterdir())


def test_unwrapped() -> None:
    model = nn.Linear(2, 2)
    assert unwrapped(model) is model
    assert unwrapped(in_memory_format(model, channels_last=True)) is model
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(model)
        assert unwrapped(in_memory_format(wrapped, channels_last=True)) is model
    finally:
        torch.distributed.destroy_process_group()


def test_facts_of_two_runs() -> None:
    def compatible(task: Any, a: dict[str, Any], b: dict[str, Any]) -> bool:
        return bool(task.compatible(task.__new__(task), a, b))

    owls = {"classes": ["cat", "owl"]}
    assert compatible(Classification, owls, owls)
    assert compatible(Classification, owls, {"classes": ["0", "1"]})
    assert compatible(Classification, owls, {})
    assert not compatible(Classification, owls, {"classes": ["owl", "cat"]})
    assert not compatible(Regression, {"targets": ["age"]}, {"targets": ["height"]})
    words = {**owls, "input": {"tokenizer": "1f"}}
    assert compatible(TextClassification, words, owls)
    assert not compatible(TextClassification, words, {**owls, "input": {"tokenizer": "2a"}})
