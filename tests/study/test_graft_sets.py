"""Studies of a set of grafts: expansion, resuming and refusals. The trainer is fake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attngraft.errors import ConfigError, UsageError
from attngraft.grafting import sets
from attngraft.study import StudyConfig, compare, prepare, read_study_file, report_only, runner, study_from_dict
from attngraft.study.graft_sets import with_expanded_sets

from .fakes import HOST, FakeTrainer, study, tools
from .test_cli import HOST as HOST_OPTIONS
from .test_cli import call

SCRATCH = ["cb", "cb_s", "vertical", "bisa@first:2"]
PRETRAINED = ["cb_s", "vertical(identity=true)", "bisa(identity=true)@first:2"]
SMALL = {"name": "mixer_s32_224", "args": {"img_size": 32}}


def specs(config: StudyConfig) -> list[str]:
    return [variant.spec for variant in config.variants]


def expanded(out: Path, *grafts: Any, **changes: Any) -> StudyConfig:
    return with_expanded_sets(study(out, grafts=list(grafts), **changes))


def test_a_set_becomes_one_variant_per_graft(tmp_path: Path) -> None:
    config = expanded(tmp_path, "horizontal", "shortlist", {"name": "mine", "graft": "cb_s@all"})
    assert specs(config) == ["none", "horizontal", "cb", "vertical", "bisa@first:2", "cb_s"]
    assert [variant.name for variant in config.variants] == ["baseline", *specs(config)[1:-1], "mine"]
    assert config.graft_sets == {"shortlist": SCRATCH}
    again = study_from_dict(config.to_dict())
    assert again.variants == config.variants
    assert with_expanded_sets(again).variants == config.variants
    both = specs(expanded(tmp_path, "shortlist", "all"))
    assert both[:5] == ["none", *SCRATCH]
    assert len(set(both)) == len(both)
    assert {"horizontal", "se", "bisa", "cb_gate"} <= set(both)


def test_a_pretrained_host_gets_forms_that_start_as_the_identity(tmp_path: Path) -> None:
    config = expanded(tmp_path, "shortlist", host={**HOST, "pretrained": True})
    assert specs(config) == ["none", *PRETRAINED]
    assert specs(expanded(tmp_path, "shortlist", recipe="finetune")) == ["none", *PRETRAINED]
    trained = expanded(tmp_path, "shortlist", host={**HOST, "weights": "trained.safetensors"})
    assert specs(trained) == ["none", *PRETRAINED]


def test_a_set_on_another_host_or_with_another_recipe(tmp_path: Path) -> None:
    change = {"schedule.warmup_epochs": 1}
    config = expanded(tmp_path, {"graft": "shortlist", "host": SMALL}, {"graft": "shortlist", "set": change})
    assert [(variant.name, variant.overrides) for variant in config.variants[1:]] == [
        ("mixer_s32_224 + cb", ()),
        ("mixer_s32_224 + cb_s", ()),
        *((f"{spec} with schedule.warmup_epochs=1", ("schedule.warmup_epochs=1",)) for spec in SCRATCH),
    ]


def test_resuming_keeps_the_grafts_of_a_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = study(tmp_path, grafts=["shortlist"])
    trainer = FakeTrainer(stops=("cb_s", 0))
    with pytest.raises(KeyboardInterrupt):
        compare(config, tools=tools(trainer))
    kept = read_study_file(tmp_path / "study.yaml")
    assert [entry["spec"] for entry in kept["grafts"]] == ["none", *SCRATCH]
    assert kept["graft_sets"] == {"shortlist": SCRATCH}
    monkeypatch.setattr(sets, "SHORTLIST", ("horizontal",))
    result = compare(config, tools=tools(FakeTrainer()))
    assert [variant.spec for variant in result.variants] == ["none", *SCRATCH]
    assert read_study_file(tmp_path / "study.yaml") == kept
    assert len(report_only(config, tools=tools(trainer)).variants) == 5
    assert specs(expanded(tmp_path / "new", "shortlist")) == ["none", "horizontal"]
    (tmp_path / "started").mkdir()  # before its first run, a study has nothing to keep
    (tmp_path / "study.yaml").rename(tmp_path / "started" / "study.yaml")
    assert specs(expanded(tmp_path / "started", "shortlist")) == ["none", "horizontal"]


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "study"
    unsupported = study(out, grafts=["cb", "shortlist"], host={"name": "resnet18"})
    for refuse in (compare, prepare):
        with pytest.raises(UsageError, match="--graft shortlist: ResNet is not a supported host"):
            refuse(unsupported, tools=tools(FakeTrainer()))
    with pytest.raises(UsageError, match="contains no study of shortlist; omit --graft"):
        report_only(study(out, grafts=["shortlist"]), tools=tools(FakeTrainer()))
    with pytest.raises(ConfigError, match=r"grafts\[0\].name: shortlist is a set of grafts"):
        study(out, grafts=[{"name": "mine", "graft": "shortlist"}])
    with pytest.raises(UsageError, match="'all' is given twice"):
        study(out, grafts=["all", "all"])
    with pytest.raises(UsageError, match="two variants are called 'cb_s'"):
        expanded(out, "shortlist", {"name": "cb_s", "graft": "horizontal"})
    assert not out.exists()


def test_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "Tools", lambda: tools(FakeTrainer()))
    options = ["compare", *HOST_OPTIONS, "--data", "digits", "--seeds", "1", "--epochs", "2", "--out", str(tmp_path)]
    assert call(*options, "--graft", "shortlist", "--graft", "horizontal", "--dry-run", "--json") == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [run["spec"] for run in runs] == ["none", *SCRATCH, "horizontal"]
    mixer = ["compare", "--host", "resnet18", "--graft", "all", "--data", "digits", "--out", str(tmp_path / "new")]
    assert call(*mixer) == 2
    assert "not a supported host" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    assert call("plan", *HOST_OPTIONS[1:], "shortlist", "--pretrained", "--json") == 0
    assert [report["spec"] for report in json.loads(capsys.readouterr().out)] == PRETRAINED
    assert call("plan", *HOST_OPTIONS[1:], "shortlist", "--measure") == 0
    shown = capsys.readouterr().out
    assert "change of the outputs" in shown
    assert "bisa@first:2" in shown
