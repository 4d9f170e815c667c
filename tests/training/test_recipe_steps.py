"""Every packaged recipe trains for one step on a tiny host, with its own task, loss, optimizer and schedule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from attngraft.tasks.token_labeling.maps import LabelMaps, save_label_map
from attngraft.training.loop import train
from attngraft.training.progress import Silent
from attngraft.training.recipe import load_recipe, load_schedule, packaged_recipes, recipe_to_dict
from tests.slow import slow_but
from tests.tasks.captioning.scenes import HOST as CAPTIONER
from tests.tasks.captioning.scenes import write_scenes
from tests.tasks.detection.scenes import SMALL, write_coco
from tests.tasks.images.datasets import make_folder
from tests.tasks.points.shapes import write_shapes
from tests.tasks.segmentation.drawings import write_drawings
from tests.tasks.text import toys
from tests.tasks.translation import pairs
from tests.training.toys import metric_rows

VIT = {"img_size": 32, "patch_size": 16, "embed_dim": 24, "depth": 1, "num_heads": 3}
LEVIT = (("embed_dim", 16), ("depth", 1), ("num_heads", 2))
FOUR = {"embed_dims": [16] * 4, "num_heads": [2] * 4}
#: start of a host's name -> arguments that make it tiny
TINY: dict[str, dict[str, Any]] = {
    "vit": VIT,
    "deit": VIT,
    "swin": {"img_size": 32, "window_size": 4, "embed_dim": 8, "depths": [1, 1], "num_heads": [1, 2]},
    "levit": {"img_size": 64, "stem_type": "s8", "key_dim": 8, **{name: [width] * 3 for name, width in LEVIT}},
    "bixt": VIT | {"patch_size": 8, "stride": 8, "depth": 2, "num_latents": 4},
    "elsa_swin": {"img_size": 56, "embed_dim": 8, "depths": [1, 1, 1, 2], "num_heads": [1, 1, 2, 2]},
    "elsa_volo": {"img_size": 32, "layers": [1, 1, 1, 1], "stem_hidden_dim": 8, **FOUR},
    "mt_transformer": {"dim": 16, "depth": 1, "heads": 2, "hidden": 32},
    "t2t": {"img_size": 32, "embed_dim": 24, "depth": 1, "num_heads": 3, "token_width": 8},
}  # fmt: skip
TABLES = {  # the labels that four images have in turn
    "multilabel": ("labels", ["cat dog", "cat", "dog bird", ""]),
    "regression": ("length", ["1.5", "2", "0.5", "3"]),
}


def image_data(task: str, folder: Path) -> Path:
    if task not in TABLES:
        return make_folder(folder, {"train": {"a": 4, "b": 4}, "val": {"a": 2, "b": 2}}, size=(40, 36))
    column, labels = TABLES[task]
    folder.mkdir()
    rows = [f"path,{column}"]
    for number in range(40):
        pixels = np.random.RandomState(number).randint(0, 256, (36, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        rows.append(f"{number}.png,{labels[number % 4]}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    return folder / "labels.csv"


def label_maps(folder: Path) -> Path:
    maps = LabelMaps(folder, classes=2)
    for name in (f"train/{label}/{number}.png" for label in "ab" for number in range(4)):
        save_label_map(torch.zeros(2, 3, 4), maps.file(name))
    return maps.folder


def teacher(folder: Path) -> dict[str, Any]:
    model = timm.create_model("vit_tiny_patch16_224", num_classes=2, **VIT)
    save_file(model.state_dict(), folder / "teacher.safetensors")
    return {"name": "vit_tiny_patch16_224", "args": VIT, "weights": str(folder / "teacher.safetensors")}


QUICK = (
    "bixt-small",
    "deit-distilled",
    "elsa-deit-imagenet",
    "small-detection",
    "small-segmentation",
    "t2t-imagenet100",
    "tiny-captioning",
    "tiny-parts",
    "tiny-points",
    "tiny-translation",
)


@pytest.mark.parametrize("name", slow_but(packaged_recipes(), *QUICK))
def test_one_step(name: str, tmp_path: Path) -> None:
    plain = load_recipe(name)
    task = plain.task["name"]
    changes: dict[str, Any] = {f"schedule.{field}": value for field, value in load_schedule(name).over(1)[0].items()}
    changes |= {"train.workers": 0, "train.threads": 1, "host.pretrained": False}
    if task == "translation":
        changes |= {f"host.args.{field}": value for field, value in TINY["mt_transformer"].items()}
        changes |= {
            f"task.{field}": value for field, value in pairs.section(tmp_path / "pairs").items() if field == "data"
        }
        changes |= {"task.vocab_size": 340, "task.decoding.max_length": 8}
    elif task == "captioning":
        changes |= {"host.args": CAPTIONER["args"], "task.data.source": str(write_scenes(tmp_path / "scenes"))}
        changes |= {"task.max_length": 8, "task.vocabulary.min_count": 1}
        if plain.stages:
            stages = recipe_to_dict(plain)["stages"]
            changes |= {"schedule.epochs": len(stages), "stages": [{**stage, "epochs": 1} for stage in stages]}
    elif task == "segmentation":
        sizes = TINY["bixt" if "bixt" in plain.host.name else "swin"]
        changes |= {f"host.args.{field}": value for field, value in sizes.items() if field != "img_size"}
        changes |= {"task.data.source": str(write_drawings(tmp_path / "drawings", train=4, val=2))}
        changes |= {"task.augment.crop": [32, 32], "task.augment.size": None, "task.test.size": None}
    elif task == "detection":
        changes |= {f"host.args.{field}": value for field, value in TINY["swin"].items() if field != "img_size"}
        changes |= {f"task.{field}": value for field, value in SMALL.items()}
        changes |= {"task.data.source": str(write_coco(tmp_path / "scenes")), "task.test.size": None}
        changes |= {"task.augment.size": [], "train.batch_size": 4}
    elif task in ("points", "point_parts"):
        changes |= {"host.args": {"depth": 2, "embed_dim": 24, "num_heads": 3, "num_latents": 4}, "task.points": 48}
        normals = plain.task.get("data", {}).get("normals", False)
        changes["task.data.source"] = str(write_shapes(tmp_path / "shapes.npz", normals=normals, train=11, val=4))
    elif task == "text_classification":
        changes["host.name"] = toys.host(tmp_path / "bert")
        changes["task.data"] = {"source": str(toys.table(tmp_path / "texts.csv", toys.sentences(16)))}
        changes["task.tokenizer.vocab_size"] = 80
    elif name != "digits":
        args = next(TINY[start] for start in TINY if plain.host.name.startswith(start))
        changes |= {f"host.args.{field}": value for field, value in args.items()}
        changes["task.data"] = {"source": str(image_data(task, tmp_path / "images"))}
    if task == "token_labeling":
        changes["task.token_labels.maps"] = str(label_maps(tmp_path / "maps"))
    if plain.distill is not None:
        changes["distill.teacher"] = teacher(tmp_path)
    recipe = load_recipe(name, [f"{field}={json.dumps(value)}" for field, value in changes.items()])
    train(recipe, tmp_path / "run", progress=Silent())
    rows = metric_rows(tmp_path / "run")
    assert len(rows) == max(1, len(plain.stages))
    assert np.isfinite(rows[0]["train/loss"])
