"""Classification of point clouds: hosts, votes, suites, predictions; and that models learn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from attngraft.errors import ConfigError
from attngraft.export.predict import open_model
from attngraft.tasks.points.voting import mean_probabilities
from attngraft.training.evaluate import evaluate_run
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from attngraft.training.recipe import Recipe, recipe_from_dict
from tests.cli.test_eval_suites import call
from tests.contract.task_contract import Loaded
from tests.tasks.points.shapes import write_shapes

SIZES = {"depth": 2, "embed_dim": 24, "num_heads": 3, "num_latents": 8, "scale": 4.0}
HOSTS: dict[str, dict[str, Any]] = {
    "attngraft:bixt_points_naive": SIZES,
    "attngraft:bixt_points_group": {**SIZES, "neighbors": 8},
    "attngraft:bixt_points_hier": {**SIZES, "neighbors": 8, "reducers": [2, 2]},
    "attngraft:pointnet": {"widths": [16, 32, 64], "hidden": [32], "transforms": False},
    "attngraft:pointnet2": {},
    "attngraft:pointmlp": {"embed_dim": 8, "blocks": [1, 1, 1, 1], "neighbors": 8},
    "attngraft:pointmlp_elite": {"embed_dim": 8, "neighbors": 8},
}


def recipe(
    folder: Path, host: str = "attngraft:pointnet", task: dict[str, Any] | None = None, **changes: Any
) -> Recipe:
    path = folder / "shapes.npz"
    if not path.exists():
        write_shapes(path, points=128, train=11, val=4, test=6)
    section = {"name": "points", "data": {"source": str(path)}, "points": 128, **(task or {})}
    base = {
        "host": {"name": host, "args": HOSTS.get(host, {})},
        "task": section,
        "optimizer": {"lr": 1e-2},
        "schedule": {"epochs": 1, "warmup_epochs": 0},
        "train": {"batch_size": 16, "eval_batch_size": 16, "threads": 1},
    }
    return recipe_from_dict({**base, **changes})


@pytest.mark.parametrize("host", HOSTS)
def test_hosts_overfit_32_clouds(host: str, tmp_path: Path) -> None:
    loaded = Loaded(recipe(tmp_path, host, {"augment": {"scale": [1, 1], "shift": 0}, "loss": {"smoothing": 0}}))
    model, split = loaded.build().train(), loaded.data.train
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    batch = split.collate([split[0, index] for index in range(32)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(60):
        loss = loaded.task.loss(model(batch["points"]), batch)["loss"]
        if loss < 0.1:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.1


@pytest.mark.parametrize(
    ("task", "host", "message"),
    [
        (
            "points",
            "vit_tiny_patch16_224",
            "the host does not take point clouds; use --host attngraft:bixt_points_naive",
        ),
        ("points", "attngraft:pointmlp_parts", "classifies points, not clouds; .* or --task point_parts"),
        ("point_parts", "attngraft:pointnet", "classifies clouds, not points; .* or --task points"),
    ],
)
def test_hosts_of_other_inputs_are_refused(task: str, host: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        Loaded(recipe(tmp_path, host, {"name": task}))


@pytest.mark.parametrize("host", HOSTS)
def test_the_smallest_batch_trains_and_a_smaller_one_is_refused(host: str, tmp_path: Path) -> None:
    loaded = Loaded(recipe(tmp_path, host))
    least = 1 if loaded.task.refuse_batch(1, processes=1) == "" else 2
    assert loaded.task.refuse_batch(2, processes=1) == ""
    split, model = loaded.data.train, loaded.build().train()
    assert model(split.collate([split[0, index] for index in range(least)])["points"]).isfinite().all()
    if least == 2:
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            model(split.collate([split[0, 0]])["points"])


def test_votes_are_a_mean_over_scales() -> None:
    points, seen = torch.randn(2, 5, 6), list[torch.Tensor]()

    def probabilities(given: torch.Tensor) -> torch.Tensor:
        seen.append(given)
        return given[:, 0, :3]

    found = mean_probabilities(probabilities, points, votes=10)
    torch.testing.assert_close(found, torch.stack([each[:, 0, :3] for each in seen]).mean(0))
    assert torch.equal(seen[0], points)
    for each in seen[1:]:
        scale = each[..., :3] / points[..., :3]
        assert bool(((scale > 0.849) & (scale < 1.151)).all())
        assert torch.equal(each[..., 3:], points[..., 3:])
        assert scale[0, 0].unique().numel() == 3
    assert len(seen) == 10
    again = mean_probabilities(lambda given: given[:, 0, :3], points, votes=10)
    assert torch.equal(found, again)


def test_votes_are_for_final_results_only(tmp_path: Path) -> None:
    loaded = Loaded(recipe(tmp_path, task={"test": {"votes": 3}}))
    batch, calls = loaded.batch(range(4)), list[int]()
    loaded.model.register_forward_pre_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        one = loaded.task.infer(loaded.model, batch, full=False).statistics
        assert len(calls) == 1
        three = loaded.task.infer(loaded.model, batch, full=True).statistics
    assert len(calls) == 4
    logits = np.asarray(three["logits"])
    np.testing.assert_allclose(np.exp(logits).sum(1), 1, rtol=1e-5)  # logarithms of mean probabilities
    assert not np.allclose(np.asarray(one["confidence"]), np.asarray(three["confidence"]))


def test_a_run_is_evaluated_and_predicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = train(recipe(tmp_path, schedule={"epochs": 3, "warmup_epochs": 0}), tmp_path / "run", progress=Silent())
    assert set(record.facts["input"]) == {"points", "sample", "normals", "normalize"}
    metrics = evaluate_run(tmp_path / "run").metrics
    assert {"top1", "balanced_accuracy", "loss"} <= {*metrics}
    with np.load(tmp_path / "shapes.npz") as arrays:
        np.savetxt(tmp_path / "lamp.txt", arrays["x_test"][0])
    [prediction] = open_model(tmp_path / "run", device="cpu")([str(tmp_path / "lamp.txt")])
    assert prediction.probabilities is not None
    assert prediction.probabilities.sum() == pytest.approx(1, abs=1e-5)
    assert call("eval", tmp_path / "run", "--suite", "point_robustness") == 0
    shown = capsys.readouterr().out
    assert "50 % of the points" in shown
    assert "90 degrees around z" in shown
    assert call("predict", tmp_path / "run", tmp_path / "lamp.txt", "--top", 2, "--format", "json") == 0
    [found] = json.loads(capsys.readouterr().out)["inputs"]
    assert found["label"] in ("lamp", "mug", "table")
    assert len(found["top"]) == 2
    (tmp_path / "scans").mkdir()
    for number in (10, 9):
        np.save(tmp_path / "scans" / f"{number}.npy", np.random.default_rng(number).standard_normal((130, 3)))
    assert call("predict", tmp_path / "run", tmp_path / "scans", f"{tmp_path}/l*.txt", "--format", "json") == 0
    names = [Path(each["input"]).name for each in json.loads(capsys.readouterr().out)["inputs"]]
    assert names == ["9.npy", "10.npy", "lamp.txt"]
    assert call("predict", tmp_path / "run", tmp_path / "run" / "checkpoints") == 2
    assert "no file ends in .txt" in capsys.readouterr().err


def test_chance_is_the_most_frequent_class(tmp_path: Path) -> None:
    loaded = Loaded(recipe(tmp_path))
    chance = loaded.task.chance(loaded.table, loaded.data.facts)
    assert chance is not None
    assert chance.values["top1"] == pytest.approx(1 / 3)
