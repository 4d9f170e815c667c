"""A trainer that trains nothing and writes run folders as the real one does, and what else a study leaves to others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from attngraft.results.study import Cost, Interval, StudyResult
from attngraft.study.config import StudyConfig, study_from_dict
from attngraft.study.runner import Tools
from attngraft.study.throughput import Estimate, Throughput
from attngraft.tasks.task import Predictions
from attngraft.training.recipe import Recipe
from attngraft.training.run_folder import RunFolder, RunRecord, read_run

HOST = {"name": "vit_tiny_patch16_224", "args": {"img_size": 16, "patch_size": 8, "depth": 2}}
EXAMPLES = 200


def study(out: Path, **changes: Any) -> StudyConfig:
    """A small study; `changes` are keys of the study file."""
    plain = {"host": HOST, "grafts": ["cb_s", "horizontal"], "data": "digits", "seeds": 2, "epochs": 3, "out": str(out)}
    return study_from_dict({**plain, **changes})


class FakeTrainer:
    """Accuracy 0.6 for the baseline, more by `gains[spec]`; runs in `fails` raise, `stops` is interrupted half way.

    It goes on with runs that are there, and can be sent to worker processes.
    """

    def __init__(
        self,
        gains: Mapping[str, float] | None = None,
        *,
        fails: set[tuple[str, int]] = frozenset(),  # type: ignore[assignment]
        stops: tuple[str, int] | None = None,
    ) -> None:
        self.gains, self.fails, self.stops = gains or {}, fails, stops
        self.calls: list[tuple[str, int]] = []
        self.shuffled = False

    def __call__(
        self,
        recipe: Recipe,
        folder: Path,
        *,
        resume: bool,
        progress: Any,
        stop_after_epoch: int | None = None,
        downloads: Any = None,
    ) -> RunRecord:
        spec = str(recipe.graft or "none")
        self.calls.append((spec, recipe.seed))
        run = RunFolder(folder)
        run.checkpoints.mkdir(parents=True, exist_ok=True)
        rows = list(read_run(folder).epochs) if run.recipe.is_file() else []
        run.write_recipe(recipe)
        digits = {str(digit): 1000 for digit in range(10)}
        facts = {
            "source": "digits",
            "classes": list(digits),
            "sizes": {"train": 10_000, "val": 10_000},
            "counts": {"train": digits, "val": digits},
            "input": {"eval_crop_pct": 1.0},
        }
        run.write_data(model_args={"num_classes": 10}, facts=facts)
        run.environment.write_text(json.dumps({"device_name": "fake", "threads": 1, "packages": {}}))
        epochs = recipe.schedule.epochs
        if (spec, recipe.seed) in self.fails:
            raise RuntimeError("out of luck")
        progress.on_start(epochs * 2, done_steps=2 * len(rows), epochs=epochs, steps_per_epoch=2)
        for epoch in range(len(rows) + 1, (stop_after_epoch or epochs) + 1):
            if (spec, recipe.seed) == self.stops and epoch == 2:
                raise KeyboardInterrupt
            progress.on_step(step=2 * epoch, epoch=epoch, loss=1.0 / epoch, lr=0.1)
            self.during(spec, recipe.seed, epoch, folder)
            score = self._scores(spec, recipe.seed, progress=epoch / epochs)
            rows.append(
                {
                    "epoch": epoch,
                    "seconds": 1.0,
                    "train/loss": 1.0 / epoch,
                    "val/top1": float(score.mean()),
                    "val/loss": 0.5,
                }
            )
            run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
            progress.on_epoch(rows[-1])
        if len(rows) == epochs:
            score = self._scores(spec, recipe.seed, progress=1.0)
            order = np.random.default_rng(recipe.seed).permutation(EXAMPLES) if self.shuffled else np.arange(EXAMPLES)
            names = [f"digits/{index}" for index in order]
            run.write_predictions(Predictions(names=names, score=score[order], binary=True))
            run.finished.write_text("{}")
        progress.on_end(finished=len(rows) == epochs)
        return read_run(folder)

    def during(self, spec: str, seed: int, epoch: int, folder: Path) -> None:
        """What else happens in an epoch, before it is written down."""

    def _scores(self, spec: str, seed: int, *, progress: float) -> np.ndarray:
        difficulty = np.random.default_rng(7).random(EXAMPLES)
        noise = np.random.default_rng([seed, len(spec)]).normal(0, 0.02, EXAMPLES)
        return (difficulty + noise < (0.6 + self.gains.get(spec, 0.0)) * progress).astype(float)


def tools(trainer: FakeTrainer, *, reports: list[StudyResult] | None = None, epoch_seconds: float = 1.0) -> Tools:
    """Everything fake: nothing is opened, timed or drawn."""

    def paces(config: StudyConfig, benchmark: Any) -> Estimate:
        pace = Throughput(start_seconds=1.0, epoch_seconds=epoch_seconds)
        return Estimate(throughputs={variant.name: pace for variant in config.variants})

    def costs(config: StudyConfig, benchmark: Any, *, seconds: float, limit: float) -> dict[str, Cost]:
        return {variant.key: cost(1.0 + place / 10) for place, variant in enumerate(config.variants)}

    def report(result: StudyResult, folder: Path) -> Path:
        (reports if reports is not None else []).append(result)
        return folder / "report.html"

    return Tools(
        train=trainer,
        open_data=lambda config: None,  # type: ignore[arg-type, return-value]
        choose_threads=lambda *_: 1,
        measure_throughput=paces,
        measure_costs=costs,
        write_report=report,
    )


def cost(ratio: float) -> Cost:
    return Cost(
        parameters=1000,
        macs=5000,
        parameters_ratio=1.0,
        macs_ratio=1.0,
        train_time_ratio=Interval(point=ratio, low=ratio - 0.01, high=ratio + 0.01),
        inference_time_ratio=None,
        memory_ratio=1.0,
        train_seconds_per_step=0.01,
        inference_seconds_per_batch=None,
        peak_memory_bytes=10_000,
    )
