"""Downloaded test sets: layouts are checked, labels and choices are timm's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from timm.data import ImageNetInfo
from timm.data.real_labels import RealLabelsImagenet

from attngraft.errors import DataError
from attngraft.evaluation.suites import evaluate_suites, parse_suites
from attngraft.evaluation.suites.cache import read_columns
from attngraft.evaluation.suites.progress import SuiteProgress
from attngraft.tasks.images.suites.test_sets import TEST_SETS, imagenet_order, open_test_set, synsets
from attngraft.training.evaluate import trained_model
from attngraft.training.run_folder import read_run
from tests.evaluation.suites.making import run_with_images
from tests.export.runs import make_run
from tests.tasks.images.datasets import make_folder, picture

SILENT = SuiteProgress()


def timms_indices(name: str) -> list[int]:
    """From its file of synsets, by its list of all."""
    import timm.data

    lines = (Path(timm.data.__file__).parent / "_info" / f"{name}_synsets.txt").read_text().split()
    every = ImageNetInfo("imagenet-1k").label_names()
    return [every.index(line) for line in lines]


@pytest.fixture(scope="module")
def imagenet_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of ImageNet's classes, in an order that is not timm's."""
    classes = sorted(synsets(), reverse=True)
    return make_run(tmp_path_factory.mktemp("imagenet") / "run", "cb_s", classes=classes, train={"batch_size": 100})


def logits_of(run: Path, folder: Path, names: list[str]) -> np.ndarray:
    """(N, 1000), in timm's order, by another way: one image at a time, as `attngraft predict` has it."""
    from attngraft.export.predict import open_model

    record = read_run(run)
    order = [record.facts["classes"].index(name) for name in synsets()]
    predictor = open_model(run, device="cpu")
    rows = [each.probabilities for each in predictor([folder / name for name in names])]
    assert trained_model(record, "last") is not None
    return np.log(np.stack(rows))[:, order]  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "timms"), [("a", "imagenet_a"), ("r", "imagenet_r")])
def test_models_choose_among_the_200_classes(imagenet_run: Path, tmp_path: Path, name: str, timms: str) -> None:
    indices = timms_indices(timms)
    folder = make_folder(tmp_path / "set", {synsets()[index]: 1 for index in indices})
    (found,) = evaluate_suites(imagenet_run, parse_suites([f"{name}={folder}"]), progress=SILENT)
    kept = read_columns(imagenet_run / "evaluation" / found.groups[0].files[0])
    logits = logits_of(imagenet_run, folder, kept["name"].tolist())
    chosen = np.array(indices)[logits[:, indices].argmax(1)]
    target = np.array([synsets().index(each.split("/")[0]) for each in kept["name"]])
    np.testing.assert_array_equal(kept["score"], chosen == target)
    assert found.groups[0].metrics["top1"].mean == pytest.approx((chosen == target).mean())
    classes = np.array([found.classes[index] for index in kept["predicted"]])
    assert (classes == np.array(synsets())[chosen]).all()
    assert any(f"of {TEST_SETS[name].title}'s" in note for note in found.notes)


def test_real_is_what_timm_counts(imagenet_run: Path, tmp_path: Path) -> None:
    names = [f"ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, 61)]
    for number, name in enumerate(names):
        picture(number, size=(20, 20)).save(tmp_path / name)
    (found,) = evaluate_suites(imagenet_run, parse_suites([f"real={tmp_path}"]), progress=SILENT)
    judge = RealLabelsImagenet([f"ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, 50_001)])
    judge.add_result(torch.from_numpy(logits_of(imagenet_run, tmp_path, names)))
    assert found.examples == len(judge.is_correct[1]) < 60
    assert 100 * found.groups[0].metrics["real"].mean == pytest.approx(judge.get_accuracy(1))
    kept = read_columns(imagenet_run / "evaluation" / found.groups[0].files[0])
    assert kept["score"].tolist() == [float(each) for each in judge.is_correct[1]]
    assert any("have no label in ReaL and are skipped" in note for note in found.notes)


def test_v2_folders_are_numbers(tmp_path: Path) -> None:
    make_folder(tmp_path, {str(index): 1 for index in range(1000)}, size=(2, 2))
    found = open_test_set("v2", tmp_path)
    assert [int(name.split("/")[0]) for name in found.images.names] == found.images.labels.tolist()
    assert sorted(found.images.labels.tolist()) == list(range(1000))
    assert found.notes == (f"{tmp_path} contains 1,000 of ImageNet-V2's 10,000 images.",)


@pytest.mark.parametrize("name", TEST_SETS)
def test_without_data_it_says_what_to_download_and_how_it_lies(imagenet_run: Path, name: str) -> None:
    with pytest.raises(DataError) as told:
        evaluate_suites(imagenet_run, parse_suites([name]), progress=SILENT)
    said = str(told.value)
    assert "https://" in said and "unpack it as FOLDER/" in said and f"--suite {name}=FOLDER" in said
    assert f"{TEST_SETS[name].images:,} images" in said


def test_layouts_are_checked(imagenet_run: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder; download imagenet-a.tar"):
        open_test_set("a", tmp_path / "nowhere")
    some = timms_indices("imagenet_a")[:3]
    make_folder(tmp_path / "some", {**{synsets()[index]: 1 for index in some}, "kittens": 1})
    with pytest.raises(DataError) as told:
        evaluate_suites(imagenet_run, parse_suites(["a"]), data=str(tmp_path / "some"), progress=SILENT)
    assert "197 of 200 class folders are missing or empty" in str(told.value)
    assert "1 folders are not among its classes (kittens" in str(told.value)
    assert "natural-adv-examples" in str(told.value)
    whole = make_folder(tmp_path / "whole", {synsets()[index]: 1 for index in timms_indices("imagenet_a")}, size=(2, 2))
    assert len(open_test_set("a", whole).images) == 200
    (whole / "README.txt").write_text("no image")
    assert len(open_test_set("a", whole).images) == 200
    picture(0).save(whole / "beside.png")
    with pytest.raises(
        DataError, match=r"whole: 1 image outside the class folders \(beside.png\).*; move them into the folder"
    ):
        open_test_set("a", whole)
    with pytest.raises(DataError, match="no file is named like ImageNet's validation images"):
        open_test_set("real", tmp_path / "some")


def test_models_of_other_classes_are_refused(tmp_path: Path) -> None:
    run = run_with_images(tmp_path / "run")
    with pytest.raises(
        DataError, match=r"3 classes \(cat, dog, owl, ...\), but this suite has images of ImageNet's 1000"
    ):
        evaluate_suites(run, parse_suites(["sketch"]), progress=SILENT)
    with pytest.raises(DataError, match="not with ImageNet's names"):
        imagenet_order([f"class {index}" for index in range(1000)], run=run)
    assert imagenet_order(sorted(map(str, range(1000))), run=run)[10] == sorted(map(str, range(1000))).index("10")
