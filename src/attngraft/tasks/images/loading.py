"""From the recipe's `data` and `augment` to training and evaluation splits, whatever the labels are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from attngraft.errors import ConfigError
from attngraft.strict import read
from attngraft.tasks.images.checks import class_counts, classes_without_images, refuse_other_labels
from attngraft.tasks.images.config import AugmentConfig, DataConfig
from attngraft.tasks.images.inputs import HostInput
from attngraft.tasks.images.opening import Division, Opened, open_images
from attngraft.tasks.images.printable import printable
from attngraft.tasks.images.sampling import Sampling
from attngraft.tasks.images.sources import Images, decoded
from attngraft.tasks.images.splits import Common, ImageSplit, LabelledSplit, PixelSplit, Taking
from attngraft.tasks.images.views import View, ViewPlan, fixed_view, only_moves, random_view

VIEWS_LIMIT = 2**29  #: bytes of fixed views of a split that are held in memory unasked


@dataclass(frozen=True, kw_only=True)
class LoadedImages:
    """Splits that the engine can use, and what a task needs to know of the data beside them."""

    classes: tuple[str, ...]
    train: LabelledSplit
    val: LabelledSplit
    counts: np.ndarray  #: (classes,) training images of each class
    facts: dict[str, Any]  #: JSON-ready, for the run folder and the report
    drawn: Division | None  #: what was drawn at random, where a file could keep it


def read_task(cls: type[Any], config: Mapping[str, Any]) -> Any:
    """A task's section, its name apart, as the dataclass `cls`, which has a field `data`.

    Raises:
        ConfigError: no data, an unknown key or a wrong value.
    """
    section = {key: value for key, value in config.items() if key != "name"}
    if "data" not in section:
        raise ConfigError(
            "task.data: which data? --data SOURCE on the command line, or task: {data: {source: ...}} in the recipe "
            "(digits, a folder, a .tar, an .npz, a .csv, timm:<name>)"
        )
    return read(cls, section, where="task")


def load_images(
    data: DataConfig,
    augment: AugmentConfig,
    *,
    host: HostInput,
    seed: int,
    task: str,
    multilabel: bool,
    sampling: Sampling | None = None,
    kept: Path | None = None,
    eval_crop_pct: float | None = None,
) -> LoadedImages:
    """Open the source, divide it, check it, and decide the views.

    Args:
        data, augment: the recipe's.
        host: what the model expects.
        seed: of augmentation.
        task: the name of the task that asks, for messages and facts.
        multilabel: whether the task takes several labels per image.
        sampling: how often training sees each class; None: as often as it occurs.
        kept: a file of what was drawn before, which stands in place of a draw.
        eval_crop_pct: of evaluation's view; None: as the size of the images asks for.

    Raises:
        DataError: the data cannot be used, or have labels of the other kind.
    """
    opened = open_images(data, kept=kept)
    parts = opened.parts
    refuse_other_labels(parts, task=task, multilabel=multilabel)
    first = parts.train.open(0)
    plan = ViewPlan.decide(augment, host, image_size=first.size, mirrored=parts.mirrored)
    if eval_crop_pct is not None:
        plan = replace(plan, eval_crop_pct=eval_crop_pct)
    splits = _Splits(data, augment, plan, host, classes=parts.classes, seed=seed)
    facts = {"task": task, "source": data.source, **_facts(opened, plan, host)}
    facts["image"] = {"first_size": list(first.size), "first_mode": first.mode}
    return LoadedImages(
        classes=parts.classes,
        train=splits.training(parts.train, sampling),
        val=splits.evaluation(opened.val),
        counts=class_counts(parts.train, len(parts.classes)),
        facts=printable(facts),
        drawn=opened.drawn,
    )


class _Splits:
    """Makes the two splits of one source: held as bytes where views are fixed and few, else opened one at a time."""

    def __init__(
        self,
        data: DataConfig,
        augment: AugmentConfig,
        plan: ViewPlan,
        host: HostInput,
        *,
        classes: tuple[str, ...],
        seed: int,
    ) -> None:
        self.data, self.augment, self.plan, self.host = data, augment, plan, host
        self.common = Common(classes=classes, host=host, seed=seed)

    def training(self, images: Images, sampling: Sampling | None) -> LabelledSplit:
        augment, host = self.augment, self.host
        taking = Taking(repeats=augment.repeats, sampling=sampling, buffer=self._buffer(images, sampling))
        if self.data.cache and not images.in_memory:
            images = decoded(images, host.mode)
        view: View
        if only_moves(augment, self.plan) and self._fits(images):
            view = fixed_view(host, crop_pct=1.0, interpolation=augment.interpolation)
            return PixelSplit(images, view, self.plan, common=self.common, taking=taking)
        return ImageSplit(images, random_view(augment, self.plan, host), common=self.common, taking=taking)

    def evaluation(self, images: Images) -> LabelledSplit:
        view = fixed_view(self.host, crop_pct=self.plan.eval_crop_pct)
        if self._fits(images):
            return PixelSplit(images, view, None, common=self.common)
        return ImageSplit(images, view, common=self.common)

    def _buffer(self, images: Images, sampling: Sampling | None) -> int | None:
        if self.data.order == "random":
            return None
        if images.shelf is None:
            raise ConfigError("task.data.order: shards is for tars and Hugging Face files; these images lie one by one")
        if self.augment.repeats > 1 or sampling is not None:
            field = "task.sampling" if sampling is not None else "task.augment.repeats"
            raise ConfigError(f"{field}: takes images in an order of its own; set task.data.order to random")
        return self.data.shuffle_buffer

    def _fits(self, images: Images) -> bool:
        """Whether fixed views are made once and held: where asked for, or where they are few and small."""
        if self.data.cache is None:
            return len(images) * self.host.channels * self.host.height * self.host.width <= VIEWS_LIMIT
        return self.data.cache


def _facts(opened: Opened, plan: ViewPlan, host: HostInput) -> dict[str, Any]:
    """What was found and decided, for the run folder and the report."""
    parts, val = opened.parts, opened.val

    def counts(images: Images) -> dict[str, int]:
        return dict(zip(parts.classes, class_counts(images, len(parts.classes)).tolist(), strict=True))

    facts: dict[str, Any] = {
        "kind": parts.kind,
        "where": parts.where,
        "split": parts.origin,
        "classes": list(parts.classes),
        "sizes": {"train": len(parts.train), "val": len(val)},
        "counts": {"train": counts(parts.train), "val": counts(val)},
        "input": {
            "size": [host.channels, host.height, host.width],
            "mean": list(host.mean),
            "std": list(host.std),
            "interpolation": host.interpolation,
            "eval_crop_pct": plan.eval_crop_pct,
        },
        "augment": {"crop": plan.crop, "padding": plan.padding, "hflip": plan.hflip, "vflip": plan.vflip},
    }
    notes = [*opened.facts.get("notes", ()), *classes_without_images(parts, val)]
    return facts | opened.facts | {"notes": notes}
