"""`attngraft explore --image` of models that caption images, as a user types it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attngraft.export.predict import open_model
from attngraft.export.run import export_run
from attngraft.recording.record import record
from attngraft.targets.folders import open_folder
from attngraft.tasks.captioning.encoder import EncoderConfig
from attngraft.tasks.captioning.extraction import write_features
from attngraft.tasks.captioning.vocabulary import BOS
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from attngraft.training.recipe import Recipe
from tests.cli.test_explore import run
from tests.export.runs import make_run
from tests.report.test_text_explorer import data_of
from tests.tasks.captioning.scenes import features, write_scenes
from tests.tasks.captioning.test_contract import TINY_VIT
from tests.tasks.captioning.test_task import recipe

NASTY = "<b>&dog<"  #: the name of an image
GRID = ["row 0, column 0", "row 0, column 1", "row 1, column 0", "row 1, column 1"]
SLOTS = [f"memory slot {number}" for number in range(1, 5)]


def two_levels(folder: Path, **fields: Any) -> Recipe:
    found = recipe(folder, **fields)
    return replace(found, host=replace(found.host, args={**found.host.args, "depth": 2}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs with features of a detector, with those of a grid, and end to end; an image, and features."""
    folder, silent = tmp_path_factory.mktemp("captions"), Silent()
    train(two_levels(folder), folder / "detector", progress=silent)
    scenes = write_scenes(folder / "images/scenes", images=True)
    train(two_levels(folder / "images", encoder=TINY_VIT), folder / "whole", progress=silent)
    (scenes / "features.h5").unlink()
    write_features(
        EncoderConfig(**TINY_VIT), {each.name: each for each in (scenes / "images").iterdir()}, scenes / "features.h5"
    )
    train(two_levels(folder / "images"), folder / "grid", progress=silent)
    export_run(folder / "whole", folder / "exported")
    make_run(folder / "classifier")
    np.save(folder / "dog.npy", features(2))
    np.save(folder / "wide.npy", np.ones((2, 13)))
    for name in (NASTY, "dog"):
        shutil.copy(scenes / "images/0.png", folder / f"{name}.png")
    return folder


def test_two_models_of_a_grid(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, image = tmp_path / "page.html", folder / f"{NASTY}.png"
    assert run("--model", folder / "grid", "--model", folder / "exported", "--image", image, "--out", page) == 0
    assert f"{page} (0." in capsys.readouterr().out
    text = page.read_text("utf-8")
    assert NASTY not in text and "img-src data:" in text and "<title>&lt;b&gt;&amp;dog&lt;.png: attention" in text
    for name, found in zip(("grid", "exported"), data_of(page)["models"], strict=True):
        assert (found["name"], found["source"], found["keys"], found["grid"]) == (name, GRID, GRID + SLOTS, [2, 2])
        assert found["picture"].startswith("data:image/png;base64,")
        assert found["inputs"] == ["<bos>", *found["target"][:-1]]
        (caption,) = open_model(folder / name, device="cpu")([str(image)])
        words = [word for word in found["target"] if word != "<eos>"]
        assert caption.value.split() == [word for place, word in enumerate(words) if words[place - 1 : place] != [word]]
        sides = {layer["site"]: (layer["rows"], layer["columns"]) for layer in found["layers"]}
        assert sides == {
            "encoder.0.self_attn": ("source", "keys"),
            "encoder.1.self_attn": ("source", "keys"),
            **{
                f"decoder.{place}.{name}": sides
                for place in range(2)
                for name, sides in {
                    "self_attn": ("target", "inputs"),
                    "cross_attn: level 1": ("target", "source"),
                    "cross_attn: level 2": ("target", "source"),
                }.items()
            },
        }


def test_a_given_caption_of_features(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model, site = folder / "detector", "decoder.1.cross_attn"
    arguments = ["--target", "A <b>red zebra!", "--sites", site]
    assert run("--model", model, "--image", folder / "dog.npy", *arguments) == 0
    (found,) = data_of(tmp_path / "dog.html")["models"]
    assert found["source"] == [f"region {number}" for number in range(1, 5)]
    assert found["target"] == ["a", "<unk>", "red", "<unk>", "<eos>"]
    assert (found["picture"], found["grid"]) == (None, [0, 0])
    opened = open_folder(str(model), option="--image")
    ids = torch.tensor([[BOS, *opened.codec.tokens.encode("a b red zebra")[1:-1]]])  # type: ignore[attr-defined]
    device = next(opened.model.parameters()).device
    with torch.no_grad(), record(opened.model, sites=site) as recording:
        opened.model(torch.from_numpy(features(2))[None].to(device), ids.to(device))
    assert [layer["site"] for layer in found["layers"]] == [f"{site}: level 1", f"{site}: level 2"]
    for layer, expected in zip(found["layers"], recording[site]["weights"], strict=True):
        assert layer["weights"]["shape"] == [2, 5, 4]
        assert layer["weights"]["largest"] == pytest.approx(float(expected.max()), rel=1e-5)


@pytest.mark.parametrize(
    ("models", "arguments", "message"),
    [
        (
            ["detector"],
            ["--image", "dog.png"],
            "the model takes features of another model, such as a detector; give each",
        ),
        (["whole"], ["--image", "dog.npy"], "the model takes images, not features; give an image"),
        (["detector"], ["--image", "nowhere.npy"], "nowhere.npy: cannot be read as .npy"),
        (["grid"], ["--image", "wide.npy"], "wide.npy: must have finite floats (regions, 12)"),
        (["whole"], ["--image", "nowhere.png"], "nowhere.png: cannot be read"),
        (
            ["whole"],
            ["--image", "dog.png", "--target", "a " * 20],
            "the caption has 21 words with its end, but the model writes 16",
        ),
        (["whole"], ["--image", "dog.png", "--pretrained"], "captioning takes runs and exported folders"),
        (
            ["whole", "classifier"],
            ["--image", "dog.png"],
            "classifier: does not caption images, as another --model does",
        ),
        (["vit_tiny_patch16_224", "exported"], ["--image", "dog.png"], "vit_tiny_patch16_224: does not caption images"),
        (["whole", "nowhere"], ["--image", "dog.png"], "nowhere: no such folder, file or host"),
        (["whole"], ["--text", "a dog"], "takes images, not texts; use --image FILE"),
        (["exported"], ["--cloud", "a.npy"], "takes images, not point clouds; use --image FILE"),
        (["classifier"], ["--image", "dog.npy"], "dog.npy"),
        (
            ["classifier"],
            ["--image", "dog.png", "--target", "a dog"],
            "not to an image, except with models that caption images",
        ),
    ],
)
def test_wrong_calls(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    models: list[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(folder)
    assert run(*[f"--model={each}" for each in models], "--out", tmp_path / "page.html", *arguments) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()
