"""Folding: unchanged outputs, no undo, and a reason for every part that is not folded."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn

import attngraft
from attngraft.errors import GraftSpecError, HostError
from attngraft.export.fold import fold, summary
from attngraft.export.run import export_run
from attngraft.hosts.registry import host_adapters, missing_hosts
from tests.export.runs import ELSA_SWIN, LEVIT, LEVIT_CONV, SWIN, VIT, make_run, move_batch_norms


def grafted_model(spec: str | None, host: dict[str, Any] = VIT, **arguments: Any) -> nn.Module:
    torch.manual_seed(3)
    model = timm.create_model(host["name"], num_classes=5, **host["args"], **arguments)
    if spec:
        attngraft.graft(model, spec)
    for name, parameter in model.named_parameters():
        if ".grafts." in name or "head" in name or ".ls" in name:
            nn.init.normal_(parameter, std=0.5)
    return model.eval()


@pytest.mark.parametrize("host", [VIT, SWIN], ids=["vit", "swin"])
@pytest.mark.parametrize(
    "spec",
    [
        "cb",
        "cb(position=mid)",
        "cb(position=front)",
        "cb(context=max)",
        "cb(at=attention)",
        "cb(at=both, scope=window)",
        "horizontal + cb + cb_s(position=mid)",
        "vertical + cb(at=attention)",
        "cb + identity(stage='mlp.end')",
        "cb + cb",
    ],
)
def test_outputs_stay_what_they_were(spec: str, host: dict[str, Any]) -> None:
    if "window" in spec and host is VIT:
        spec = "cb(at=both)"
    model = grafted_model(spec, host)
    images = torch.randn(3, 3, host["args"]["img_size"], host["args"]["img_size"])
    with torch.no_grad():
        expected = model(images)
        found = fold(model)
        torch.testing.assert_close(model(images), expected, rtol=1e-5, atol=1e-5)
    halves = [entry for entry in found.entries if entry.graft == "cb"]
    assert halves
    if "vertical" not in spec:  # which stands between the projection and the end of the attention
        assert any(entry.folded for entry in halves)
    assert all(entry.folded is None for entry in found.entries if entry.graft in ("horizontal", "vertical", "cb_s"))
    assert all(entry.removed for entry in found.entries if entry.graft == "identity")
    assert all(bool(entry.folded) != bool(entry.stayed) for entry in found.entries)


def test_the_half_really_moves() -> None:
    model = grafted_model("cb")
    before = model.blocks[0].mlp.fc2.weight.detach().clone()
    fold(model)
    assert torch.equal(model.blocks[0].mlp.fc2.weight, before / 2)
    left = model.blocks[0].mlp.grafts["cb"]
    assert left.kind == "cb_s"
    assert torch.equal(left.scale, torch.ones(24))
    assert not left.scale.requires_grad


def test_of_two_only_the_one_beside_the_layer_moves_and_the_other_says_why() -> None:
    found = fold(grafted_model("cb + cb", SWIN)).entries
    assert [bool(entry.folded) for entry in found[:2]] == [True, False]
    assert "another graft of the same hook point is between" in str(found[1].stayed)


def test_a_host_that_no_adapter_reads_stays_as_it_is_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing_hosts()  # registers the adapters for our own models, too
    monkeypatch.setattr(host_adapters()["elsa.swin"], "recognizes", lambda model: False)
    host = {**ELSA_SWIN, "args": {**ELSA_SWIN["args"], "lam": 2}}
    (entry,) = export_run(make_run(tmp_path / "run", host=host), tmp_path / "out", fold=True).manifest.folds
    assert (entry.module, entry.graft, entry.folded) == ("", None, None)
    (line,) = summary([entry])
    assert line.graft == "the host"
    assert line.outcome.startswith("not folded: no adapter supports this host")
    assert line.outcome in (tmp_path / "out" / "README.md").read_text()
    assert not attngraft.load(tmp_path / "out").training


def test_prefix_tokens_cannot_be_left_out_by_a_linear_layer() -> None:
    found = fold(grafted_model("cb(tokens=patches)")).entries
    assert all("prefix tokens" in str(entry.stayed) for entry in found)


def test_a_folded_model_refuses_undo_and_saving(tmp_path: Path) -> None:
    export_run(make_run(tmp_path / "run", "cb + horizontal"), tmp_path / "out", fold=True)
    model = attngraft.load(tmp_path / "out")
    with pytest.raises(HostError, match="folded for inference"):
        attngraft.ungraft(model)
    with pytest.raises(GraftSpecError, match="folded into the host's weights"):
        attngraft.save_grafts(model, tmp_path / "grafts.safetensors")
    assert attngraft.ungraft(model, "horizontal")


def test_a_graft_that_does_nothing_is_folded_away_so_that_timm_loads_the_model(tmp_path: Path) -> None:
    made = export_run(make_run(tmp_path / "run", "identity"), tmp_path / "out", to=["hf"], fold=True)
    assert made.plain_difference == 0
    assert not made.manifest.grafted
    assert [type(module) for module in attngraft.load(tmp_path / "out").modules()] == [
        type(module) for module in timm.create_model(f"local-dir:{tmp_path / 'out'}").modules()
    ]


def test_layer_scale_moves_where_no_graft_stands_behind() -> None:
    model = grafted_model("cb(position=mid) + horizontal", init_values=0.5)
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        expected = model(images)
        found = fold(model)
        torch.testing.assert_close(model(images), expected, rtol=1e-5, atol=1e-5)
    assert not any(".ls" in name for name, _ in model.named_parameters())
    assert found.arguments == {"init_values": None}
    assert found.entries[-1].folded


def test_layer_scale_stays_behind_a_graft_and_nothing_changes() -> None:
    model = grafted_model("se(reduction=2)", init_values=0.5)
    before = copy.deepcopy(model.state_dict())
    found = fold(model)
    assert "a graft lies between" in str(found.entries[-1].stayed)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


SEPARATE = "adds its own output after the host's output projection"


@pytest.mark.parametrize(
    ("host", "sites", "half"),
    [
        (VIT, "blocks.0", "cb(at=attention)"),
        (SWIN, "layers.0", "cb(at=attention)"),
        (SWIN, "layers.0", "cb(at=attention, scope=window)"),
        (LEVIT, "stages.0", "cb(at=attention)"),
        (LEVIT_CONV, "stages.0", "cb(at=attention)"),
    ],
    ids=["vit", "swin", "swin-window", "levit", "levit-conv"],
)
@torch.no_grad()
def test_behind_an_output_of_its_own_nothing_moves_and_elsewhere_it_does(
    host: dict[str, Any], sites: str, half: str
) -> None:
    model = grafted_model(f"bisa(separate=true)@{sites} + {half} + cb", host)
    move_batch_norms(model)
    images = torch.randn(3, 3, host["args"]["img_size"], host["args"]["img_size"])
    expected = model(images)
    entries = fold(model).entries
    torch.testing.assert_close(model(images), expected, rtol=1e-5, atol=1e-5)
    separate = {entry.module for entry in entries if entry.graft == "bisa"}
    halves = [entry for entry in entries if entry.graft == "cb"]
    behind = [entry for entry in halves if entry.module.startswith(sites) and "mlp" not in entry.module]
    assert len(behind) == len(separate) > 0
    for entry in halves:
        if entry in behind:
            assert entry.stayed == f"there is no linear layer next to it (bisa {SEPARATE})"
        else:
            assert entry.folded


@torch.no_grad()
def test_layer_scale_stays_behind_an_output_of_its_own_and_the_halves_move() -> None:
    model = grafted_model("bisa(separate=true) + cb", init_values=0.5)
    images = torch.randn(2, 3, 16, 16)
    expected = model(images)
    entries = fold(model).entries
    torch.testing.assert_close(model(images), expected, rtol=1e-5, atol=1e-5)
    assert entries[-1].stayed == f"LayerScale: at blocks.0.attn bisa {SEPARATE}"
    assert all(entry.folded for entry in entries if entry.graft == "cb")


def test_an_export_with_an_output_of_its_own_folds_what_it_can(tmp_path: Path) -> None:
    host = {**VIT, "args": {**VIT["args"], "init_values": 0.5}}
    run = make_run(tmp_path / "run", "bisa(separate=true) + cb", host=host)
    folds = export_run(run, tmp_path / "out", fold=True).manifest.folds
    assert {bool(entry.folded) for entry in folds if entry.graft == "cb"} == {True}
    assert SEPARATE in str(folds[-1].stayed)


@torch.no_grad()
def test_a_mix_graft_that_hides_what_it_adds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = grafted_model("bisa(separate=true)")
    monkeypatch.setattr(type(model.blocks[0].attn.grafts["bisa"]), "adds_after", False)
    with pytest.raises(TypeError, match="must set `adds_after`"):
        model(torch.randn(1, 3, 16, 16))


def test_a_folded_layer_scale_loads_and_is_plain_timms(tmp_path: Path) -> None:
    host = {**VIT, "args": {**VIT["args"], "init_values": 0.1}}
    made = export_run(make_run(tmp_path / "run", host=host), tmp_path / "out", to=["hf"], fold=True)
    assert made.plain_difference == 0
    assert attngraft.load(tmp_path / "out").blocks[0].ls1.__class__ is nn.Identity


def test_the_summary_says_the_same_thing_once() -> None:
    lines = summary(fold(grafted_model("cb + horizontal")).entries)
    assert [(line.graft, len(line.modules)) for line in lines] == [("horizontal", 2), ("cb", 2)]
    assert lines[1].outcome.startswith("folded: ")
