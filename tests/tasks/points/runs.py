"""Trained toy models of point clouds, and files for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from attngraft.training.loop import train
from attngraft.training.recipe import load_recipe
from tests.tasks.points.shapes import cloud, write_shapes

SIZES = ("depth=2", "embed_dim=24", "num_heads=3", "num_latents=8")
LEVELS = ("reducers=[2,2]", "neighbors=8")  #: of a hierarchy


def train_shapes(folder: Path, host: str, *arguments: str, recipe: str = "tiny-points", graft: str = "null") -> Path:
    """Train for an epoch on composed shapes of 64 points, of which models get 48."""
    data = write_shapes(folder.parent / "shapes.npz", train=4, val=2)
    settings = [f"host.name=attngraft:{host}", "host.args={}", f"task.data.source={data}", f"graft={graft}"]
    settings += [f"host.args.{argument}" for argument in arguments]
    fixed = ["task.points=48", "schedule.epochs=1", "schedule.warmup_epochs=0", "train.threads=1"]
    train(load_recipe(recipe, [*settings, *fixed]), folder)
    return folder


def write_cloud(path: Path, category: str = "mug") -> Path:
    np.save(path, cloud(category, np.random.default_rng(3), points=64)[0])
    return path
