"""Starting from weights: what grafts leave of them, what is written down, and that it is found out early if it fails."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch

import attngraft
from attngraft.attention import GraftType
from attngraft.errors import AttngraftError, ConfigError, HostError
from attngraft.mechanisms.registry import graft_types
from attngraft.study.checks import check_variants
from attngraft.study.plan import resolve_runs
from attngraft.training.evaluate import evaluate_run
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from attngraft.training.run_folder import read_run
from tests.models.test_weights import HOSTS, make, saved
from tests.study.fakes import study
from tests.training.toys import final_state, metric_rows, toy_recipe


def identity_forms() -> list[str]:
    """Every registered graft that starts as the identity, by itself or on request."""
    forms = []
    for name, kind in graft_types().items():
        if kind.source == "tests":
            continue
        options = [kind.Options()]
        if any(field.name == "identity" for field in dataclasses.fields(kind.Options)):
            options.append(dataclasses.replace(options[0], identity=True))
        if any(kind.starts_as_identity(option) for option in options):
            forms.append(name if kind.starts_as_identity(options[0]) else f"{name}(identity=true)")
    return forms


def bitwise(kind: GraftType[Any]) -> bool:
    """Whether it stands where nothing but its own arithmetic changes: not within the attention map."""
    return not {"mix", "weights"} & set(kind.hook_points(kind.Options()))


def placed(spec: str, host: str) -> str:
    """Where the graft can stand: some refuse attention that subsamples."""
    return f"{spec}@stages.0" if host.startswith("levit") and spec.startswith(("bisa", "ghost")) else spec


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("spec", identity_forms())
def test_before_training_a_grafted_host_predicts_what_its_weights_predict(tmp_path: Path, host: str, spec: str) -> None:
    path = saved(make(host, seed=1), tmp_path / "host.safetensors")
    torch.manual_seed(5)
    images = torch.randn(16, 3, 32, 32)
    alone = attngraft.create_model(host, weights=path, **HOSTS[host]).eval()
    grafted = attngraft.create_model(host, placed(spec, host), weights=path, **HOSTS[host]).eval()
    with torch.no_grad():
        expected, found = alone(images), grafted(images)
    assert expected.argmax(1).unique().numel() > 1
    assert torch.equal(found.argmax(1), expected.argmax(1))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    if bitwise(graft_types()[spec.partition("(")[0]]):
        assert torch.equal(found, expected)


def test_there_are_identity_forms_and_a_graft_that_is_none_differs(tmp_path: Path) -> None:
    assert {"cb_s", "horizontal(identity=true)", "vertical(identity=true)", "identity"} <= set(identity_forms())
    path = saved(make(seed=1), tmp_path / "host.safetensors")
    images = torch.randn(4, 3, 32, 32)
    name = "vit_tiny_patch16_224"
    models = [attngraft.create_model(name, spec, weights=path, **HOSTS[name]).eval() for spec in (None, "cb")]
    with torch.no_grad():
        assert not torch.allclose(models[0](images), models[1](images), atol=1e-3)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose best weights are worth something."""
    folder = tmp_path_factory.mktemp("trained")
    train(toy_recipe(schedule={"epochs": 3}, task={"val": 60, "noise": 1.5}), folder, progress=Silent())
    return folder


def from_weights(path: Path, **sections: Any) -> Any:
    host = {"weights": str(path), **sections.pop("host", {})}
    return toy_recipe(host=host, task={"val": 60, "noise": 1.5}, **sections)


