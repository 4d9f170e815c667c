"""What models answer about labelled images, against what they are seen to say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from attngraft.analysis import confusion, sides
from attngraft.analysis.predictions import predictions_of_all
from attngraft.analysis.request import AnalysisRequest
from attngraft.errors import UsageError
from attngraft.export.predict import open_model
from attngraft.export.run import export_run
from attngraft.results.analysis import Pictures
from attngraft.targets.handle import ModelHandle, open_handle
from attngraft.targets.images import ImageSet, images_from_data
from attngraft.training.run_folder import Judged
from tests.analysis.requests import image_set, make_request, rows_of, run_and_check, vit
from tests.export.runs import make_run

DATA = ("ant", "bee")
TRAINED = ("cat", "bee", "ant")  #: another order, and one class that the data have not


@pytest.fixture
def insects(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for part in ("train", "val"):
        for name in DATA:
            folder = tmp_path / "insects" / part / name
            folder.mkdir(parents=True)
            for number in range(8):
                Image.fromarray(random.integers(0, 255, (20, 24, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    return tmp_path / "insects"


def test_of_a_run_and_of_an_exported_folder(insects: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "cb_s", classes=TRAINED)
    export_run(make_run(tmp_path / "other", classes=TRAINED), tmp_path / "taken")
    subjects = (open_handle(str(run)), open_handle(str(tmp_path / "taken")))
    seen: list[int] = []
    given = AnalysisRequest(
        models=subjects, image_set=images_from_data(str(insects)), limit=12, batch=5, progress=seen.append
    )
    predictions, described = predictions_of_all(given)
    assert sum(seen) == 2 * 12
    places = given.images.sample(12)
    files = [insects / given.images.names[place] for place in places]
    for where, each in zip((run, tmp_path / "taken"), predictions, strict=True):
        said = [prediction.probabilities for prediction in open_model(where)(files)]
        among = np.array([[one[2], one[1]] for one in said if one is not None])  # ant, bee
        assert each.predicted.tolist() == among.argmax(1).tolist()
        assert each.target.tolist() == [0] * 6 + [1] * 6
        assert each.classes == DATA
        assert each.names == tuple(given.images.names[place] for place in places)
    assert "12 labeled images" in described


def test_saved_answers_are_those_of_the_own_images_and_the_last_weights(insects: Path, tmp_path: Path) -> None:
    task = {"name": "classification", "data": {"source": str(insects)}}
    run = make_run(tmp_path / "run", classes=DATA, task=task)
    target = np.zeros(3, dtype=np.int64)
    np.savez(run / "predictions.npz", name=["a", "b", "c"], target=target, predicted=target)
    own = images_from_data(str(insects))
    given = AnalysisRequest(models=(open_handle(str(run)),), image_set=replace(own, user_chosen=False))
    assert predictions_of_all(given)[0][0].names == ("a", "b", "c")
    assert len(predictions_of_all(replace(given, image_set=own))[0][0].names) == 16, "somebody named these"
    best = replace(given.models[0], weights="best")
    assert len(predictions_of_all(replace(given, models=(best,)))[0][0].names) == 16
    record = given.models[0].record
    assert record is not None
    judged = Judged(weights="last", epoch=1, split="test", metrics={})  # the saved predictions are of other images
    tested = replace(given.models[0], record=replace(record, judged=judged))
    assert predictions_of_all(replace(given, models=(tested,)))[0][0].names == tuple(own.names)
    assert open_handle(str(run), weights="best").weights == "best"


def test_confusion_and_sides_of_any_models(tmp_path: Path) -> None:
    models = [vit(num_classes=2), vit(num_classes=2, depth=1)]
    given = make_request(*models, limit=10)
    matrix = run_and_check(confusion.ANALYSIS, given, tmp_path)
    changed = run_and_check(sides.ANALYSIS, given, tmp_path)
    first, second = predictions_of_all(given)[0]
    assert matrix.numbers == {
        "a: right": (first.predicted == first.target).mean(),
        "b: right": (second.predicted == second.target).mean(),
    }
    right = [each.predicted == each.target for each in (first, second)]
    assert [row["image"] for row in rows_of(changed, side="gained")] == [
        name for name, one, two in zip(first.names, *right, strict=True) if two and not one
    ]
    assert changed.numbers["gained"] + changed.numbers["lost"] > 0
    assert isinstance(changed.panels[0], Pictures)


def test_pictures_are_those_of_the_images_by_their_names() -> None:
    given = make_request(vit(num_classes=2), vit(num_classes=2, depth=1), limit=4)
    opened: list[int] = []

    def open_(place: int) -> Image.Image:
        opened.append(place)
        return image_set().open(place)

    result = sides.ANALYSIS(replace(given, image_set=replace(given.images, open=open_)))
    shown = opened[2 * 4 :]
    names = [row["image"] for row in (*rows_of(result, side="gained"), *rows_of(result, side="lost"))]
    assert [given.images.names[place] for place in shown] == names
    assert names


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": None}, "noise: these images have no labels.*--data"),
        ({"classes": ()}, "noise: these images have no labels.*--data"),
        ({"labels": np.eye(10)}, "several labels"),
        ({"classes": ("even", "odd", "none")}, "a: has 2 classes without names, but noise has 3"),
    ],
)
def test_images_that_do_not_fit(changes: dict[str, object], message: str) -> None:
    other: ImageSet = replace(image_set(), **changes)
    with pytest.raises(UsageError, match=message):
        confusion.ANALYSIS(make_request(vit(num_classes=2), image_set=other))


def test_a_model_of_other_classes(tmp_path: Path) -> None:
    subject: ModelHandle = open_handle(str(make_run(tmp_path / "run", classes=("even", "cat"))))
    with pytest.raises(UsageError, match=r"run: class odd of noise is not among .*even, cat\); use data"):
        confusion.ANALYSIS(make_request(subject))


def test_models_of_imagenet_know_its_wordnet_ids() -> None:
    model, names = vit(num_classes=1000), ("n01440764", "n01443537")
    given = make_request(model, image_set=replace(image_set(), classes=names))
    predicted = predictions_of_all(given)[0][0].predicted
    logits = model(next(given.batches(given.models[0])))[:, :2]
    assert predicted[:4].tolist() == logits.argmax(1).tolist()
