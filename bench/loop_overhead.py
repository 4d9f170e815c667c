"""Overhead of the training loop, relative to a bare PyTorch loop with the same model, batches and optimizer.

    python bench/loop_overhead.py --out benchmarks/loop_overhead.json

A sample is an epoch on the embedded digits, timed from the end of its first update to the end of its last. This
excludes set-up, evaluation and files, which a bare loop does not have. Both use the same examples in the same order
from the same initial weights, so their losses must agree before timing. Upper limit: 1.03.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from attngraft.bench.command import finish, options
from attngraft.bench.result import check_outputs, current_setting, measurement
from attngraft.timing import paired_ratio
from attngraft.training.build import build_model, build_task, model_data_config
from attngraft.training.loading import TrainOrder
from attngraft.training.loop import train
from attngraft.training.progress import Progress
from attngraft.training.recipe import Recipe, recipe_from_dict

BAR = 1.03
RECIPE = {
    "host": {"name": "vit_tiny_patch16_224", "args": {"img_size": 32, "patch_size": 4, "depth": 4}},
    "task": {
        "name": "classification",
        "data": {"source": "digits"},
        "augment": {"crop": "center"},
        "loss": {"smoothing": 0.0},
    },
    "optimizer": {"name": "adamw", "lr": 1e-3, "weight_decay": 0.0},
    "schedule": {"name": "constant", "epochs": 1, "warmup_epochs": 0},
    "train": {"batch_size": 64},
}


class Laps:
    """A clock that only advances inside an epoch, from the end of its first update to the end of its last."""

    def __init__(self) -> None:
        self.total = 0.0
        self.losses: list[float] = []

    def start(self) -> None:
        self.losses = []

    def update(self, loss: float) -> None:
        """Record the end of an update."""
        now = time.perf_counter()
        if self.losses:
            self.total += now - self._last
        self._last = now
        self.losses.append(loss)

    def __call__(self) -> float:
        return self.total


class LapProgress(Progress):
    """Callback that records the updates of a run."""

    def __init__(self, laps: Laps) -> None:
        self._laps = laps

    def on_start(self, total_steps: int, *, done_steps: int, epochs: int, steps_per_epoch: int) -> None:
        self._laps.start()

    def on_step(self, *, step: int, epoch: int, loss: float, lr: float) -> None:
        self._laps.update(loss)


def attngraft_epoch(recipe: Recipe, laps: Laps) -> None:
    """Run an epoch as `attngraft train` does."""
    with tempfile.TemporaryDirectory() as folder:
        train(recipe, Path(folder) / "run", progress=LapProgress(laps))


class BareLoop:
    """Run the same epoch as a plain script."""

    def __init__(self, recipe: Recipe, laps: Laps) -> None:
        self.recipe, self.laps = recipe, laps
        self.task = build_task(recipe)
        data = self.task.load(model_data_config=model_data_config(recipe))
        self.split, self.model_args = data.train, data.model_args
        order = TrainOrder(split=self.split, seed=recipe.seed, batch_size=recipe.train.batch_size)
        self.keys = list(order.stream(epoch=0, step=0, epochs=1))

    def __call__(self) -> None:
        split: Any = self.split
        model = build_model(self.recipe, self.model_args).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=self.recipe.lr, weight_decay=0.0)
        loader = DataLoader(split, batch_sampler=self.keys, collate_fn=split.collate)
        self.laps.start()
        for batch in loader:
            optimizer.zero_grad()
            (images,), _ = self.task.to_model(batch)
            loss = nn.functional.cross_entropy(model(images), batch["target"])
            loss.backward()
            optimizer.step()
            self.laps.update(loss.item())


def main() -> int:
    parser = options("Time of attngraft's training loop, relative to a bare PyTorch loop.", pairs=30)
    parser.add_argument("--threads", type=int, default=None, help="CPU threads of torch; torch's own choice by default")
    parser.add_argument("--depth", type=int, default=4, help="blocks of the host")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    setting = current_setting()
    RECIPE["host"]["args"]["depth"] = arguments.depth
    recipe = recipe_from_dict(RECIPE)
    laps = Laps()
    bare = BareLoop(recipe, laps)
    bare()
    expected = torch.tensor(laps.losses)
    attngraft_epoch(recipe, laps)
    check_outputs(torch.tensor(laps.losses), expected, what="losses of an epoch", rtol=1e-4, atol=1e-5)
    ratio = paired_ratio(bare, lambda: attngraft_epoch(recipe, laps), pairs=arguments.pairs, warmup=0, clock=laps)
    result = setting.result(
        "An epoch of updates, attngraft's loop over a bare PyTorch loop",
        settings={"recipe": RECIPE, "updates": len(bare.keys) - 1, "pairs": arguments.pairs},
        measurements=(measurement("training loop", ratio, bar=BAR),),
    )
    return finish(result, out=arguments.out, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
