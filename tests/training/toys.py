"""A tiny task and tiny hosts, so that the engine is tested without images on a disk: importing this registers them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from timm.models import register_model
from torch import Tensor, nn
from torch.nn import functional as F

from attngraft.results.measured import MeanScore, Measured
from attngraft.results.records import RecordTable
from attngraft.strict import read
from attngraft.tasks.seeding import generator
from attngraft.tasks.task import TASKS, Split, Task, TaskData
from attngraft.training.recipe import Recipe, recipe_from_dict
from attngraft.training.run_folder import RunFolder

TASKS["toy"] = "tests.training.toys:Toy"
TASKS["toy_bars"] = "tests.tasks.toy_bars:ToyBars"
TASKS["toy_drawings"] = "tests.tasks.toy_dense:ToyDense"  # there an entry point declares it, as toy_dense
CLASSES = 3


@dataclass(frozen=True, kw_only=True)
class ToyConfig:
    train: int = 48
    val: int = 10
    test: int = 0
    budget: int | None = None
    noise: float = 0.3
    smoothing: float = 0.0
    double: bool = False


class ToySplit(Split):
    """Images (3, 16, 16) of three classes with noise that is a function of (seed, epoch, index)."""

    def __init__(self, length: int, config: ToyConfig, *, seed: int, first: int) -> None:
        self._length, self._config, self._seed, self._first = length, config, seed, first

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, int]:
        epoch, index = key
        label = index % CLASSES
        clean = np.random.default_rng(label).normal(size=(3, 16, 16))
        noise = generator(self._seed, epoch, self._first + index).normal(size=(3, 16, 16))
        image = torch.from_numpy(clean + self._config.noise * noise)
        return image.to(torch.float64 if self._config.double else torch.float32), label

    def collate(self, examples: list[Any]) -> dict[str, Tensor]:
        images, labels = zip(*examples, strict=True)
        return {"image": torch.stack(images), "label": torch.tensor(labels)}

    def batches(self, *, seed: int, epoch: int) -> list[np.ndarray] | None:
        """As many examples as fit into a budget, of which example i takes 5 + i % 20."""
        if self._config.budget is None:
            return None
        found: list[list[int]] = [[]]
        left = self._config.budget
        for index in np.random.default_rng([seed, epoch]).permutation(self._length):
            cost = 5 + int(index) % 20
            if cost > left:
                found.append([])
                left = self._config.budget
            found[-1].append(int(index))
            left -= cost
        return [np.array(batch) for batch in found if len(batch) >= 4]

    def name(self, index: int) -> str:
        return f"toy/{self._first + index}"


class Toy(Task):
    name, primary = "toy", "top1"

    def __init__(self, config: ToyConfig, seed: int) -> None:
        self.config, self.seed = config, seed

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, seed: int) -> Toy:
        return cls(read(ToyConfig, config, where="task"), seed)

    def load(self, *, model_data_config: Mapping[str, Any]) -> TaskData:
        config = self.config
        return TaskData(
            train=ToySplit(config.train, config, seed=self.seed, first=0),
            val=ToySplit(config.val, config, seed=self.seed, first=1000),
            test=ToySplit(config.test, config, seed=self.seed, first=2000) if config.test else None,
            model_args={"num_classes": CLASSES},
            facts={"classes": CLASSES, "input_size": list(model_data_config["input_size"])},
        )

    def to_model(self, batch: Any) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        return (batch["image"],), {}

    def loss(self, outputs: Any, batch: Any) -> dict[str, Tensor]:
        loss = F.cross_entropy(outputs, batch["label"], label_smoothing=self.config.smoothing)
        return {"loss": loss, "twice": 2 * loss}

    def predict(self, outputs: Any, batch: Any) -> dict[str, Tensor]:
        return {"logits": outputs, "label": batch["label"]}

    def measure(self, table: RecordTable, facts: Mapping[str, Any]) -> Measured:
        logits, labels = table.array("logits"), table.array("label")
        right = logits.argmax(1) == labels
        nll = float(F.cross_entropy(torch.from_numpy(logits), torch.from_numpy(labels)))
        values = {"top1": 100 * float(right.mean()), "nll": nll}
        return Measured(values=values, statistics={"top1": MeanScore(right, binary=True)})


def _vit(**kwargs: Any) -> nn.Module:
    size = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
    return timm.create_model("vit_tiny_patch16_224", **(size | kwargs))


@register_model
def toy_vit(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """A ViT of two blocks."""
    kwargs.pop("pretrained_cfg", None), kwargs.pop("pretrained_cfg_overlay", None)
    return _vit(**kwargs)


@register_model
def toy_vit_double(pretrained: bool = False, **kwargs: Any) -> nn.Module:
    """The same in float64."""
    return toy_vit(pretrained, **kwargs).double()


class _Normed(nn.Module):
    """A convolution and a batch norm, whose statistics move with every forward pass."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.stem, self.norm, self.head = nn.Conv2d(3, 8, 4, 4), nn.BatchNorm2d(8), nn.Linear(8, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.stem(x)).mean((2, 3)))


@register_model
def toy_normed(pretrained: bool = False, *, num_classes: int = CLASSES, **_: Any) -> nn.Module:
    """No transformer at all: nothing to graft on."""
    return _Normed(num_classes)


def toy_recipe(task: Mapping[str, Any] | None = None, **sections: Any) -> Recipe:
    """Two epochs of three updates, with dropout and stochastic depth, over which the given sections are laid."""
    base: dict[str, Any] = {
        "host": {"name": "toy_vit", "args": {"drop_rate": 0.1, "proj_drop_rate": 0.1}},
        "task": {"name": "toy", **(task or {})},
        "optimizer": {"lr": 3e-3},
        "schedule": {"epochs": 2, "warmup_epochs": 0.5},
        "train": {"batch_size": 16, "drop_path": 0.1},
    }
    for name, section in sections.items():
        base[name] = {**base.get(name, {}), **section} if isinstance(section, Mapping) else section
    return recipe_from_dict(base)


def metric_rows(folder: Path) -> list[dict[str, float]]:
    """metrics.jsonl without the times."""
    import json

    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def final_state(folder: Path) -> dict[str, Any]:
    """The last checkpoint."""
    return torch.load(folder / "checkpoints" / "last.pt", weights_only=True)


def with_new_checksums(folder: Path) -> None:
    """Write finished.json again after a test changed files of a finished run."""
    run = RunFolder(folder)
    run.write_finished(run.read_finished()[0])


def assert_same_outcome(one: Path, other: Path) -> None:
    """Weights, optimizer, metrics, predictions: bit for bit."""
    assert metric_rows(one) == metric_rows(other)
    left, right = final_state(one), final_state(other)
    for section in ("model", "ema"):
        _assert_same_tensors(left[section], right[section])
    for name, state in left["optimizer"]["state"].items():
        _assert_same_tensors(state, right["optimizer"]["state"][name])
    for best in sorted(path.name for path in (one / "checkpoints").glob("best*")):
        assert (one / "checkpoints" / best).read_bytes() == (other / "checkpoints" / best).read_bytes()
    with np.load(one / "predictions.npz") as a, np.load(other / "predictions.npz") as b:
        assert set(a) == set(b)
        assert all(np.array_equal(a[key], b[key]) for key in a)


def _assert_same_tensors(left: Mapping[str, Tensor] | None, right: Mapping[str, Tensor] | None) -> None:
    assert (left is None) == (right is None)
    if left is None or right is None:
        return
    assert list(left) == list(right)
    different: Sequence[str] = [name for name in left if not torch.equal(left[name], right[name])]
    assert not different
