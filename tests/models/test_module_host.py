"""`module:` hosts: functions of the user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch

import attngraft
from attngraft.cli import main
from attngraft.errors import AttngraftError, ConfigError, HostError, UsageError
from attngraft.export.run import export_run
from attngraft.hosts import model_parts
from attngraft.models.create import create_host
from attngraft.models.host_input import host_input
from attngraft.models.trust import trusting
from attngraft.study import runner
from attngraft.study.config import study_from_dict
from attngraft.training.evaluate import evaluate_run

NETS = "module:tests.models.own_nets"


@pytest.fixture
def trusted() -> Any:
    with trusting(every=True):
        yield


def test_input_and_head_follow_from_its_attributes(trusted: None) -> None:
    found = host_input(f"{NETS}:make", {"num_classes": 5, "width": 6})
    assert (found["input_size"], found["mean"], found["std"]) == ((1, 8, 8), (0.5,), (0.25,))
    model: Any = create_host(f"{NETS}:make", num_classes=5, width=6)
    assert model.fc.weight.shape == (5, 6) and model.num_classes == 5 and model_parts(model).head == ("fc",)
    shown = host_input(f"{NETS}:blind", {"pretrained_cfg_overlay": {"input_size": (3, 16, 16)}})
    assert shown["input_size"] == (3, 16, 16)


def test_pretrained_is_the_factorys_argument(trusted: None) -> None:
    for pretrained in (True, False):
        model: Any = create_host(f"{NETS}:loading", pretrained=pretrained)
        assert model.fc.bias[0] == float(pretrained)
    with pytest.raises(ConfigError, match="no argument `pretrained`.*--weights FILE"):
        create_host(f"{NETS}:make", pretrained=True)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("fixed", {"num_classes": 10}, "returns logits for 3 classes, but the data have 10"),
        ("nothing", {}, "returned an object of type dict; it must return a torch.nn.Module"),
        ("number", {}, "is of type int; name a function"),
        ("mak", {}, "has no 'mak' (did you mean make"),
        ("make", {"depth": 2}, "takes no argument 'depth'; its arguments: num_classes, width"),
        ("make", {"drop_path_rate": 0.1}, "train.drop_path"),
        ("failing", {}, "failed: LookupError: no such checkpoint; run attngraft -v for the traceback"),
    ],
)
def test_what_does_not_fit(trusted: None, name: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(AttngraftError) as error:
        create_host(f"{NETS}:{name}", **arguments)
    assert message in str(error.value)
    assert isinstance(error.value, HostError if name == "failing" else UsageError)


def test_what_cannot_be_imported_or_read(trusted: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken_nets.py").write_text("1 / 0")
    with pytest.raises(UsageError, match="No module named 'no_nets'; run the command in the folder"):
        create_host("module:no_nets:make")
    with pytest.raises(UsageError, match="importing broken_nets failed: ZeroDivisionError"):
        create_host("module:broken_nets:make")
    with pytest.raises(UsageError, match=r"input is unknown; set model.attngraft_input"):
        host_input(f"{NETS}:blind", {})


def test_it_is_imported_only_if_typed_or_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From training to a folder of class names and back, with a module in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    source = "open('imported', 'a').close()\nfrom tests.models.own_nets import make\n"
    (tmp_path / "own_nets_of_mine.py").write_text(source)
    host, marker = "module:own_nets_of_mine:make", tmp_path / "imported"
    small = ["--data", "digits", "--epochs", "1", "--set", "train.threads=1", "--set", "train.drop_path=null"]
    assert call("train", "--recipe", "digits", *small, "--host", host, "--train", "head", "--out", "run") == 0
    assert marker.exists()

    forget(marker, monkeypatch)
    assert call("export", "run", "--out", "exported") == 2
    assert "importing it runs its code; if you trust that code, add --trust-code" in capsys.readouterr().err
    assert not (tmp_path / "exported").exists()
    for refused in (["eval", "run"], ["train", "--recipe", "run/recipe.yaml", "--out", "again"]):
        assert call(*refused) == 2
    with pytest.raises(UsageError, match="trust_code=True"):
        evaluate_run("run")
    assert not marker.exists()

    assert call("eval", "run", "--trust-code", "--json") == 0
    assert call("export", "run", "--out", "exported", "--trust-code") == 0
    forget(marker, monkeypatch)
    with pytest.raises(UsageError, match="--trust-code"):
        attngraft.load("exported")
    image = ["--image", "a.png"]
    for refused in (
        ["predict", "exported", "a.png"],
        ["predict", "run", "a.png"],
        ["eval", "exported", "--data", "digits"],
        ["eval", "run", "--suite", "clean"],
        ["explore", "--model", "exported", *image],
        ["analyze", "entropy", "--model", "run", *image],
        ["train", *small, "--recipe", "digits", "--set", "distill.teacher.weights=run", "--out", "taught"],
    ):
        capsys.readouterr()
        assert call(*refused) == 2, refused
        assert capsys.readouterr().err.rstrip().endswith("add --trust-code (in Python: trust_code=True)")
    assert not marker.exists()
    assert attngraft.load("exported", trust_code=True)(torch.zeros(2, 1, 8, 8)).shape == (2, 10)
    with pytest.raises(AttngraftError, match="is not a timm model"):
        export_run("run", "for-timm", to=["hf"], trust_code=True)


def test_hosts_without_an_adapter_are_compared_but_not_grafted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    study = ["compare", "--host", f"{NETS}:make", "--data", "digits", "--recipe", "digits", "--epochs", "1"]
    study += [
        "--seeds",
        "1",
        "--set",
        "train.threads=1",
        "--set",
        "train.drop_path=null",
        "--set",
        "train.batch_size=700",
    ]
    assert call(*study, "--graft", "cb_s", "--out", "refused") == 2
    assert "the variant cb_s does not fit the host: Net is not a supported host" in capsys.readouterr().err
    config = study_from_dict(
        {
            "host": f"{NETS}:make",
            "grafts": [{"host": {"name": f"{NETS}:make", "args": {"width": 2}}}],
            "data": "digits",
            "recipe": "digits",
            "epochs": 1,
            "seeds": 1,
            "set": ["train.threads=1", "train.drop_path=null", "train.batch_size=700"],
            "out": "study",
        }
    )
    result = runner.compare(config, costs=False, tools=runner.Tools(write_report=lambda *_: Path()))
    assert [variant.name for variant in result.variants] == ["baseline", f"{NETS}:make"]
    capsys.readouterr()
    assert call("compare", "--study", "study/study.yaml") == 2
    assert "add --trust-code" in capsys.readouterr().err
    monkeypatch.setattr("attngraft.models.module_host.start", lambda *_, **__: pytest.fail("imported"))
    assert runner.report_only(config, tools=runner.Tools(write_report=lambda *_: Path())).variants
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    text = ["compare", "--host", f"{NETS}:make", "--against", "vit_tiny_patch16_224", *study[3:], "--out", "sizes"]
    assert call(*text) == 2
    assert "takes inputs of 3x224x224" in capsys.readouterr().err


def test_a_model_of_timm_in_a_factory(trusted: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its `pretrained_cfg` is complete already, and it is grafted by timm's adapter."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "nets_of_timm.py").write_text(
        "import timm\n\ndef make(**arguments):\n    return timm.create_model('vit_tiny_patch16_224', depth=1, **arguments)\n"
    )
    model: Any = attngraft.create_model("module:nets_of_timm:make", "cb_s", num_classes=3)
    assert model_parts(model).head == ("head",) and model.num_classes == 3
    own = timm.data.resolve_model_data_config(model)
    assert host_input("module:nets_of_timm:make", {"num_classes": 3}) == own | {"any_size": {}}


def forget(marker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process."""
    marker.unlink()
    monkeypatch.delitem(__import__("sys").modules, "own_nets_of_mine")


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    return int(stop.value.code or 0)
