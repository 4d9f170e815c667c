"""The contract of the built-in tasks, and of one that another package would bring."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from attngraft.models import token_mixing
from attngraft.tasks.images.config import NumbersConfig
from attngraft.tasks.images.sources import open_source
from attngraft.tasks.task import Split
from tests.contract.task_contract import TaskContract, tiny_vit

NO_CHANGES = {"padding": 0, "hflip": 0.0}  #: augmentation of training


def write_table(folder: Path, header: str, rows: Mapping[str, str], name: str = "table.csv") -> str:
    """A table of paths and labels; its path."""
    (folder / name).write_text("\n".join([header, *(f"{image},{label}" for image, label in rows.items())]) + "\n")
    return str(folder / name)


def write_drawings(folder: Path) -> dict[str, str]:
    """47 gray images of 8x8 pixels with up to three marks, and their labels."""
    random, rows = np.random.default_rng(0), {}
    for index in range(47):
        marks = random.random(3) < 0.5
        pixels = random.integers(0, 60, (8, 8))
        pixels[0] += 180 * marks[0]
        pixels[:, 0] += 180 * marks[1]
        pixels[4:6, 4:6] += 180 * marks[2]
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{index}.png")
        rows[f"{index}.png"] = "|".join(np.array(["top", "left", "dot"])[marks])
    return rows


class TestClassification(TaskContract):
    held_fixed = frozenset({"balanced_accuracy"})

    def section(self, folder: Path) -> dict[str, Any]:
        data = {"source": "digits", "classes": ["0", "1"], "val_fraction": 0.88}
        return {"name": "classification", "data": data, "augment": NO_CHANGES, "loss": {"smoothing": 0.0}}

    def broken(self, folder: Path) -> Mapping[str, dict[str, Any]]:
        (folder / "empty").mkdir()
        (folder / "cut.npz").write_bytes(b"PK")
        return {
            "no images found": {"data": {"source": str(folder / "empty")}},
            r"cannot be read as \.npz": {"data": {"source": str(folder / "cut.npz")}},
        }


class TestMultiLabel(TaskContract):
    def section(self, folder: Path) -> dict[str, Any]:
        table = write_table(folder, "path,labels", write_drawings(folder))
        return {"name": "multilabel", "data": {"source": table, "val_fraction": 0.32}, "augment": NO_CHANGES}

    def broken(self, folder: Path) -> Mapping[str, dict[str, Any]]:
        return {
            "has no rows": {"data": {"source": write_table(folder, "path,labels", {}, "empty.csv")}},
            "images have one label each": {"data": {"source": "digits"}},
        }


def mix_no_tokens() -> None:
    """Tokens are mixed within a process, in a box that is drawn."""
    token_mixing.rand_bbox = lambda *_, **__: (0, 0, 0, 0)


class TestTokenLabeling(TaskContract):
    host: ClassVar = {
        "name": "elsa_volo_d1",
        "args": {
            "img_size": 32,
            "layers": [1, 1, 1, 1],
            "embed_dims": [16, 16, 16, 16],
            "num_heads": [2, 2, 2, 2],
            "stem_hidden_dim": 8,
        },
    }
    overfit, steps = 0.5, 30
    held_fixed = frozenset({"balanced_accuracy"})
    fix_draws = staticmethod(mix_no_tokens)
    together: ClassVar = {"parameters": "head"}

    def section(self, folder: Path) -> dict[str, Any]:
        rows = {image: "dot" if "dot" in labels else "plain" for image, labels in write_drawings(folder).items()}
        data = {"source": write_table(folder, "path,label", rows), "val_fraction": 0.32}
        return {"name": "token_labeling", "data": data, "augment": NO_CHANGES, "loss": {"smoothing": 0.0}}

    def broken(self, folder: Path) -> Mapping[str, dict[str, Any]]:
        return {"has no rows": {"data": {"source": write_table(folder, "path,label", {}, "empty.csv")}}}


class TestRegression(TaskContract):
    """Two numbers per image."""

    host: ClassVar = tiny_vit(16)
    numbers = ("length", "thickness")

    def section(self, folder: Path) -> dict[str, Any]:
        bars = open_source(NumbersConfig(source="bars")).train
        rows = {}
        for index in range(61):
            bars.open(index).save(folder / f"{index}.png")
            rows[f"{index}.png"] = ",".join(f"{number:.3f}" for number in bars.labels[index])
        data = {"source": write_table(folder, "path,length,thickness", rows), "label_columns": list(self.numbers)}
        return {"name": "regression", "data": {**data, "val_fraction": 0.35}, "augment": NO_CHANGES}

    def broken(self, folder: Path) -> Mapping[str, dict[str, Any]]:
        table = Path(self.section(folder)["data"]["source"])
        lines, files = table.read_text().splitlines(), {"bare": table}
        for name, row in {"words": "0.png,wide,1", "gaps": "0.png,,1"}.items():
            files[name] = folder / f"{name}.csv"
            files[name].write_text("\n".join([*lines, row]) + "\n")
        files["empty"] = Path(write_table(folder, "path,length", {}, "empty.csv"))
        constant = {f"{index}.png": "3,4" for index in range(9)}
        files["same"] = Path(write_table(folder, "path,length,thickness", constant, "same.csv"))
        length = {
            name: {"data": {"source": str(file), "label_columns": ["length"], "val_fraction": 0.35}}
            for name, file in files.items()
        }
        return {
            "has no rows": length["empty"],
            "row 63: column 'length' contains 'wide', not a number": length["words"],
            "row 63: column 'length' contains '', not a number": length["gaps"],
            "length is 3 for all training images": length["same"],
            "cannot find the column of numbers": {"data": {"source": str(table)}},
        }


class TestRegressionOfOneNumber(TestRegression):
    numbers = ("thickness",)


class TestDense(TaskContract):
    host: ClassVar = tiny_vit(patch=1)
    serves = False

    def section(self, folder: Path) -> dict[str, Any]:
        return {"name": "toy_drawings", "size": 47}

    def broken(self, folder: Path) -> Mapping[str, dict[str, Any]]:
        return {"task.sise: unknown field": {"sise": 3}}


class TestBars(TaskContract):
    """A head around the host, weighted losses, ragged outputs, and a codec of its own."""

    host: ClassVar = tiny_vit()

    def section(self, folder: Path) -> dict[str, Any]:
        return {"name": "toy_bars", "size": 47}

    def broken(self, folder: Path) -> Mapping[str, dict[str, Any]]:
        return {"task.sise: unknown field": {"sise": 3}}

    def raw(self, split: Split, folder: Path, *, count: int) -> list[str]:
        names = [str(folder / f"{index}.npy") for index in range(count)]
        for index, name in enumerate(names):
            np.save(name, split[0, index][0][0].numpy())
        return names
