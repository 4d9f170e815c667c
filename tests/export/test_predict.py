"""Predictions are those of evaluation, whatever form the model has; what cannot be read is named."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from attngraft.cli.values import find_images
from attngraft.errors import ExportError, UsageError
from attngraft.export.predict import WRITERS, Prediction, Predictor, _activated, open_model
from attngraft.export.run import Target, export_run
from attngraft.tasks.task import Serving
from attngraft.training.loop import train
from attngraft.training.recipe import recipe_from_dict
from tests.export.runs import CLASSES, make_run

TINY = {"patch_size": 8, "depth": 1, "embed_dim": 24, "num_heads": 2}
SHORT = {"schedule": {"epochs": 1}, "train": {"batch_size": 8}}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of every kind that people have: other sizes, modes, a turned one."""
    folder = tmp_path_factory.mktemp("photos")
    stream = np.random.default_rng(0)
    for place in range(24):
        height, width = stream.integers(20, 60, size=2)
        pixels = stream.integers(0, 256, size=(height, width, 3), dtype=np.uint8)
        image = Image.fromarray(pixels).convert(("RGB", "L", "RGBA", "CMYK", "P")[place % 5])
        exif = Image.Exif()
        exif[0x0112] = 6 if place % 3 == 0 else 1
        path = folder / ("even" if place % 2 == 0 else "ódd") / f"{place}.{'tif' if image.mode == 'CMYK' else 'png'}"
        path.parent.mkdir(exist_ok=True)
        image.save(path, exif=exif)
    return folder


