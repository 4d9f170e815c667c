"""Label maps: where they lie, what they hold, and what is said where they do not."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest
import torch

from attngraft.errors import DataError
from attngraft.tasks.token_labeling.maps import LabelMaps, save_label_map

NAMES = ["train/n01/n01_18.JPEG", "train/n02/a.b.png"]


def fill(folder: Path) -> LabelMaps:
    maps = LabelMaps(folder, classes=7)
    for name in NAMES:
        save_label_map(torch.randn(7, 3, 4), maps.file(name))
    return maps


def test_files_are_named_by_class_and_image(tmp_path: Path) -> None:
    maps = LabelMaps(tmp_path, classes=7)
    assert [maps.file(name) for name in NAMES] == [tmp_path / "n01" / "n01_18.pt", tmp_path / "n02" / "a.pt"]


def test_the_best_of_each_place(tmp_path: Path) -> None:
    scores = torch.randn(7, 3, 4)
    save_label_map(scores, tmp_path / "x" / "1.pt")
    found = LabelMaps(tmp_path, classes=7).read("x/1.png")
    assert found.shape == (2, 5, 3, 4)
    values, classes = scores.topk(6, dim=0)
    assert torch.equal(found[1].long(), classes[:5])
    torch.testing.assert_close(found[0], (values - values[5])[:5].half())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_numbers_of_classes_are_exact(tmp_path: Path, dtype: torch.dtype) -> None:
    """bfloat16 knows no 301, float16 no 2,049."""
    for count, classes in ((1000, [301, 777, 999]), (5000, [2049, 2999, 4999])):
        scores = torch.zeros(count, 1, 1, dtype=dtype)
        scores[classes] = torch.tensor([3.0, 2.0, 1.0], dtype=dtype).view(3, 1, 1)
        save_label_map(scores, tmp_path / "1.pt", best=3)
        found = LabelMaps(tmp_path.parent, classes=count).read(f"{tmp_path.name}/1.png")
        assert found[1].flatten().tolist() == classes
        assert found[0].flatten().tolist() == [3.0, 2.0, 1.0]


def test_scores_below_zero_are_not_below_those_that_are_left_out(tmp_path: Path) -> None:
    """A reader takes those for 0."""
    scores = torch.randn(7, 3, 4) - 20
    save_label_map(scores, tmp_path / "1.pt", best=3)
    values, classes = LabelMaps(tmp_path.parent, classes=7).read(f"{tmp_path.name}/1.png").float()
    best = scores.topk(4, dim=0)
    assert torch.equal(classes.long(), best.indices[:3])
    torch.testing.assert_close(values, best.values[:3] - best.values[3], rtol=1e-2, atol=1e-2)
    assert (values >= 0).all()


def test_all_are_there(tmp_path: Path) -> None:
    maps = fill(tmp_path)
    maps.check(NAMES)
    maps.check([*NAMES, NAMES[0]])  # the same image again
    with pytest.raises(
        DataError, match=r"1 of 3 training images have no label map \(first: .*n02/c\.pt\); maps must be in"
    ):
        maps.check([*NAMES, "train/n02/c.png"])
    with pytest.raises(
        DataError, match=r"n02/a\.pt: is the map of two images, train/n02/a\.b\.png and train/n02/a\.jpg"
    ):
        maps.check([*NAMES, "train/n02/a.jpg"])
    with pytest.raises(DataError, match=r"task\.token_labels\.maps: .*nowhere is not a folder; unpack"):
        LabelMaps(tmp_path / "nowhere", classes=7).check(NAMES)


def test_what_is_no_map(tmp_path: Path) -> None:
    maps = fill(tmp_path)
    file = maps.file(NAMES[0])
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(DataError, match=rf"{re.escape(str(file))}: cannot be read as a label map"):
        maps.read(NAMES[0])
    torch.save({"scores": torch.zeros(2)}, file)
    with pytest.raises(DataError, match=r"must be a dense tensor, got dict"):
        maps.read(NAMES[0])
    torch.save(torch.zeros(3, 5, 2, 2), file)
    with pytest.raises(DataError, match=r"got \(3, 5, 2, 2\)"):
        maps.read(NAMES[0])
    save_label_map(torch.arange(9.0).view(9, 1, 1), file)
    with pytest.raises(DataError, match="contains class 8, but the data have 7 classes; use maps"):
        maps.read(NAMES[0])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (torch.zeros(2, 5, 2, 2).to_sparse(), "must be a dense tensor, got another kind of tensor"),
        (torch.zeros(2, 5, 2, 2, device="meta"), "must contain all its numbers"),
        (torch.zeros(2, 5, 2, 2, dtype=torch.complex64), "must contain all its numbers, as float16 or float32"),
        (torch.zeros(1, 1, 1, 1).expand(2, 2, 9999, 9999), "must contain all its numbers"),
        (torch.full((2, 5, 2, 2), torch.nan), "scores must be finite, and classes whole numbers"),
        (torch.full((2, 5, 2, 2), 0.5), "scores must be finite, and classes whole numbers"),
        (torch.full((2, 1, 2, 2), -1.0), "contains class -1, but the data have 7 classes"),
        (torch.zeros(2, 5, 2, 2), "contains a class twice at one place"),
    ],
)
def test_maps_with_other_contents_are_refused(tmp_path: Path, content: torch.Tensor, message: str) -> None:
    maps = fill(tmp_path)
    torch.save(content, maps.file(NAMES[0]))
    with pytest.raises(DataError, match=rf"{re.escape(str(maps.file(NAMES[0])))}: .*{message}"):
        maps.read(NAMES[0])


def test_nothing_is_run_from_a_file(tmp_path: Path) -> None:
    maps, ran = fill(tmp_path), tmp_path / "ran"

    class Harmful:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (str(ran),)

    maps.file(NAMES[0]).write_bytes(pickle.dumps(Harmful()))
    with pytest.raises(DataError, match="cannot be read as a label map"):
        maps.read(NAMES[0])
    assert not ran.exists()