def test_the_first_evaluation_is_the_last_one_of_the_run_that_it_starts_from(
    trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    best = trained / "checkpoints" / "best.safetensors"
    record = train(from_weights(trained, graft="cb_s"), tmp_path, progress=Silent())
    known = evaluate_run(trained, weights="best").metrics
    assert known["top1"] == max(row["val/top1"] for row in read_run(trained).epochs)
    assert record.start == {
        "from": f"weights of {best} (with its head for 3 classes)",
        "file": str(best),
        "sha256": hashlib.sha256(best.read_bytes()).hexdigest(),
        "metrics": {f"val/{name}": value for name, value in known.items()},
    }
    assert f"starts from weights of {best}" in caplog.text
    assert f"before training: val/top1 {known['top1']:.4g}" in caplog.text


def test_a_new_head_has_nothing_to_evaluate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    model = timm.create_model("toy_vit", num_classes=7)
    path = tmp_path / "seven.safetensors"
    safetensors.torch.save_file(model.state_dict(), path)
    record = train(from_weights(path), tmp_path / "run", progress=Silent())
    assert "metrics" not in record.start
    assert record.start["from"] == f"weights of {path} (a new head: head.bias, head.weight)"
    assert record.start["from"] in caplog.text


def test_evaluating_first_changes_nothing_and_a_resumed_run_does_not_need_the_file(
    trained: Path, tmp_path: Path
) -> None:
    path = tmp_path / "host.safetensors"
    path.write_bytes((trained / "checkpoints" / "best.safetensors").read_bytes())
    recipe = from_weights(path)
    train(recipe, tmp_path / "whole", progress=Silent())
    train(recipe, tmp_path / "parts", progress=Silent(), stop_after_epoch=1)
    begun = json.loads((tmp_path / "parts" / "start.json").read_text())
    path.unlink()
    train(recipe, tmp_path / "parts", progress=Silent())
    assert metric_rows(tmp_path / "whole") == metric_rows(tmp_path / "parts")
    left, right = final_state(tmp_path / "whole")["model"], final_state(tmp_path / "parts")["model"]
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert json.loads((tmp_path / "parts" / "start.json").read_text()) == begun
    with pytest.raises(AttngraftError, match="no such file; pass a weights file"):
        train(recipe, tmp_path / "new", progress=Silent())


def test_from_random_values_nothing_is_written_and_a_frozen_host_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record = train(toy_recipe(), tmp_path / "plain", progress=Silent())
    assert record.start == {}
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "start.json").write_text('{"from": "weights of an attempt that saved nothing"}')
    assert train(toy_recipe(), tmp_path / "again", progress=Silent()).start == {}
    assert not (tmp_path / "plain" / "start.json").exists()
    assert "random values" not in caplog.text
    train(toy_recipe(train={"parameters": "head"}), tmp_path / "head", progress=Silent())
    assert "train.parameters=head leaves most of them untrained; give initial weights" in caplog.text


def test_weights_of_a_run_whose_host_is_another_say_which(trained: Path, tmp_path: Path) -> None:
    host = {"name": "vit_tiny_patch16_224", "args": {}}
    with pytest.raises(
        HostError, match=r"are from a run with --host toy_vit --host-arg drop_rate=0\.1 --host-arg proj_drop_rate=0\.1$"
    ):
        train(from_weights(trained, host=host), tmp_path, progress=Silent())


def test_heads_of_all_variants_start_alike(tmp_path: Path) -> None:
    from attngraft.training.build import build_model

    path = tmp_path / "seven.safetensors"
    safetensors.torch.save_file(timm.create_model("toy_vit", num_classes=7).state_dict(), path)
    models = [build_model(from_weights(path, graft=graft), {"num_classes": 3}) for graft in (None, "vertical + cb_s")]
    plain, grafted = (model.state_dict() for model in models)
    assert all(torch.equal(plain[name], grafted[name]) for name in plain)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"host": {"weights": "{missing}"}}, AttngraftError, "no such file; pass a weights file"),
        ({"host": {"name": "toy_vit", "args": {"depth": 3}, "weights": "{good}"}}, HostError, r"lacks blocks\.2\."),
        (
            {"host": {"name": "toy_vit", "weights": "{grafted}"}},
            HostError,
            "trained with different grafts.*without grafts",
        ),
        (
            {"set": ["train.parameters=grafts"]},
            ConfigError,
            r"train\.parameters: is grafts, but the recipe has no graft",
        ),
        ({"host": {"weights": "{good}", "pretrained": True}}, ConfigError, "cannot be combined with pretrained: true"),
    ],
)
def test_a_study_that_cannot_start_says_so_before_it_trains(
    tmp_path: Path, trained: Path, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    model = timm.create_model("toy_vit", num_classes=3)
    attngraft.graft(model, "cb_s")
    safetensors.torch.save_file(model.state_dict(), tmp_path / "grafted.safetensors")
    files = {"missing": tmp_path / "no.pth", "good": trained, "grafted": tmp_path / "grafted.safetensors"}
    if "host" in changes:
        weights = changes["host"]["weights"].format(**{name: str(path) for name, path in files.items()})
        changes = {"host": {**changes["host"], "weights": weights}}
    with pytest.raises(error, match=message):
        check_variants(resolve_runs(study(tmp_path / "study", **changes)))


def test_a_study_whose_host_has_weights_to_start_from_goes_ahead(tmp_path: Path, trained: Path) -> None:
    config = study(tmp_path, host={"name": "toy_vit", "weights": str(trained)}, set=["train.parameters=grafts+head"])
    check_variants(resolve_runs(config))
    for variant in config.variants:
        recipe = config.recipe_of(variant, 0)
        assert (recipe.host.weights, recipe.train.parameters) == (str(trained), "grafts+head")
