"""Models to look at: runs, exported folders, timm's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import nn

import attngraft
from attngraft.errors import HostError, TrainingError, UsageError
from attngraft.export.run import export_run
from attngraft.results.storage import save_result
from attngraft.targets.handle import model_handle, open_handle
from attngraft.targets.judged import HostOptions
from attngraft.training.evaluate import trained_model
from attngraft.training.run_folder import Judged, read_run
from tests.export.runs import CLASSES, make_run
from tests.report.studies import usual

TINY = {"img_size": 16, "patch_size": 8, "depth": 2, "embed_dim": 24, "num_heads": 2}


def picture() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (20, 30, 3), dtype=np.uint8))


def test_a_run_and_its_export_are_the_same_model(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "cb_s" / "seed1", "cb_s")
    export_run(run, tmp_path / "taken")
    first, second = open_handle(str(run)), open_handle(str(tmp_path / "taken"), name="mine")
    assert (first.name, second.name) == ("cb_s/seed1", "mine")
    assert first.classes == second.classes == tuple(CLASSES)
    assert first.record is not None
    assert second.record is None
    views = [each.view(picture()) for each in (first, second)]
    assert torch.equal(*views)
    inputs = first.inputs(views[:1])
    assert inputs.shape == (1, 3, 16, 16)
    with torch.no_grad():
        outputs = [each.model(each.inputs([view])) for each, view in zip((first, second), views, strict=True)]
        expected = trained_model(read_run(run), "last").eval()(inputs)
    assert torch.equal(outputs[0], expected)
    torch.testing.assert_close(outputs[0], outputs[1])
    assert not first.model.training


def test_saved_predictions_are_of_the_weights_and_images_that_a_run_is_judged_by(tmp_path: Path) -> None:
    handle = open_handle(str(make_run(tmp_path / "run", None)))
    predicted = replace(handle.record, predictions=tmp_path / "predictions.npz")

    def judged(weights: str, split: str) -> bool:
        record = replace(predicted, judged=Judged(weights=weights, epoch=1, split=split, metrics={}))
        return replace(handle, record=record).has_predictions

    assert replace(handle, record=predicted).has_predictions
    assert not replace(handle, record=predicted, weights="best").has_predictions
    assert judged("last", "val")
    assert not judged("best", "val")
    assert not judged("last", "test")


def test_models_of_timm() -> None:
    handle = open_handle("vit_tiny_patch16_224", host=HostOptions(arguments=TINY))
    assert handle.name == "vit_tiny_patch16_224"
    assert handle.classes == ()
    model = handle.model
    config = timm.data.resolve_model_data_config(model) | {"input_size": (3, 16, 16)}
    expected = timm.data.create_transform(**config, is_training=False)(picture())
    torch.testing.assert_close(handle.inputs([handle.view(picture())])[0], expected, atol=1e-5, rtol=0)
    half = model_handle("half", model.half(), expects={"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)})
    given = half.inputs([half.view(picture())])
    assert given.dtype == torch.float16
    assert 0 <= float(given.min()) <= float(given.max()) <= 1


def test_what_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(UsageError, match="is a study; use --study"):
        open_handle(str(tmp_path))
    with pytest.raises(UsageError, match="no such folder"):
        open_handle(str(tmp_path / "nothing"))
    with pytest.raises(UsageError, match="did you mean"):
        open_handle("vit_tiny_patch16_225")
    with pytest.raises(UsageError, match="--host-arg apply to hosts"):
        open_handle(str(make_run(tmp_path / "run")), host=HostOptions(pretrained=True))
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(TrainingError, match="not a run folder"):
        open_handle(str(empty))


def test_hosts_without_an_adapter(tmp_path: Path) -> None:
    """Their input is that of their scheme; only grafting and recording need an adapter."""
    handle = open_handle("torchvision:shufflenet_v2_x0_5", host=HostOptions(arguments={"img_size": 32}))
    assert handle.inputs([handle.view(Image.new("RGB", (40, 40)))]).shape == (1, 3, 32, 32)
    with pytest.raises(HostError, match="not a supported host"):
        attngraft.graft(handle.model, "cb_s")
    with pytest.raises(HostError):
        model_handle("own", nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))


def test_a_description_is_of_the_model_that_was_trained(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "cb_s")
    export_run(run, tmp_path / "taken")
    opened = [open_handle(str(each)) for each in (run, tmp_path / "taken")]
    for handle in opened:
        assert handle.description.startswith("vit_tiny_patch16_224 (patch_size=")
        assert "+ cb_s, " in handle.description
        assert handle.description.endswith(" parameters, 16 × 16 pixels")
        assert handle.serving is not None
    plain = open_handle("vit_tiny_patch16_224", host=HostOptions(arguments=TINY))
    assert plain.description.startswith("vit_tiny_patch16_224 (patch_size=8, depth=2, embed_dim=24, num_heads=2), ")
    assert plain.serving is None, "random weights predict nothing"
    assert model_handle("own", plain.model).description == plain.description.partition("), ")[2]


def test_published_weights_have_the_classes_of_imagenet(tmp_path: Path) -> None:
    model = timm.create_model("vit_tiny_patch16_224", **TINY)
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    options = HostOptions(arguments=TINY, weights=tmp_path / "weights.pth")
    serving = open_handle("vit_tiny_patch16_224", host=options).serving
    assert serving is not None
    assert serving.classes[207] == "golden retriever"


def test_a_run_of_a_study_has_the_name_of_its_variant(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "twice-as-wide" / "seed0")
    assert open_handle(str(run)).name == "twice-as-wide/seed0", "while the study has no result"
    result = usual(names=("none", "cb"))
    renamed = replace(result.variants[1].runs[0], folder="runs/twice-as-wide/seed0")
    named = replace(result.variants[1], name="Twice as wide", runs=[renamed])
    save_result(replace(result, variants=[result.variants[0], named]), tmp_path)
    assert open_handle(str(run)).name == "Twice as wide/seed0"
    (tmp_path / "results.json").write_text("{")
    assert open_handle(str(run)).name == "twice-as-wide/seed0", "a damaged result"
