"""Classification of point clouds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import numpy as np
from torch import Tensor, nn

from attngraft.errors import ConfigError
from attngraft.files import printable
from attngraft.results.records import Records
from attngraft.results.sections import Metric
from attngraft.tasks.classification.labels import LabelTask
from attngraft.tasks.classification.losses import example_losses
from attngraft.tasks.heads import mean_logits
from attngraft.tasks.points.codec import PointsCodec
from attngraft.tasks.points.config import PointsConfig
from attngraft.tasks.points.facts import PointFacts
from attngraft.tasks.points.opened import open_clouds, sampling_of
from attngraft.tasks.points.split import PointSplit, Sampling
from attngraft.tasks.points.suites import PointAccess, suites
from attngraft.tasks.points.voting import mean_probabilities
from attngraft.tasks.suites import Suite, SuiteSupport
from attngraft.tasks.task import Batch, Split, TaskData, to_records

SOURCES = "an .npz file or a folder train/CLASS/ of .txt, .npy, .off, .ply or .pcd files"


class Points(LabelTask):
    """Classification of point clouds with one label each.

    A batch is `{"points": (B, N, 3 or 6), "target": (B,)}`.
    """

    name = "points"
    default_recipe = "tiny-points"
    metrics: ClassVar = {
        **LabelTask.metrics,
        "top1": Metric(label="overall accuracy", column="OA", share=True),
        "balanced_accuracy": Metric(label="mean class accuracy", column="mAcc", share=True),
    }
    capabilities = frozenset({"data_check", "export", "folds", "halving", "predict", "suites"})
    has_light_inference = True
    config: PointsConfig
    facts_class = PointFacts
    config_class = PointsConfig
    sources = SOURCES
    noun = "cloud"

    def __init__(self, config: PointsConfig, *, seed: int) -> None:
        super().__init__(config, seed=seed)
        self._normals: bool | None = None  # whether a trained model gets normals
        self._least = 1  # smallest batch

    def use_fitted_transform(self, facts: Mapping[str, Any]) -> None:
        self._normals = facts["input"]["normals"]

    def load(self, *, model_data_config: Mapping[str, Any]) -> TaskData:
        check_host(self.name, model_data_config, labels="clouds", other="point_parts")
        self._least = model_data_config["least_batch"]
        config, source = self.config, open_clouds(self.config, saved_split=self._saved_split)
        self._random_split = source.drawn
        self.set_classes(source.classes, np.bincount(source.train.categories, minlength=len(source.classes)))
        sampling = sampling_of(config, has_normals=source.train.has_normals, known=self._normals)
        splits = {
            name: PointSplit(
                clouds, sampling, augment=config.augment if name == "train" else None, seed=self.seed
            )
            for name, clouds in source.splits().items()
        }  # fmt: skip
        facts = {"task": self.name, "source": config.data.source, **source.facts(), "input": input_facts(sampling)}
        both = source.train.joined(source.val)
        return TaskData(
            train=splits["train"],
            val=splits["val"],
            test=splits.get("test"),
            whole=(lambda: PointSplit(both, sampling)) if source.drawn and source.test is None else None,
            model_args={"num_classes": self._classes, "in_chans": sampling.channels},
            facts=printable(facts),
            refusal=source.refusal,
        )

    def refuse_batch(self, size: int, *, processes: int) -> str:
        return refuse_batch(size, self._least)

    def to_model(self, batch: Batch) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        return (batch["points"],), {}

    def infer(self, model: nn.Module, batch: Batch, *, full: bool = True) -> Records:
        """Return the records of a batch; with votes and `full`, of the mean probabilities."""
        if not full or self.config.test.votes == 1:
            return super().infer(model, batch, full=full)

        def probabilities(points: Tensor) -> Tensor:
            logits = mean_logits(model(points), classes=self._classes)
            return logits.sigmoid() if self.activation == "sigmoid" else logits.softmax(-1)

        found = mean_probabilities(probabilities, batch["points"], votes=self.config.test.votes)
        return to_records(self.predict(found.logit() if self.activation == "sigmoid" else found.log(), batch))

    def compatible(self, a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
        """Return whether both have the same classes, and the model's input is there."""
        return super().compatible(a, b) and a["input"]["normals"] == b["input"]["normals"]

    def codec(self, facts: Mapping[str, Any], *, model_data_config: Mapping[str, Any]) -> PointsCodec:
        return PointsCodec(
            Sampling(**facts["input"]),
            classes=facts["classes"],
            votes=self.config.test.votes,
            activation=self.activation,
            any_normals=bool(self.config.data.normals),
        )

    @classmethod
    def suites(cls) -> Mapping[str, Suite]:
        return suites()

    def suite_support(self) -> SuiteSupport:
        def subset(split: Split, indices: np.ndarray) -> Split:
            return cast(PointSplit, split).take(indices)

        def losses(outputs: Any, batch: Batch) -> Tensor:
            logits = mean_logits(outputs, classes=self._classes)
            return example_losses(self.config.loss, logits, batch["target"])

        return SuiteSupport(
            access=PointAccess(), losses=losses, columns=("target", "predicted", "confidence"), subset=subset
        )


def refuse_batch(size: int, least: int) -> str:
    """Return why training on micro-batches of `size` clouds fails, and the remedy, or an empty string."""
    if size >= least:
        return ""
    return f"this host's batch norms need {least} or more clouds per micro-batch and process; use larger batches"


def check_host(task: str, host: Mapping[str, Any], *, labels: str, other: str) -> None:
    """Check that the host takes point clouds, and classifies what the task needs.

    Raises:
        ConfigError: it does not.
    """
    names = {"clouds": "attngraft:bixt_points_naive, attngraft:pointnet or attngraft:pointmlp"}
    names["points"] = "attngraft:bixt_parts_naive, attngraft:bixt_parts_hier or attngraft:pointmlp_parts"
    if host.get("kind") != "points":
        raise ConfigError(f"task {task}: the host does not take point clouds; use --host {names[labels]}")
    if host["labels"] != labels:
        raise ConfigError(
            f"task {task}: the host classifies {host['labels']}, not {labels}; use --host {names[labels]}, or --task {other}"
        )


def input_facts(sampling: Sampling) -> dict[str, Any]:
    """Return what a trained model gets, for `Sampling`."""
    return {name: getattr(sampling, name) for name in ("points", "sample", "normals", "normalize")}
