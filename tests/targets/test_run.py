"""Opening a run: the origin of its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from attngraft.saved.manifest import Origin
from attngraft.targets.run import open_run
from attngraft.training.build import build_model
from attngraft.training.checkpoint import save_weights
from attngraft.training.run_folder import RunFolder, read_run
from tests.export.runs import make_run

METRICS = {"top1": 0.5, "loss": 1.5}


@pytest.mark.parametrize(
    ("counters", "sums", "epoch", "metrics"),
    [
        ({}, {}, 1, METRICS),
        ({"step": 3}, {"loss": 2.0}, 2, {}),
        ({"epoch": 0, "step": 3}, {}, 1, METRICS),  # train.eval_every
        ({"epoch": 0, "step": 4}, {"loss": 2.0}, 1, {}),
        ({"epoch": 0, "step": 0, "rows": []}, {}, 0, {}),
    ],
)
def test_the_last_weights_have_metrics_only_if_they_were_evaluated(
    tmp_path: Path, counters: dict[str, Any], sums: dict[str, float], epoch: int, metrics: dict[str, float]
) -> None:
    run = RunFolder(make_run(tmp_path / "run"))
    run.finished.unlink()
    content = torch.load(run.last, weights_only=True)
    torch.save({**content, "sums": [sums], "counters": {**content["counters"], **counters}}, run.last)
    assert origin(run, "last") == Origin(run="run", weights="last", epoch=epoch, seed=0, metrics=metrics)


@pytest.mark.parametrize(
    ("facts", "epoch", "metrics"),
    [
        ({"epoch": 1, "metric": "val/top1", "value": 0.5}, 1, METRICS),
        ({"epoch": 1, "metric": "val/top1", "value": 0.4}, 1, {}),
        ({"epoch": 1, "metric": ["val/top1"], "value": 0.5}, 1, {}),
        ({"epoch": 1, "step": 7, "metric": "val/top1", "value": 0.5}, 1, {}),
        ({"epoch": 2, "metric": "val/top1", "value": 0.6}, 2, {}),
        ({}, None, {}),
    ],
)
def test_the_best_weights_have_the_metrics_that_they_were_saved_with(
    tmp_path: Path, facts: dict[str, Any], epoch: int | None, metrics: dict[str, float]
) -> None:
    run = RunFolder(make_run(tmp_path / "run"))
    record = read_run(run.path)
    save_weights(run.best(), build_model(record.recipe, record.model_args).state_dict(), facts)
    assert origin(run, "best") == Origin(run="run", weights="best", epoch=epoch, seed=0, metrics=metrics)


def origin(run: RunFolder, weights: Any) -> Origin:
    return open_run(run.path, weights, unfinished=True).manifest.origin
