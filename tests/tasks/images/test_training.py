"""Runs on images: an order of shards that is taken up where it stood, and images that go bad while a run is at work."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from attngraft.errors import DataError
from attngraft.tasks.images.sources.tar import TarImages
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from attngraft.training.recipe import Recipe, recipe_from_dict
from tests.tasks.images.datasets import make_folder
from tests.tasks.images.sources.test_shards import make_shards
from tests.training.toys import assert_same_outcome


def recipe(data: Mapping[str, Any], **sections: Any) -> Recipe:
    size = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2}
    return recipe_from_dict(
        {
            "host": {"name": "vit_tiny_patch16_224", "args": size},
            "task": {"name": "classification", "data": dict(data), "augment": {"crop": "resized"}},
            "schedule": {"epochs": 3},
            "train": {"batch_size": 8, "save_every": 1} | sections,
        }
    )


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_stream_of_shards_goes_on_where_it_stood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Cut off in the middle of the second epoch, by what looks like a lost disk, and gone on with: the same bits."""
    make_shards(tmp_path, "birds-train", shards=4, each=12)
    make_shards(tmp_path, "birds-val", shards=1, each=6)
    data = {"source": str(tmp_path), "order": "shards", "shuffle_buffer": 10, "check": "off"}
    train(recipe(data), tmp_path / "whole", progress=Silent())
    raw, reads = TarImages.raw, []

    def lost(images: TarImages, index: int) -> Any:
        reads.append(index)
        if len(reads) > 90:
            raise DataError("the disk is gone")
        return raw(images, index)

    with monkeypatch.context() as patched:
        patched.setattr(TarImages, "raw", lost)
        with pytest.raises(DataError, match="the disk is gone"):
            train(recipe(data), tmp_path / "cut", progress=Silent())
    record = train(recipe(data, workers=workers), tmp_path / "cut", progress=Silent())
    assert record.finished
    assert_same_outcome(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize(("workers", "part"), [(0, "val"), (2, "train")])
def test_an_image_that_goes_bad_during_training_is_named(tmp_path: Path, workers: int, part: str) -> None:
    folder = make_folder(tmp_path / "data", {"train": {"a": 12, "b": 12}, "val": {"a": 4, "b": 4}}, size=(40, 40))
    made = recipe({"source": str(folder)}, workers=workers)
    train(made, tmp_path / "run", progress=Silent(), stop_after_epoch=1)
    bad = folder / part / "b" / "3.png"
    good = bad.read_bytes()
    bad.write_bytes(good[:500])
    assert f"{part}/b/3.png: " in refusal(made, tmp_path / "run"), "found before the run goes on"
    unchecked = recipe({"source": str(folder), "check": "off"}, workers=workers)
    message = refusal(unchecked, tmp_path / "unchecked")
    assert message.startswith(f"{bad}: cannot be read as an image (image file is truncated")
    assert "Traceback" not in message
    message = refusal(unchecked, tmp_path / "gone", progress=_Removing(bad, good))
    assert message == f"{bad}: cannot be opened (No such file or directory); restore or replace it"


def refusal(made: Recipe, folder: Path, progress: Silent | None = None) -> str:
    """The error that ends this run; nothing of it is kept, which would keep its loading processes."""
    try:
        train(made, folder, progress=progress or Silent())
    except DataError as error:
        return str(error)
    pytest.fail("nothing was wrong")


class _Removing(Silent):
    """Takes a file away once the run has begun."""

    def __init__(self, path: Path, content: bytes) -> None:
        self.path = path
        path.write_bytes(content)

    def on_step(self, **_: Any) -> None:
        self.path.unlink(missing_ok=True)
