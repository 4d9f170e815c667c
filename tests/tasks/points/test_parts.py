"""Segmentation into parts: what is learned, judged and reported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attngraft.errors import DataError
from attngraft.export.predict import open_model
from attngraft.tasks.points.part_codec import PartsCodec
from attngraft.tasks.points.split import Sampling
from attngraft.training.evaluate import evaluate_run
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from attngraft.training.recipe import Recipe, recipe_from_dict
from tests.contract.task_contract import Loaded
from tests.tasks.points.shapes import CATEGORIES, PARTS, write_shapes

SIZES = {"depth": 2, "embed_dim": 48, "num_heads": 3, "num_latents": 16, "scale": 4.0, "use_category": True}
HOSTS: dict[str, dict[str, Any]] = {
    "attngraft:bixt_parts_naive": SIZES,
    "attngraft:bixt_parts_hier": {**SIZES, "neighbors": 8, "reducers": [2, 2], "decoder": [32, 32]},
}


def recipe(
    folder: Path, host: str, *, epochs: int, of: int = 128, points: int = 96, lr: float = 5e-3, **task: Any
) -> Recipe:
    """On `points` of the `of` points of each shape."""
    path = folder / "shapes.npz"
    if not path.exists():
        write_shapes(path, points=of, train=30, val=9)
    section = {"name": "point_parts", "data": {"source": str(path)}, "points": points, **task}
    return recipe_from_dict(
        {
            "host": {"name": host, "args": HOSTS[host]},
            "task": section,
            "optimizer": {"lr": lr},
            "schedule": {"epochs": epochs, "warmup_epochs": min(1, epochs - 1)},
            "train": {"batch_size": 12, "eval_batch_size": 16, "threads": 1},
        }
    )


@pytest.mark.slow
@pytest.mark.parametrize(("host", "epochs"), zip(HOSTS, (20, 12), strict=True))
def test_parts_of_composed_primitives_are_learned(host: str, epochs: int, tmp_path: Path) -> None:
    train(recipe(tmp_path, host, epochs=epochs, of=48, points=48, lr=1e-2), tmp_path / "run", progress=Silent())
    metrics = evaluate_run(tmp_path / "run").metrics
    assert metrics["instance_miou_present"] > 0.9
    assert metrics["class_miou_category"] > 0.9


def test_all_points_are_judged_and_predicted(tmp_path: Path) -> None:
    loaded = Loaded(recipe(tmp_path, "attngraft:bixt_parts_naive", epochs=1))
    records = loaded.infer(range(5))
    assert [len(row) for row in records.outputs["part"]] == [128] * 5
    assert np.asarray(records.statistics["true"]).sum(1).tolist() == [128] * 5
    sampled = Loaded(recipe(tmp_path, "attngraft:bixt_parts_naive", epochs=1, test={"judged": "sampled"}))
    assert [len(row) for row in sampled.infer(range(5)).outputs["part"]] == [96] * 5


def test_facts_chance_and_sections(tmp_path: Path) -> None:
    loaded = Loaded(recipe(tmp_path, "attngraft:bixt_parts_naive", epochs=1))
    facts, table = loaded.data.facts, loaded.table
    assert facts["parts"] == [list(parts) for parts in PARTS]
    assert sum(facts["part_points"]) == 90 * 128
    chance = loaded.task.chance(table, facts)
    assert chance is not None
    # all parts of a category are there; a third or a half of each shape's IoU is that of the most frequent part
    assert chance.values["instance_miou_present"] == chance.values["instance_miou_category"]
    assert 0.2 < chance.values["instance_miou_present"] < 0.5
    found = {name: np.asarray(table[name]) for name in table}
    [section] = loaded.task.sections([found, found], facts=facts)
    assert section.table is not None
    assert [row[0] for row in section.table.rows] == list(CATEGORIES)
    means = [float(str(row[2])) for row in section.table.rows]
    assert np.mean(means) == pytest.approx(loaded.task.measure(table, facts).values["class_miou_present"])


def test_votes_average_probabilities(tmp_path: Path) -> None:
    loaded = Loaded(recipe(tmp_path, "attngraft:bixt_parts_naive", epochs=1, test={"votes": 4}))
    calls, batch = list[int](), loaded.batch(range(3))
    loaded.model.register_forward_pre_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        loaded.task.infer(loaded.model, batch, full=False)
        loaded.task.infer(loaded.model, batch, full=True)
    assert len(calls) == 1 + 4


def test_a_category_must_be_given(tmp_path: Path) -> None:
    sampling = Sampling(points=96, sample="random", normals=False, normalize=True)
    codec = PartsCodec(sampling, classes=CATEGORIES, parts=PARTS, votes=1)
    np.save(tmp_path / "chair.npy", np.random.default_rng(0).standard_normal((100, 3)))
    file = str(tmp_path / "chair.npy")
    for raw in (file, f"chair={file}", "lamp="):
        with pytest.raises(DataError, match="give CATEGORY=FILE, with the category of the shape.*: lamp, mug, table"):
            codec.check(raw)
    with pytest.raises(DataError, match="no such file"):
        codec.check("lamp=missing.npy")
    points, category = codec.encode([f"mug={file}"])[0]
    assert (tuple(points.shape), category.tolist()) == ((1, 96, 3), [1])


def test_predictions_are_parts_of_the_points(tmp_path: Path) -> None:
    train(recipe(tmp_path, "attngraft:bixt_parts_naive", epochs=1), tmp_path / "run", progress=Silent())
    with np.load(tmp_path / "shapes.npz") as arrays:
        np.save(tmp_path / "lamp.npy", arrays["x_val"][0])
    [prediction] = open_model(tmp_path / "run", device="cpu")([f"lamp={tmp_path / 'lamp.npy'}"])
    assert len(prediction.value) == 96
    assert set(prediction.value) <= set(range(7))
