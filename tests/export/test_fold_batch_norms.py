"""Folding a host with batch norms: none is left, in folders and programs too, and grafts then find the linear layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn

import attngraft
from attngraft.errors import HostError, UsageError
from attngraft.export.fold import fold, summary
from attngraft.export.run import export_run
from attngraft.export.torch_export import open_program
from attngraft.hosts import find_host
from attngraft.models.weights import read_weights
from tests.export.runs import LEVIT, LEVIT_CONV, make_run, move_batch_norms

HOSTS = pytest.mark.parametrize("host", [LEVIT, LEVIT_CONV], ids=["linear", "conv"])


def grafted_model(spec: str | None, host: dict[str, Any]) -> nn.Module:
    torch.manual_seed(3)
    model = timm.create_model(host["name"], num_classes=5, **host["args"])
    if spec:
        attngraft.graft(model, spec)
    for name, parameter in model.named_parameters():
        if ".grafts." in name or "head" in name:
            nn.init.normal_(parameter, std=0.5)
    move_batch_norms(model)
    return model.eval()


def batch_norms(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)]


@HOSTS
@pytest.mark.parametrize(
    "spec",
    [
        None,
        "cb",
        "cb(position=front)",
        "cb(position=mid)",
        "cb(at=both)",
        "vertical + cb(at=attention)",
        "horizontal + cb_s",
        "uniform_heads",
        "bisa(learned=true, norm=true)@stages.*.blocks + cb",
        "bisa(separate=true)@stages.0",
    ],
)
@torch.no_grad()
def test_no_batch_norm_is_left_and_outputs_stay(spec: str | None, host: dict[str, Any]) -> None:
    model = grafted_model(spec, host)
    images = torch.randn(3, 3, 32, 32)
    expected = model(images)
    found = fold(model)
    torch.testing.assert_close(model(images), expected, rtol=1e-5, atol=1e-5)
    assert not batch_norms(model)
    assert found.fused
    assert "batch norms are fused into the linear layers" in str(found.entries[0].folded)
    halves = [entry for entry in found.entries if entry.graft == "cb"]
    if spec != "vertical + cb(at=attention)":
        assert all(entry.folded for entry in halves)


@HOSTS
def test_the_half_really_moves(host: dict[str, Any]) -> None:
    halved, plain = grafted_model("cb", host), grafted_model(None, host)
    fold(halved)
    fold(plain)
    for model in (halved, plain):
        assert isinstance(model.stages[0].blocks[0].mlp.ln2, nn.Linear | nn.Conv2d)
    weights, whole = (model.stages[0].blocks[0].mlp.ln2.weight for model in (halved, plain))
    assert torch.equal(weights, whole / 2)


def test_sites_of_a_fused_host_say_that_its_maps_have_biases_and_no_norm() -> None:
    model = grafted_model(None, LEVIT)
    before = [site.geometry for site in find_host(model).sites if site.kind == "attention"]
    fold(model)
    after = [site.geometry for site in find_host(model).sites if site.kind == "attention"]
    for a, b in zip(before, after, strict=True):
        assert (a.projection.bias, a.projection.norm) == (False, "batch")
        assert (b.projection.bias, b.projection.norm) == (True, None)
        assert (a.dim, a.heads, a.key_width, a.value_width, a.shape("tokens")) == (
            b.dim,
            b.heads,
            b.key_width,
            b.value_width,
            b.shape("tokens"),
        )


def test_folding_again_finds_nothing() -> None:
    model = grafted_model("horizontal", LEVIT)
    fold(model)
    assert not fold(model).fused


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, nn.Module]:
    """A folded LeViT with grafts, as a folder with its program, and the model as it was trained."""
    place = tmp_path_factory.mktemp("levit")
    run = make_run(place / "run", "bisa@stages.0 + vertical + cb", host=LEVIT)
    export_run(run, place / "whole")
    export_run(run, place / "out", to=["pt2"], fold=True)
    return place / "out", attngraft.load(place / "whole")


@torch.no_grad()
@pytest.mark.slow
def test_a_folder_and_its_program_hold_no_batch_norm(exported: tuple[Path, nn.Module]) -> None:
    folder, trained = exported
    model = attngraft.load(folder)
    images = torch.randn(4, 3, 32, 32)
    torch.testing.assert_close(model(images), trained(images), rtol=1e-5, atol=1e-5)
    assert not batch_norms(model)
    program, _ = open_program(folder / "model.pt2")
    torch.testing.assert_close(program(images), trained(images), rtol=1e-5, atol=1e-5)
    nodes = torch.export.load(folder / "model.pt2").graph.nodes
    assert not [node for node in nodes if "batch_norm" in str(node.target)]


@pytest.mark.slow
def test_the_folder_says_what_was_done_and_refuses_undo(exported: tuple[Path, nn.Module]) -> None:
    from attngraft.saved.manifest import read_manifest

    folder, _ = exported
    manifest = read_manifest(folder)
    assert manifest.host.fused
    lines = {line.graft: line.outcome for line in summary(manifest.folds)}
    assert "batch norms are fused into" in lines["the host"]
    assert lines["cb"].startswith("folded")
    assert "batch norms are fused into" in (folder / "README.md").read_text()
    with pytest.raises(HostError, match="folded for inference"):
        attngraft.ungraft(attngraft.load(folder))


def test_folded_weights_are_no_start_for_training(exported: tuple[Path, nn.Module]) -> None:
    folder, _ = exported
    for path in (folder, folder / "model.safetensors"):
        with pytest.raises(UsageError, match="folded for inference.*exported without --fold"):
            read_weights(path)
    assert read_weights(folder.parent / "whole").host


def test_plain_timm_makes_no_such_model(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", host=LEVIT)
    with pytest.raises(UsageError, match=r"--to hf with --fold.*batch norms.*remove --fold"):
        export_run(run, tmp_path / "out", to=["hf"], fold=True)
    assert not (tmp_path / "out").exists()
    assert export_run(run, tmp_path / "out", to=["hf"]).plain_difference == 0


@pytest.mark.slow
@torch.no_grad()
def test_onnx_holds_no_batch_norm(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    export_run(
        make_run(tmp_path / "run", "vertical + cb", host=LEVIT_CONV), tmp_path / "out", to=["onnx", "pt2"], fold=True
    )
    operations = {node.op_type for node in onnx.load(tmp_path / "out" / "model.onnx").graph.node}
    assert "BatchNormalization" not in operations
