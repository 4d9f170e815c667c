"""From a run to a folder: every format, each compared with the model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import attngraft
from attngraft.attention import detached_state
from attngraft.errors import ExportError, HostError, UsageError
from attngraft.export.run import export_run
from attngraft.training.evaluate import trained_model
from attngraft.training.run_folder import read_run
from tests.export.runs import CLASSES, SWIN, make_run


def test_a_folder_loads_as_the_model_that_was_trained(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "cb_s + horizontal")
    made = export_run(run, tmp_path / "out")
    torch.manual_seed(5)
    before = torch.get_rng_state()
    model = attngraft.load(tmp_path / "out")
    assert torch.equal(torch.get_rng_state(), before)
    assert not model.training
    assert made.manifest.serving.classes == tuple(CLASSES)
    trained = trained_model(read_run(run), "last").eval()
    assert model.state_dict().keys() == trained.state_dict().keys()
    images = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(model(images), trained(images))
    assert sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.*")) == [
        "README.md",
        "attngraft.json",
        "checksums.json",
        "grafts/grafts.safetensors",
        "model.safetensors",
    ]
    assert list(tmp_path.glob(".*")) == []


def test_a_loaded_model_can_be_ungrafted_and_saved_as_any_other(tmp_path: Path) -> None:
    export_run(make_run(tmp_path / "run", "cb"), tmp_path / "out")
    model = attngraft.load(tmp_path / "out")
    attngraft.save_grafts(model, tmp_path / "cb.safetensors")
    assert attngraft.ungraft(model) == ["blocks.0.mlp.grafts.cb", "blocks.1.mlp.grafts.cb"]


@pytest.mark.parametrize("weights", ["last", "best"])
def test_what_a_graft_stands_in_for_is_kept_by_the_run_and_not_by_the_folder(tmp_path: Path, weights: str) -> None:
    run, images = make_run(tmp_path / "run", "dwconv(kernel=3)@layers.0", host=SWIN), torch.randn(2, 3, 32, 32)
    export_run(run, tmp_path / "out", checkpoint=weights)
    trained, loaded = trained_model(read_run(run), weights).eval(), attngraft.load(tmp_path / "out")
    with torch.no_grad():
        expected = trained(images)
        assert torch.equal(loaded(images), expected)
        with pytest.raises(HostError, match="replaces the host.s attn, whose weights were not saved"):
            attngraft.ungraft(loaded)
        attngraft.plan(loaded, "cb")  # which looks at the host as it is without grafts
        with pytest.raises(HostError, match="whose weights were not saved"):
            attngraft.ungraft(loaded)
        assert torch.equal(loaded(images), expected)
        kept = detached_state(trained)
        attngraft.ungraft(trained)
        loaded.load_state_dict(kept, strict=False)
        attngraft.ungraft(loaded)
        assert torch.equal(loaded(images), trained(images))
    assert [vars(a).keys() for a in loaded.modules()] == [vars(b).keys() for b in trained.modules()]


def test_weights_without_a_checkpoint_keep_nothing_of_it(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "dwconv(kernel=3)@layers.0", host=SWIN)
    (run / "checkpoints" / "last.pt").unlink()
    with pytest.raises(HostError, match="whose weights were not saved"):
        attngraft.ungraft(trained_model(read_run(run), "best"))


@pytest.mark.parametrize("content", ["other", "model"])
def test_a_folder_that_is_there_is_left_alone(tmp_path: Path, content: str) -> None:
    run, out = make_run(tmp_path / "run"), tmp_path / "out"
    if content == "model":
        export_run(run, out)
    else:
        out.mkdir()
        (out / "notes.txt").write_text("mine")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(UsageError, match="contains"):
        export_run(run, out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    if content == "model":
        export_run(run, out, overwrite=True)
        assert attngraft.load(out) is not None
        (out / "notes.txt").write_text("mine")
        with pytest.raises(UsageError, match=r"--overwrite would delete 'notes\.txt'"):
            export_run(run, out, overwrite=True)


@pytest.mark.parametrize("out", [".", ""])
def test_the_current_folder_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str) -> None:
    run, here = make_run(tmp_path / "run"), tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    for given in (Path(out), here):
        with pytest.raises(UsageError, match="--out: is the current folder; give a folder to create"):
            export_run(run, given)


def test_runs_without_a_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(attngraft.AttngraftError, match="give the folder of a run"):
        export_run(tmp_path / "nothing", tmp_path / "out")
    run = make_run(tmp_path / "run")
    (run / "data.json").unlink()
    with pytest.raises(ExportError, match="before its data were read"):
        export_run(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()