def assert_as_evaluated(run: Path, model: Path, root: Path, *, several: bool = False) -> None:
    with np.load(run / "predictions.npz") as saved:
        names, logits = saved["name"], torch.from_numpy(saved["logits"])
    expected = (logits.sigmoid() if several else logits.softmax(-1)).numpy()
    found = list(open_model(model, trust_code=True)([root / name for name in names], batch=5))
    assert [Path(prediction.image) for prediction in found] == [root / name for name in names]
    assert len(found) > 3
    for prediction, probabilities in zip(found, expected, strict=True):
        assert prediction.probabilities is not None
        np.testing.assert_allclose(prediction.probabilities, probabilities, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("to", [("torch",), pytest.param(("pt2", "onnx"), marks=pytest.mark.slow)])
def test_predictions_are_those_of_the_runs_evaluation(tmp_path: Path, photos: Path, to: tuple[Target, ...]) -> None:
    host = {"name": "vit_tiny_patch16_224", "args": {"img_size": 32, **TINY}}
    task = {"name": "classification", "data": {"source": str(photos), "val_fraction": 0.4}}
    recipe = recipe_from_dict({"host": host, "graft": "cb + horizontal", "task": task, **SHORT})
    train(recipe, tmp_path / "run")
    export_run(tmp_path / "run", tmp_path / "out", to=to, fold=True)
    for model in ["run", "out"] if "torch" in to else ["out/model.pt2", "out/model.onnx"]:
        assert_as_evaluated(tmp_path / "run", tmp_path / model, photos)


def test_several_labels(tmp_path: Path, photos: Path) -> None:
    files = sorted(path.relative_to(photos).as_posix() for path in photos.glob("*/*"))
    rows = [f"{file},{'red;blue' if place % 2 else 'red'}" for place, file in enumerate(files)]
    (photos / "labels.csv").write_text("\n".join(["path,labels", *rows]) + "\n", encoding="utf-8")
    host = {"name": "vit_tiny_patch16_224", "args": {"img_size": 32, **TINY}}
    task = {"name": "multilabel", "data": {"source": str(photos / "labels.csv"), "val_fraction": 0.4}}
    task["metrics"] = {"threshold": 0.3}
    train(recipe_from_dict({"host": host, "graft": "cb_s", "task": task, **SHORT}), tmp_path / "run")
    made = export_run(tmp_path / "run", tmp_path / "out")
    assert_as_evaluated(tmp_path / "run", tmp_path / "out", photos, several=True)
    assert made.manifest.serving.threshold == 0.3
    assert "with a probability of at least 0.3" in (tmp_path / "out" / "README.md").read_text()


def test_unreadable_images_say_why_and_do_not_stop_the_others(tmp_path: Path) -> None:
    export_run(make_run(tmp_path / "run"), tmp_path / "out")
    noise = np.random.default_rng(0).integers(0, 256, size=(20, 20, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "good.png")
    (tmp_path / "empty.png").touch()
    (tmp_path / "cut.png").write_bytes((tmp_path / "good.png").read_bytes()[:60])
    names = [str(tmp_path / f"{name}.png") for name in ("good", "empty", "missing", "cut", "good")]
    found = list(open_model(tmp_path / "out")(names, batch=2))
    assert [prediction.image for prediction in found] == names
    assert [prediction.error is None for prediction in found] == [True, False, False, False, True]
    assert "No such file" in str(found[2].error)
    assert np.array_equal(found[0].probabilities, found[4].probabilities)
    assert found[0].probabilities.sum() == pytest.approx(1)


def test_what_is_no_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "weights.pth").touch()
    for name, message in [("nothing", "does not exist"), ("weights.pth", "not a model")]:
        with pytest.raises(UsageError, match=message):
            open_model(tmp_path / name)
    with pytest.raises(ExportError, match="not an exported model"):
        open_model(tmp_path)


def test_a_program_of_somebody_else_is_refused(tmp_path: Path) -> None:
    exported = torch.export.export(torch.nn.Linear(3, 2), (torch.randn(2, 3),))
    torch.export.save(exported, tmp_path / "other.pt2")
    with pytest.raises(UsageError, match=r"other\.pt2: torch runs code that a \.pt2 file contains; if you trust"):
        open_model(tmp_path / "other.pt2")
    with pytest.raises(ExportError, match="classes and preprocessing are unknown"):
        open_model(tmp_path / "other.pt2", trust_code=True)


def test_finding_images(tmp_path: Path) -> None:
    for name in ("b/10.jpg", "b/2.PNG", "b/.hidden.jpg", "b/notes.txt", "a[1].jpg", "c.jpg"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    here = str(tmp_path)
    assert find_images([f"{here}/b"]) == [f"{here}/b/2.PNG", f"{here}/b/10.jpg"]
    assert find_images([f"{here}/**/*"]) == [f"{here}/a[1].jpg", f"{here}/b/2.PNG", f"{here}/b/10.jpg", f"{here}/c.jpg"]
    assert find_images([f"{here}/a[1].jpg", "gone.jpg"]) == [f"{here}/a[1].jpg", "gone.jpg"]
    listed = io.BytesIO(b"x y.jpg\r\n\n\xff.jpg\n")
    assert find_images(["c.jpg", "-"], stdin=listed) == ["c.jpg", "x y.jpg", "\udcff.jpg"]
    (tmp_path / "none").mkdir()
    for argument, message in [(f"{here}/none", "no images in this folder"), (f"{here}/*.bmp", "no image matches")]:
        with pytest.raises(UsageError, match=message):
            find_images([argument])
    with pytest.raises(UsageError, match="standard input is empty"):
        find_images(["-"], stdin=io.BytesIO(b"\n"))
    with pytest.raises(UsageError, match="zero byte"):
        find_images(["-"], stdin=io.BytesIO(b"a.jpg\0b.jpg\0"))
    with pytest.raises(UsageError, match="an input is empty"):
        find_images([""])
    assert find_images([9000 * "x"]) == [9000 * "x"]  # cannot be read, which is reported as for other files


def written(form: str, *, threshold: float | None = None, top: int | None = None) -> str:
    serving = Serving(kind="images", input={}, activation="softmax", classes=tuple(CLASSES[:3]), threshold=threshold)
    file = io.BytesIO()
    answers = WRITERS[form](file, serving, top=top)  # type: ignore[index]
    answers.begin()
    answers.add(Prediction(image='a, "b".jpg', probabilities=np.array([0.2, 0.7, 0.5], dtype=np.float32)))
    answers.add(Prediction(image="\udcff.jpg", error="no such file"))
    answers.end()
    return file.getvalue().decode("utf-8", "surrogateescape")


def test_csv() -> None:
    rows = list(csv.reader(io.StringIO(written("csv", top=2))))
    assert rows[0] == ["image", "label", "probability", "label_2", "probability_2", "error"]
    assert rows[1] == ['a, "b".jpg', "bee", "0.7", "café | crème", "0.5", ""]
    assert rows[2] == ["\udcff.jpg", "", "", "", "", "no such file"]
    rows = list(csv.reader(io.StringIO(written("csv", threshold=0.5))))
    assert rows[0] == ["image", "labels", "p:ant", "p:bee", "p:café | crème", "error"]
    assert rows[1] == ['a, "b".jpg', "bee;café | crème", "0.2", "0.7", "0.5", ""]


def test_json() -> None:
    lines = [json.loads(line) for line in written("jsonl").splitlines()]
    assert lines[0] == {"image": 'a, "b".jpg', "label": "bee", "probability": 0.7}
    assert lines[1] == {"image": "\udcff.jpg", "error": "no such file"}
    whole = json.loads(written("json", threshold=0.6, top=1))
    assert whole["threshold"] == 0.6
    assert whole["images"][0] == {"image": 'a, "b".jpg', "labels": ["bee"], "probabilities": {"bee": 0.7}}
    assert json.loads(written("json", top=9))["images"][0]["top"][2] == {"label": "ant", "probability": 0.2}


def test_a_model_with_another_number_of_outputs_than_inputs_is_an_error() -> None:
    serving = Serving(kind="images", input={}, activation="softmax", classes=("a", "b"))
    predictor = Predictor(serving, lambda inputs: np.zeros((2 * len(inputs), 2)))
    with pytest.raises(ExportError, match="returned 6 outputs for 3 inputs"):
        list(predictor(["x", "y", "z"]))


def test_outputs_that_are_no_numbers_are_an_error() -> None:
    serving = Serving(kind="images", input={}, activation="softmax", classes=("a", "b"))
    with pytest.raises(ExportError, match="outputs are not numbers"):
        _activated(torch.tensor([[float("nan"), 1.0]]), serving)
    assert _activated(torch.tensor([[float("-inf"), 1.0]]), serving).tolist() == [[0, 1]]
