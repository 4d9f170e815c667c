"""Runs in folders, as training leaves them, without the training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from attngraft.attention import detached_state
from attngraft.training.build import build_model
from attngraft.training.checkpoint import FORMAT, save_weights
from attngraft.training.recipe import recipe_from_dict
from attngraft.training.run_folder import RunFolder, write_json

VIT = {
    "name": "vit_tiny_patch16_224",
    "args": {"img_size": 16, "patch_size": 8, "depth": 2, "embed_dim": 24, "num_heads": 2},
}
SWIN = {
    "name": "swin_tiny_patch4_window7_224",
    "args": {"img_size": 32, "window_size": 4, "depths": [2, 2], "embed_dim": 12, "num_heads": [2, 4]},
}
LEVIT = {
    "name": "levit_128s",
    "args": {"img_size": 32, "embed_dim": [16, 24], "key_dim": 4, "depth": [1, 1], "num_heads": [2, 3]},
}
LEVIT_CONV = LEVIT | {"name": "levit_conv_256d"}
ELSA_SWIN = {
    "name": "elsa_swin_tiny",
    "args": {
        "img_size": 16,
        "patch_size": 2,
        "embed_dim": 8,
        "depths": [1, 2],
        "num_heads": [1, 2],
        "kernel_size": 3,
        "window_size": 2,
    },
}
CLASSES = ["ant", "bee", "café | crème", "`x`", "<b>bold</b>"]


def make_run(
    folder: Path,
    graft: str | None = None,
    *,
    host: dict[str, Any] = VIT,
    classes: Sequence[str] = tuple(CLASSES),
    **recipe: Any,
) -> Path:
    """A finished run of one epoch whose weights are random, grafts' too."""
    run = RunFolder(folder)
    run.checkpoints.mkdir(parents=True, exist_ok=True)
    task = recipe.pop("task", {"name": "classification", "data": {"source": "/secret/place/flowers"}})
    described = recipe_from_dict({"host": host, "graft": graft, "task": task, **recipe})
    size = host["args"]["img_size"]
    facts = {
        "task": task["name"],
        "source": task["data"]["source"],
        "where": task["data"]["source"],
        "classes": list(classes),
        "sizes": {"train": 40, "val": 10},
        "counts": {"train": dict.fromkeys(classes, 8), "val": dict.fromkeys(classes, 2)},
        "input": {"size": [3, size, size], "eval_crop_pct": 0.9},
    }
    if task["name"] == "segmentation":
        facts |= {"colors": [[0, 0, 0]] * len(classes), "pixels": {"train": [1] * len(classes)}}
    run.write_recipe(described)
    run.write_data(model_args={"num_classes": len(classes)}, facts=facts)
    metric = "image_ap" if task["name"] == "multilabel" else "top1"
    row = {"epoch": 1, "seconds": 1.0, "train/loss": 2.0, f"val/{metric}": 0.5, "val/loss": 1.5}
    run.metrics.write_text(json.dumps(row) + "\n")
    torch.manual_seed(3)
    model = build_model(described, {"num_classes": len(classes)}, load_weights=False)
    for name, parameter in model.named_parameters():
        if ".grafts." in name or name.startswith("head"):
            torch.nn.init.normal_(parameter, std=0.3)
    move_batch_norms(model)
    state = {"format": FORMAT, "model": model.state_dict(), "parked": detached_state(model), "ema": None}
    counters = {"epoch": 1, "step": 0, "seconds": 0.0, "rows": [row], "best": {"val": 0.5}}
    torch.save({**state, "sums": [{}], "counters": counters}, run.last)
    save_weights(run.best(), model.state_dict(), {"epoch": 1})
    write_json(run.finished, {"epochs": 1})
    return folder


def move_batch_norms(model: torch.nn.Module) -> None:
    """As after some training: statistics of other data, and no branch that puts out zero."""
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.normal_(module.bias, std=0.2)
            torch.nn.init.normal_(module.running_mean, std=0.2)
            torch.nn.init.uniform_(module.running_var, 0.5, 1.5)
