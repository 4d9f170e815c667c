"""A trained host with grafts that start as the identity: the run's own evaluation before training is the host's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attngraft.errors import TrainingError
from attngraft.mechanisms.registry import graft_types
from attngraft.training.evaluate import evaluate_run
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from attngraft.training.recipe import Recipe, recipe_from_dict
from tests.training.test_start import bitwise, identity_forms, placed

LEVIT = {"img_size": 32, "stem_type": "s8", "embed_dim": [16, 24], "key_dim": 4, "depth": [1, 1], "num_heads": [2, 3]}
HOSTS: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {"img_size": 8, "patch_size": 4, "embed_dim": 48, "depth": 2, "num_heads": 3},
    "swin_tiny_patch4_window7_224": {
        "img_size": 16,
        "patch_size": 2,
        "window_size": 4,
        "embed_dim": 12,
        "depths": [2, 1],
        "num_heads": [2, 4],
    },
    "levit_128s": LEVIT,
}
MARKS = dict.fromkeys(("swin_tiny_patch4_window7_224", "levit_128s"), pytest.mark.product)


def recipe_of(host: str, *, graft: str | None = None, weights: Path | None = None) -> Recipe:
    start = {} if weights is None else {"weights": str(weights)}
    return recipe_from_dict(
        {
            "host": {"name": host, "args": HOSTS[host], **start},
            "graft": None if graft is None else placed(graft, host),
            "task": {"name": "classification", "data": {"source": "digits"}, "augment": {"padding": 0}},
            "optimizer": {"lr": 1e-2},
            "schedule": {"epochs": 3, "warmup_epochs": 1},
            "train": {"batch_size": 32, "eval_batch_size": 360},
        }
    )


class NotOneUpdate(Silent):
    """Ends a run when it would begin to train."""

    def on_step(self, *, step: int, epoch: int, loss: float, lr: float) -> None:
        raise TrainingError("stopped by the test")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """By a host's name, a run of it as it is, which has learned something."""
    folder = tmp_path_factory.mktemp("hosts")

    def run(host: str) -> Path:
        if not (folder / host).exists():
            train(recipe_of(host), folder / host, progress=Silent())
        return folder / host

    return run


def before_training(host: str, graft: str, weights: Path, folder: Path) -> dict[str, float]:
    """What a run says of itself before its first update."""
    with pytest.raises(TrainingError, match="stopped by the test"):
        train(recipe_of(host, graft=graft, weights=weights), folder, progress=NotOneUpdate())
    metrics: dict[str, float] = json.loads((folder / "start.json").read_text())["metrics"]
    return metrics


@pytest.mark.parametrize(
    "host",
    [pytest.param(name, marks=MARKS.get(name, ())) for name in HOSTS],
)
@pytest.mark.slow
def test_every_identity_form_scores_what_the_host_scores(
    trained: Callable[[str], Path], tmp_path: Path, host: str
) -> None:
    known = {f"val/{name}": value for name, value in evaluate_run(trained(host), weights="best").metrics.items()}
    assert known["val/top1"] > 0.2  # of ten classes: it is no chance
    forms = identity_forms()
    assert {"cb_s", "horizontal(identity=true)", "vertical(identity=true)", "bisa(identity=true)"} <= set(forms)
    for graft in forms:
        found = before_training(host, graft, trained(host), tmp_path / graft)
        assert found.keys() == known.keys()
        if bitwise(graft_types()[graft.partition("(")[0]]):
            assert found == known, graft
        else:  # an explicit softmax instead of a fused one: the losses' last digits, and no prediction
            assert found == pytest.approx(known, rel=1e-5), graft
            assert found["val/top1"] == known["val/top1"], graft


def test_a_form_that_is_no_identity_scores_something_else(trained: Callable[[str], Path], tmp_path: Path) -> None:
    host = "vit_tiny_patch16_224"
    known = evaluate_run(trained(host), weights="best").metrics
    assert before_training(host, "cb", trained(host), tmp_path)["val/loss"] != pytest.approx(known["loss"], rel=1e-3)
