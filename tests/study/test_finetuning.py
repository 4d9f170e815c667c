"""A comparison that starts from weights: what its baseline trains, what stays, and what it costs to stop on the way."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import timm
import torch
from torch import Tensor

from attngraft.cli import main
from attngraft.errors import HostError
from attngraft.study import Tools, compare, load_result, runner, study_from_dict
from attngraft.training.run_folder import read_run

from .fakes import FakeTrainer, tools

ARGS = {"img_size": 8, "patch_size": 4, "depth": 2, "embed_dim": 24, "num_heads": 3, "in_chans": 1}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(3)
    model = timm.create_model("vit_tiny_patch16_224", num_classes=7, **ARGS)
    path = tmp_path_factory.mktemp("weights") / "host.safetensors"
    safetensors.torch.save_file(model.state_dict(), path)
    return path


def compared(out: Path, weights: Path, recipe: str, **changes: Any) -> None:
    plain = {
        "host": {"name": "vit_tiny_patch16_224", "args": ARGS, "weights": str(weights)},
        "grafts": ["cb_s", "cb"],
        "data": "digits",
        "recipe": recipe,
        "set": ["train.batch_size=512", "train.threads=1"],
        "seeds": 1,
        "epochs": 2,
        "out": str(out),
    }
    study = study_from_dict({**plain, **changes})
    compare(study, costs=False, tools=Tools(write_report=lambda result, folder: folder))


def last(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(folder / "checkpoints" / "last.pt", weights_only=True)
    return state


@pytest.mark.parametrize(
    ("recipe", "trained"),
    [
        ("graft-only", {"head", "grafts"}),
        pytest.param("linear-probe", {"head"}, marks=pytest.mark.slow),
        pytest.param("finetune", {"all"}, marks=pytest.mark.slow),
    ],
)
def test_recipes_train_what_they_say_and_all_variants_start_alike(
    weights: Path, tmp_path: Path, recipe: str, trained: set[str]
) -> None:
    compared(tmp_path, weights, recipe)
    start: dict[str, Tensor] = safetensors.torch.load_file(weights)
    heads = []
    for folder in sorted((tmp_path / "runs").glob("*/seed0")):
        record, state = read_run(folder), last(folder)
        assert record.start["from"] == f"weights of {weights} (a new head: head.bias, head.weight)"
        moved = {
            name
            for name in start
            if not name.startswith("head.") and not torch.equal(state["model"][name], start[name])
        }
        grafts = {name for name in state["model"] if ".grafts." in name}
        wanted = set(start) | grafts if "all" in trained else {"head.weight", "head.bias"}
        wanted |= grafts if "grafts" in trained else set()
        assert set(state["optimizer"]["state"]) == wanted
        assert bool(moved) == ("all" in trained)
        assert bool(grafts) == (record.recipe.graft == "cb_s")
        heads.append(state["model"]["head.weight"])
    assert len(heads) == 3
    if recipe == "linear-probe":  # an untrained identity form is the baseline; a graft without parameters is not
        by_graft = {read_run(folder).recipe.graft: folder for folder in (tmp_path / "runs").glob("*/seed0")}
        plain, cb_s, cb = (last(by_graft[graft])["model"]["head.weight"] for graft in (None, "cb_s", "cb"))
        assert torch.equal(plain, cb_s)
        assert not torch.equal(plain, cb)


@pytest.mark.slow
def test_the_result_says_what_the_runs_start_from_and_what_that_scores(tmp_path: Path, weights: Path) -> None:
    compared(tmp_path / "first", weights, "linear-probe")
    own = next((tmp_path / "first" / "runs").glob("cb/seed0"))
    known = read_run(own).epochs
    with pytest.raises(HostError, match="trained with different grafts"):  # of CB_S, which the baseline has not
        compared(tmp_path / "refused", next((tmp_path / "first" / "runs").glob("cb_s/seed0")), "graft-only")
    compared(tmp_path / "second", own, "graft-only")
    notes = load_result(tmp_path / "second").notes
    assert (
        f"The host starts from weights of {own}/checkpoints/best.safetensors (with its head for 10 classes)." in notes
    )
    (before,) = (note for note in notes if note.startswith("Before training, top1 is "))
    numbers = {name: float(value) for value, name in re.findall(r"([\d.e-]+) \((\w+)\)", before)}
    assert numbers.keys() == {"baseline", "cb_s", "cb"}
    assert numbers["cb"] == pytest.approx(max(row["val/top1"] for row in known), rel=1e-3)
    assert numbers["cb_s"] == numbers["baseline"]
    assert "Only the grafts and the head are trained: the baseline trains its head alone." in notes


@pytest.mark.slow
def test_weights_that_were_changed_on_the_way_are_told_of(tmp_path: Path, weights: Path) -> None:
    mine = tmp_path / "mine.safetensors"
    mine.write_bytes(weights.read_bytes())
    compared(tmp_path / "study", mine, "linear-probe", grafts=["cb"])
    changed = {name: value + 1 for name, value in safetensors.torch.load_file(weights).items()}
    safetensors.torch.save_file(changed, mine)
    compared(tmp_path / "study", mine, "linear-probe", grafts=["cb"], seeds=2)
    notes = " ".join(load_result(tmp_path / "study").notes)
    assert "do not all start from the same weights" in notes


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--weights", "nowhere.pth"), 2, "nowhere.pth: no such file; pass a weights file"),
        (
            ("--weights", "{weights}", "--host-arg", "mlp_ratio=2"),
            2,
            "blocks.0.mlp.fc1.weight (96, 24) where (48, 24) fits",
        ),
        (("--weights", "{weights}", "--pretrained"), 2, "host.weights: cannot be combined with pretrained: true"),
        (
            ("--weights", "{weights}", "--train", "grafts"),
            2,
            "use grafts+head: the plain host (a study's baseline)",
        ),
        (("--weights", "{weights}", "--train", "everything"), 2, "'everything' is not a choice"),
    ],
)
def test_mistakes_on_the_command_line_cost_no_run(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], code: int, message: str
) -> None:
    arguments = [text for name, value in ARGS.items() for text in ("--host-arg", f"{name}={value}")]
    arguments += ["--host", "vit_tiny_patch16_224", "--graft", "cb_s", "--data", "digits"]
    options = tuple(option.format(weights=weights) for option in options)
    with pytest.raises(SystemExit) as ended:
        main(["compare", *arguments, *options, "--out", str(tmp_path / "study")])
    assert ended.value.code == code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "study" / "runs").exists()


def test_pretrained_weights_that_are_not_there_cost_no_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    tag = "vit_tiny_patch16_224.augreg_in21k"
    with pytest.raises(SystemExit) as ended:
        main(["compare", "--host", tag, "--pretrained", "--graft", "cb_s", "--data", "digits", "--out", str(tmp_path)])
    assert ended.value.code == 2
    told = capsys.readouterr().err
    for part in (f"the weights of {tag} are not in the cache", "model.safetensors of", "--weights FILE", "set HF_HOME"):
        assert part in told
    assert not (tmp_path / "runs").exists()


def test_options_reach_every_run(
    weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeTrainer()
    monkeypatch.setattr(runner, "Tools", lambda: tools(fake))
    arguments = [text for name, value in ARGS.items() for text in ("--host-arg", f"{name}={value}")]
    arguments += ["--host", "vit_tiny_patch16_224", "--graft", "cb_s", "--data", "digits", "--seeds", "1"]
    own = ["--recipe", "finetune", "--weights", str(weights), "--train", "grafts+head", "--epochs", "2"]
    with pytest.raises(SystemExit) as ended:
        main(["compare", *arguments, *own, "--out", str(tmp_path)])
    assert not ended.value.code, capsys.readouterr().err
    for folder in (tmp_path / "runs").glob("*/seed0"):
        recipe = read_run(folder).recipe
        assert (recipe.host.weights, recipe.host.pretrained) == (str(weights), False)
        assert (recipe.train.parameters, recipe.optimizer.layer_decay) == ("grafts+head", 0.75)
