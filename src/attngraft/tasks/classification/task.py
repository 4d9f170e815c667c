"""Single-label image classification."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from attngraft.errors import ConfigError
from attngraft.strict import read
from attngraft.tasks.classification.config import ClassificationConfig
from attngraft.tasks.classification.evaluator import ClassificationEvaluator
from attngraft.tasks.classification.losses import example_losses, heads_of, training_loss
from attngraft.tasks.classification.mixing import Mixing
from attngraft.tasks.images.checks import class_counts
from attngraft.tasks.images.inputs import HostInput
from attngraft.tasks.images.opening import open_images
from attngraft.tasks.images.sources import Images, Parts, decoded
from attngraft.tasks.images.splits import ImageSplit, LabelledSplit, PixelSplit
from attngraft.tasks.images.views import View, ViewPlan, fixed_view, only_moves, random_view
from attngraft.tasks.task import Batch, Evaluator, Split, Task, TaskData

VIEWS_LIMIT = 2**29  #: bytes of fixed views of a split that are held in memory unasked
LOGITS_LIMIT = 1000  #: classes up to which predictions keep all logits
TOP = 5


class Classification(Task):
    """Images with one label each. A batch is `{"image": (B, C, H, W) float32, "target": (B,)}`; after mixing, `target`
    is (B, classes)."""

    name = "classification"
    primary = "top1"

    def __init__(self, config: ClassificationConfig, *, seed: int) -> None:
        self.config, self.seed = config, seed
        self._loss = training_loss(config.loss)
        self._classes = 0  # known when the data are
        self._mixing: Mixing | None = None

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, seed: int) -> Classification:
        section = {key: value for key, value in config.items() if key != "name"}
        if "data" not in section:
            raise ConfigError(
                "task.data: which data? --data SOURCE on the command line, or task: {data: {source: ...}} in the recipe "
                "(digits, a folder, a .tar, an .npz, timm:<name>)"
            )
        return cls(read(ClassificationConfig, section, where="task"), seed=seed)

    def load(self, *, model_data_config: Mapping[str, Any]) -> TaskData:
        host, config = HostInput.from_model(model_data_config), self.config
        opened = open_images(config.data)
        parts, val = opened.parts, opened.val
        first = parts.train.open(0)
        plan = ViewPlan.decide(config.augment, host, image_size=first.size, mirrored=parts.mirrored)
        self._classes = len(parts.classes)
        if config.augment.mixes:
            smoothing = config.loss.smoothing
            self._mixing = Mixing(config.augment, classes=self._classes, smoothing=smoothing, seed=self.seed)
        return TaskData(
            train=self._training_split(parts, plan, host),
            val=self._evaluation_split(val, parts, plan, host),
            model_args={"num_classes": self._classes},
            facts=_facts(parts, val, plan, host, source=config.data.source, image=(first.size, first.mode))
            | opened.facts,
        )

    def to_model(self, batch: Batch) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        return (batch["image"],), {}

    def prepare(self, batch: Batch, *, epoch: int, step: int) -> Batch:
        if self._mixing is None:
            return batch
        image, target = self._mixing(batch["image"], batch["target"], epoch=epoch, step=step)
        return {**batch, "image": image, "target": target}

    def loss(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """`loss`: the mean over the batch, and over both heads of a distilled host."""
        heads = heads_of(outputs, classes=self._classes)
        losses = [self._loss(head, batch["target"]) for head in heads]
        return {"loss": torch.stack(losses).mean() if len(losses) > 1 else losses[0]}

    def predict(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """`target` (B,), `top` (B, up to 5) best classes, `loss` (B,), and `logits` (B, classes) where they are kept."""
        logits = torch.stack([head.float() for head in heads_of(outputs, classes=self._classes)]).mean(0)
        target = batch["target"]
        found = {
            "target": target,
            "top": logits.topk(min(TOP, self._classes), dim=-1).indices,
            "loss": example_losses(self.config.loss, logits, target),
        }
        wanted = self.config.metrics.predictions
        if wanted == "logits" or (wanted == "auto" and self._classes <= LOGITS_LIMIT):
            found["logits"] = logits
        return found

    def evaluator(self, split: Split) -> Evaluator:
        if not isinstance(split, LabelledSplit):
            raise ConfigError(f"task: classification evaluates its own splits, not a {type(split).__name__}")
        return ClassificationEvaluator(split)

    def _training_split(self, parts: Parts, plan: ViewPlan, host: HostInput) -> LabelledSplit:
        augment = self.config.augment
        images = self._cached(parts.train, host)
        view: View
        if only_moves(augment, plan) and self._fits(images, host):
            view = fixed_view(host, crop_pct=1.0, interpolation=augment.interpolation)
            return PixelSplit(
                images, view, plan, classes=parts.classes, host=host, seed=self.seed, repeats=augment.repeats
            )
        view = random_view(augment, plan, host)
        return ImageSplit(images, view, classes=parts.classes, host=host, seed=self.seed, repeats=augment.repeats)

    def _evaluation_split(self, val: Images, parts: Parts, plan: ViewPlan, host: HostInput) -> LabelledSplit:
        view = fixed_view(host, crop_pct=plan.eval_crop_pct)
        if self._fits(val, host):
            return PixelSplit(val, view, None, classes=parts.classes, host=host, seed=self.seed)
        return ImageSplit(val, view, classes=parts.classes, host=host, seed=self.seed)

    def _cached(self, images: Images, host: HostInput) -> Images:
        return decoded(images, host.mode) if self.config.data.cache and not images.in_memory else images

    def _fits(self, images: Images, host: HostInput) -> bool:
        """Whether fixed views are made once and held: where asked for, or where they are few and small."""
        if self.config.data.cache is None:
            return len(images) * host.channels * host.height * host.width <= VIEWS_LIMIT
        return self.config.data.cache


def _facts(
    parts: Parts,
    val: Images,
    plan: ViewPlan,
    host: HostInput,
    *,
    source: str,
    image: tuple[tuple[int, int], str],
) -> dict[str, Any]:
    """What was found and decided, for the run folder and the report."""

    def counts(images: Images) -> dict[str, int]:
        return dict(zip(parts.classes, class_counts(images, len(parts.classes)).tolist(), strict=True))

    return {
        "task": "classification",
        "source": source,
        "kind": parts.kind,
        "where": parts.where,
        "split": parts.origin,
        "classes": list(parts.classes),
        "sizes": {"train": len(parts.train), "val": len(val)},
        "counts": {"train": counts(parts.train), "val": counts(val)},
        "image": {"first_size": list(image[0]), "first_mode": image[1]},
        "input": {
            "size": [host.channels, host.height, host.width],
            "mean": list(host.mean),
            "std": list(host.std),
            "interpolation": host.interpolation,
            "eval_crop_pct": plan.eval_crop_pct,
        },
        "augment": {"crop": plan.crop, "padding": plan.padding, "hflip": plan.hflip, "vflip": plan.vflip},
    }
