"""The small LeViT's recipes trained to their end, alone and from a teacher, as their comments say, with BiSA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attngraft.training.evaluate import evaluate_run
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from attngraft.training.recipe import Recipe, load_recipe, recipe_from_dict, recipe_to_dict
from attngraft.yaml_config import merge

RESNET = {"name": "resnet10t", "args": {"pretrained_cfg_overlay": {"input_size": [3, 32, 32]}}}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A few images of 32 pixels as an .npz, three classes of one color each."""
    random, arrays = np.random.default_rng(0), {}
    for part, count in (("train", 129), ("test", 60)):
        labels = np.arange(count) % 3
        pixels = random.integers(0, 120, (count, 32, 32, 3))
        pixels[np.arange(count), :, :, labels] += 120
        arrays |= {f"x_{part}": pixels.astype(np.uint8), f"y_{part}": labels}
    np.savez(tmp_path / "images.npz", **arrays)
    return tmp_path / "images.npz"


def recipe(name: str, images: Path, **changes: Any) -> Recipe:
    """The packaged recipe as it is, for one epoch."""
    few = {"task": {"data": {"source": str(images)}}, "schedule": {"epochs": 1}, "train": {"threads": 1}}
    return recipe_from_dict(merge(merge(recipe_to_dict(load_recipe(name)), few), changes))


@pytest.mark.slow
def test_the_small_levit_learns_with_bisa_alone_and_from_a_teacher(images: Path, tmp_path: Path) -> None:
    plain = recipe_to_dict(recipe("cpu-levit", images)) | {"host": RESNET}
    train(recipe_from_dict(plain), tmp_path / "teacher", progress=Silent())
    distill = {"teacher": {"weights": str(tmp_path / "teacher")}}
    alone = recipe("cpu-levit", images, graft="bisa@first:2")
    taught = recipe("cpu-levit-distilled", images, graft="bisa@first:2", distill=distill)
    records = {
        name: train(each, tmp_path / name, progress=Silent()) for name, each in (("alone", alone), ("taught", taught))
    }
    for name, record in records.items():
        assert record.finished
        assert len(record.epochs) == 1
        found = evaluate_run(tmp_path / name)
        assert found.metrics["top1"] == pytest.approx(record.epochs[0]["val/top1"])
    row = records["taught"].epochs[0]
    assert records["taught"].teacher["input_size"] == [3, 32, 32]
    assert row["train/loss"] == pytest.approx(row["train/label_loss"] + 5 * row["train/teacher_loss"], rel=1e-4)
    assert row["train/teacher_loss"] > 0
