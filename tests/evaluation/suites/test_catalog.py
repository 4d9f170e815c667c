"""Suites come from the tasks: which there are, and a task of another kind with a suite of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attngraft.errors import ConfigError
from attngraft.evaluation.suites import SuiteRun, evaluate_suites, parse_suites, suites
from attngraft.evaluation.suites.cache import read_columns
from attngraft.tasks.images.suites import catalog
from attngraft.tasks.images.suites.pixels import PixelAccess
from attngraft.tasks.suites import BatchChange, BatchTarget, Condition, ExampleAccess, Suite, SuiteSupport
from attngraft.tasks.task import TASKS, Split, load_task
from attngraft.training.loop import train
from tests.training.toys import Toy, ToySplit, toy_recipe


class Patterns(ExampleAccess):
    """Patterns (3, 16, 16) of any values, with their labels."""

    def change_example(self, example: Any, change: Callable[..., Any], generator: torch.Generator) -> Any:
        return change(example[0], generator), example[1]

    def change_batch(self, batch: Any, change: BatchChange, target: BatchTarget, *, noise_seed: int) -> Any:
        return change(batch, target)


class Static:
    def __call__(self, pattern: Tensor, generator: torch.Generator) -> Tensor:
        return pattern + 5 * torch.randn(pattern.shape, generator=generator)


class Uphill:
    """A step along the gradient of the loss."""

    gradients: ClassVar[bool] = True

    def __call__(self, batch: Any, target: BatchTarget) -> Any:
        images = batch["image"].clone().requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(target.losses({**batch, "image": images}).sum(), images)
        target.report(f"{len(target.indices)} at a time")
        return {**batch, "image": images.detach() + gradient.sign()}


class ToySuites(Toy):
    name = "toy_suites"
    capabilities = frozenset({"suites", "attacks"})

    @classmethod
    def suites(cls) -> Mapping[str, Suite]:
        conditions = (
            Condition(name="as-is", group="as-is", label="as it is"),
            *(Condition(name=f"s{n}", group="s", label="static", noise_seed=n, example=Static()) for n in range(2)),
            Condition(name="uphill", group="uphill", label="uphill", batch=Uphill()),
        )
        return {"static": Suite(name="static", title="Static", summary="noise", conditions=conditions)}

    def suite_support(self) -> SuiteSupport:
        return SuiteSupport(access=Patterns(), losses=_losses, columns=("logits", "label"), subset=_first)


def _losses(outputs: Tensor, batch: Any) -> Tensor:
    return F.cross_entropy(outputs, batch["label"], reduction="none")


def _first(split: Split, indices: np.ndarray) -> Split:
    assert isinstance(split, ToySplit) and (indices == np.arange(len(indices))).all()
    return ToySplit(len(indices), split._config, seed=split._seed, first=split._first)


class ToyPixels(PixelAccess):
    color = (0.5, 0.5, 0.5)

    def from_example(self, example: Any) -> Tensor:
        return example[0].sigmoid()

    def to_example(self, example: Any, pixels: Tensor) -> Any:
        return pixels.logit(), example[1]

    def from_batch(self, batch: Any) -> Tensor:
        return batch["image"].sigmoid()

    def to_batch(self, batch: Any, pixels: Tensor) -> Any:
        return {**batch, "image": pixels.logit()}


class ToyWithPixels(Toy):
    """As earlier versions had it: no suites of its own, so that it gets those of images."""

    name = "toy_pixels"

    def suite_support(self) -> SuiteSupport:
        with pytest.warns(DeprecationWarning, match="use access"):
            return SuiteSupport(pixels=ToyPixels(), losses=_losses, columns=("logits", "label"), subset=_first)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for task in (ToySuites, ToyWithPixels):
        monkeypatch.setitem(TASKS, task.name, f"{__name__}:{task.__name__}")


def evaluated(folder: Path, task: type[Toy], suite: str) -> SuiteRun:
    train(toy_recipe({"name": task.name}), folder)
    (found,) = evaluate_suites(folder, parse_suites([suite]))
    return found


def test_suites_are_those_of_the_tasks() -> None:
    assert load_task("text_classification").suites() == {}
    assert load_task("classification").suites() is load_task("multilabel").suites() is catalog.suites()
    assert list(suites()) == [*catalog.suites(), *load_task("points").suites(), "static"]


def test_a_suite_of_another_kind_of_examples(tmp_path: Path) -> None:
    found = evaluated(tmp_path, ToySuites, "static")
    groups = {group.name: group for group in found.groups}
    assert groups["s"].noise_seeds == [0, 1]
    assert groups["uphill"].said == ["10 at a time"]
    logits = {group: read_columns(tmp_path / "evaluation" / each.files[0])["logits"] for group, each in groups.items()}
    labels = torch.arange(10) % 3
    losses = {group: F.cross_entropy(torch.from_numpy(np.stack(each)), labels).item() for group, each in logits.items()}
    assert losses["uphill"] > losses["as-is"]
    assert losses["s"] != losses["as-is"]


def test_suites_of_other_tasks_are_refused(tmp_path: Path) -> None:
    train(toy_recipe({"name": "toy_suites"}), tmp_path)
    with pytest.raises(ConfigError, match="task toy_suites: has no suite noise; available: static$"):
        evaluate_suites(tmp_path, parse_suites(["noise"]))


def test_a_task_with_pixels_and_no_suites_of_its_own(tmp_path: Path) -> None:
    found = evaluated(tmp_path, ToyWithPixels, "occlusion")
    assert found.groups[0].metrics["top1"].mean > 0
