"""The runs of the null study: one host on the embedded digits, 40 times, each with its own initialization and order.

Half of them are labeled as the baseline and half as the variant; runs k of both halves are pair k. In a real study a pair
shares initialization and batches. Here both sides have the same model, so every difference would be exactly 0: the variant's
half has its own seeds, and the true difference is still 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from attngraft.results.measured import MeanScore
from attngraft.study.predictions import aligned, read_statistics
from attngraft.training.build import build_task
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from attngraft.training.recipe import Recipe, load_recipe
from attngraft.training.run_folder import RunRecord

BASELINE, VARIANT = 0, 100  #: first seed of each half
CHANGES = ("schedule.epochs=12", "schedule.warmup_epochs=1", "train.threads=1")


def recipe_of(seed: int, *, changes: Sequence[str] = CHANGES) -> Recipe:
    """Return the packaged digits recipe, shortened."""
    return dataclasses.replace(load_recipe("digits", overrides=changes), seed=seed)


def seeds(per_half: int) -> list[int]:
    """Return the seeds of all runs: the baseline's half, then the variant's."""
    return [*range(BASELINE, BASELINE + per_half), *range(VARIANT, VARIANT + per_half)]


def make_run(folder: Path, seed: int, *, changes: Sequence[str] = CHANGES) -> RunRecord:
    """Train one run, or resume it; return immediately if it is finished."""
    return train(recipe_of(seed, changes=changes), folder / f"seed{seed}", progress=Silent())


def scores_of(records: Sequence[RunRecord]) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores (runs, images) of each half, for runs in the order of `seeds`."""
    task = build_task(records[0].recipe)
    runs = aligned([read_statistics(record, task) for record in records])
    scores = [statistic.score for run in runs if isinstance(statistic := run.statistics[task.primary], MeanScore)]
    half = len(scores) // 2
    return np.stack(scores[:half]), np.stack(scores[half:])


def packed(scores: np.ndarray) -> list[str]:
    """Encode scores of 0 and 1 as one line of hexadecimal digits per run, for JSON."""
    return [np.packbits(row.astype(bool)).tobytes().hex() for row in scores]


def unpacked(lines: Sequence[str], *, images: int) -> np.ndarray:
    """Decode the output of `packed`."""
    rows = [np.unpackbits(np.frombuffer(bytes.fromhex(line), dtype=np.uint8))[:images] for line in lines]
    return np.stack(rows).astype(float)
