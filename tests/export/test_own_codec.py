"""A task with a head around the host and inputs of its own: exported, loaded again, used for prediction, and measured."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attngraft
from attngraft.cli import main
from attngraft.errors import UsageError
from attngraft.export.run import export_run
from attngraft.hosts import HostedModel
from attngraft.results.records import Records
from attngraft.saved.manifest import read_manifest
from attngraft.study.cost import _macs_of_one_example
from attngraft.tasks.codec import Codec
from attngraft.tasks.task import TASKS, Loss, StepContext, Task, to_records
from attngraft.training.loop import train
from attngraft.training.profiler import BenchmarkBatch, Profiler
from attngraft.training.progress import Silent
from attngraft.training.recipe import recipe_from_dict
from tests.contract.task_contract import tiny_vit
from tests.tasks.toy_dense import ToyDense


class PixelHead(HostedModel):
    """Logits (B, 64, classes) of all pixels from a pooled feature."""

    def __init__(self, host: nn.Module, classes: int) -> None:
        super().__init__(host)
        self.logits = nn.Linear(24, 64 * classes)

    def forward(self, drawings: Tensor) -> Tensor:
        found: Tensor = self.logits(self.host.forward_features(drawings)[:, 0])
        return found.unflatten(1, (64, -1))


class PixelCodec(Codec):
    """A drawing is a number, its brightness."""

    def __init__(self, classes: Sequence[str]) -> None:
        self.classes = classes

    def example_inputs(self, batch_size: int) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        return (torch.randn(batch_size, 1, 8, 8),), {}

    def encode(self, inputs: Sequence[str]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        return (torch.stack([torch.full((1, 8, 8), float(each)) for each in inputs]),), {}

    def decode(self, outputs: Tensor) -> list[Any]:
        return [{"first": self.classes[int(row[0])]} for row in outputs.argmax(-1)]


class Pixels(ToyDense):
    """The dense toy, with a head around the host and no single forward pass."""

    name = "pixels"
    to_model = Task.to_model

    def build(self, host: nn.Module, facts: Mapping[str, Any]) -> nn.Module:
        return PixelHead(host, len(facts["classes"]))

    def step(self, model: nn.Module, batch: Any, at: StepContext) -> dict[str, Loss]:
        return {"loss": Loss(mean=ToyDense.loss(self, model(batch["drawing"]), batch)["loss"])}

    def infer(self, model: nn.Module, batch: Any, *, full: bool = True) -> Records:
        return to_records(ToyDense.predict(self, model(batch["drawing"]), batch))

    def codec(self, facts: Mapping[str, Any], *, model_data_config: Mapping[str, Any]) -> Codec:
        return PixelCodec(facts["classes"])


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(TASKS, "pixels", f"{__name__}:Pixels")
    train(recipe_from_dict(recipe()), tmp_path / "run", progress=Silent())
    return tmp_path / "run"


def recipe() -> dict[str, Any]:
    return {
        "host": tiny_vit(),
        "graft": "cb_s",
        "task": {"name": "pixels", "size": 16},
        "schedule": {"epochs": 1, "warmup_epochs": 0},
        "train": {"batch_size": 8, "threads": 1},
    }


def test_export_load_and_predict(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    for arguments, reason in (
        ({"to": ["onnx"]}, "only for models that classify images"),
        ({"dtype": "bfloat16"}, "only for image and text models"),
    ):
        with pytest.raises(UsageError, match=reason):
            export_run(run, out, **arguments)  # type: ignore[arg-type]
    export_run(run, out)
    assert read_manifest(out).format == 2
    model = attngraft.load(out)
    assert isinstance(model, PixelHead)
    assert any("grafts" in name for name in model.state_dict())
    lines = []
    for place in (run, out):
        with pytest.raises(SystemExit) as stop:
            main(["predict", str(place), "0.5", "1", "--format", "jsonl", "--device", "cpu"])
        assert stop.value.code in (0, None)
        lines.append([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    assert lines[0] == lines[1]
    assert [line["input"] for line in lines[0]] == ["0.5", "1"]
    assert lines[0][0]["prediction"]["first"] in ("ground", "bar", "square")
    for kind, start in (("csv", "input,prediction,error"), ("json", '{"inputs": [')):
        with pytest.raises(SystemExit):
            main(["predict", str(out), "0.5", "--format", kind, "--device", "cpu"])
        assert capsys.readouterr().out.startswith(start)


def test_the_codec_gives_the_example_that_is_counted(run: Path) -> None:
    built = recipe_from_dict(recipe())
    profiler = Profiler(built, BenchmarkBatch(built))
    macs = _macs_of_one_example(profiler)
    assert macs is not None
    assert macs > 24 * 64 * 3


def test_programs_are_the_whole_by_default() -> None:
    model = nn.Identity()
    (program,) = PixelCodec(()).programs(model, batch_size=3).values()
    assert program.module is model
    assert program.args[0].shape == (3, 1, 8, 8)
