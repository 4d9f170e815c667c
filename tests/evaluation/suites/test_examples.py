"""What kept predictions are of: the examples themselves, where no file says that they changed; and of the run's classes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from attngraft.errors import DataError
from attngraft.evaluation.suites import evaluate_suites, parse_suites
from attngraft.evaluation.suites.context import open_context
from attngraft.evaluation.suites.result import SuiteRun
from attngraft.tasks.images.sources import Images
from attngraft.tasks.images.sources.base import ArrayImages
from attngraft.training.evaluate import run_target
from attngraft.training.run_folder import read_run
from tests.export.runs import VIT, make_run

CLASSES = ("cat", "dog", "owl")
PIXELS = np.random.default_rng(0).integers(0, 256, (30, 16, 16, 3)).astype(np.uint8)
LABELS = np.arange(30) % 3
pytestmark = pytest.mark.filterwarnings("ignore")


def npz(path: Path, pixels: np.ndarray, labels: np.ndarray = LABELS, classes: Sequence[str] | None = CLASSES) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    named = {} if classes is None else {"classes": np.array(classes)}
    np.savez(path, x_train=pixels[::-1], y_train=labels[::-1], x_val=pixels, y_val=labels, **named)
    return path


def run_on(data: Path, folder: Path, *, classes: Sequence[str] = CLASSES) -> Path:
    task = {"name": "classification", "data": {"source": str(data)}}
    return make_run(folder, classes=classes, host=VIT, task=task, train={"batch_size": 10, "threads": 1})


def clean(run: Path, data: Path | None = None, **more: int) -> SuiteRun:
    (found,) = evaluate_suites(run, parse_suites(["clean"]), data=None if data is None else str(data), **more)
    return found


def files(run: Path) -> list[Path]:
    return sorted((run / "evaluation").rglob("*.parquet"))


def test_other_pixels_under_the_same_names_are_evaluated_anew(tmp_path: Path) -> None:
    run = run_on(npz(tmp_path / "own.npz", PIXELS), tmp_path / "run")
    before = clean(run)
    written = files(run)[0].stat().st_mtime_ns
    assert clean(run).digest == before.digest
    assert files(run)[0].stat().st_mtime_ns == written, "the same pixels are not evaluated again"
    npz(tmp_path / "own.npz", 255 - PIXELS)
    after = clean(run)
    assert after.digest != before.digest
    assert after.groups[0].metrics["loss"].mean != before.groups[0].metrics["loss"].mean


@pytest.mark.parametrize("limit", [None, 7])
def test_files_that_are_called_alike_have_folders_of_their_own(tmp_path: Path, limit: int | None) -> None:
    """As CIFAR-C has them: the same labels, other pixels, one file each."""
    run = run_on(npz(tmp_path / "own.npz", PIXELS), tmp_path / "run")
    more = {} if limit is None else {"limit": limit}
    first = clean(run, npz(tmp_path / "clean/cifar/test.npz", PIXELS), **more)
    second = clean(run, npz(tmp_path / "foggy/cifar/test.npz", 255 - PIXELS), **more)
    assert first.groups[0].metrics["loss"].mean != second.groups[0].metrics["loss"].mean
    assert len(files(run)) == 2
    assert all(path.parent.name.endswith("-limit7") == (limit is not None) for path in files(run))


def test_labels_are_seen_too(tmp_path: Path) -> None:
    run = run_on(npz(tmp_path / "own.npz", PIXELS), tmp_path / "run")
    (choice,) = parse_suites(["clean"])
    first = open_context(run_target(read_run(run), "last"), choice).digest
    assert open_context(run_target(read_run(run), "last"), choice).digest == first
    npz(tmp_path / "own.npz", PIXELS, (LABELS + 1) % 3)
    assert open_context(run_target(read_run(run), "last"), choice).digest != first


def test_the_same_classes_in_another_order_are_refused(tmp_path: Path) -> None:
    run = run_on(npz(tmp_path / "own.npz", PIXELS), tmp_path / "run")
    other = npz(tmp_path / "order.npz", PIXELS, classes=("owl", "cat", "dog"))
    with pytest.raises(
        DataError, match=r"order.npz: its classes are owl, cat, dog, and .* the same classes in another order"
    ):
        clean(run, other)


def test_other_classes_are_refused(tmp_path: Path) -> None:
    run = run_on(npz(tmp_path / "own.npz", PIXELS), tmp_path / "run")
    with pytest.raises(DataError, match=r"the model lacks 'car'"):
        clean(run, npz(tmp_path / "other.npz", PIXELS, classes=("car", "bus", "van")))
    for index, pixels in enumerate(PIXELS):
        folder = tmp_path / "tools" / ("axe", "pen", "saw")[index % 3]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / f"{index}.png")
    with pytest.raises(DataError, match=r"tools: its classes are axe, pen, saw, .* the model lacks 'axe'"):
        clean(run, tmp_path / "tools")


def test_classes_without_names_are_their_numbers(tmp_path: Path) -> None:
    run = run_on(npz(tmp_path / "own.npz", PIXELS), tmp_path / "run")
    unnamed = npz(tmp_path / "unnamed.npz", PIXELS, classes=None)
    assert clean(run, unnamed).groups[0].metrics["loss"].mean == clean(run).groups[0].metrics["loss"].mean
    by_number = run_on(unnamed, tmp_path / "by number", classes=("0", "1", "2"))
    assert clean(by_number, tmp_path / "own.npz").examples == 30


def test_examples_are_the_same_for_hosts_of_other_sizes(tmp_path: Path) -> None:
    """Models of a study may take images of other sizes, and are compared on the same ones."""
    data = npz(tmp_path / "own.npz", PIXELS)
    (choice,) = parse_suites(["clean"])
    digests = set()
    for size in (16, 24):
        host = {**VIT, "args": {**VIT["args"], "img_size": size, "patch_size": 8}}
        task = {"name": "classification", "data": {"source": str(data)}}
        run = make_run(tmp_path / f"run{size}", classes=CLASSES, host=host, task=task, train={"batch_size": 10})
        digests.add(open_context(run_target(read_run(run), "last"), choice).digest)
    assert len(digests) == 1


def test_images_that_lie_in_no_file_are_known_by_some_of_them() -> None:
    class Made(Images):
        def __init__(self, pixels: np.ndarray) -> None:
            self.pixels, self.opened = pixels, 0
            self.names, self.labels = (
                [str(place) for place in range(len(pixels))],
                np.zeros(len(pixels), dtype=np.int64),
            )

        def open(self, index: int) -> Image.Image:
            self.opened += 1
            return Image.fromarray(self.pixels[index])

        def take(self, indices: np.ndarray, labels: np.ndarray) -> Images:
            raise NotImplementedError

    pixels = np.random.default_rng(1).integers(0, 256, (1000, 4, 4, 3)).astype(np.uint8)
    first, again, other = Made(pixels), Made(pixels.copy()), Made(255 - pixels)
    assert first.digest() == again.digest() != other.digest()
    assert first.opened == 64
    changed = pixels.copy()
    changed[501] = 0
    assert ArrayImages(changed, names=first.names, labels=first.labels).digest() != (
        ArrayImages(pixels, names=first.names, labels=first.labels).digest()
    ), "of arrays every one counts"
