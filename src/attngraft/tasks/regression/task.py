"""Regression: one or several numbers per image."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from attngraft.errors import DataError
from attngraft.files import write_atomically
from attngraft.opening import read_mapping
from attngraft.results.column_rules import ColumnRules
from attngraft.results.measured import Measured
from attngraft.results.records import RecordTable
from attngraft.results.sections import Metric, Section
from attngraft.results.study import Chance
from attngraft.strict import FieldError, OpenSection, read, require
from attngraft.tasks.facts import Facts, ImageInputFacts
from attngraft.tasks.heads import mean_logits
from attngraft.tasks.images.task import ImageTask
from attngraft.tasks.regression.config import RegressionConfig
from attngraft.tasks.regression.evaluator import measure, sections
from attngraft.tasks.task import Batch, Serving, TaskData

FILE = "scale.json"  #: file with the mean and standard deviation of the training numbers (`Task.save_files`)


@dataclass(frozen=True, kw_only=True)
class ScaleFacts(OpenSection):
    """Mean and standard deviation of each number in the training images."""

    mean: list[float]
    deviation: list[float]

    def __post_init__(self) -> None:
        require(self, "deviation", all(each > 0 for each in self.deviation), "must be positive")


@dataclass(frozen=True, kw_only=True)
class RegressionFacts(Facts):
    """Facts of regression."""

    targets: list[str]
    scale: ScaleFacts
    input: ImageInputFacts

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("mean", "deviation"):
            if not len(self.targets) == len(getattr(self.scale, name)) > 0:
                raise FieldError(f"scale.{name}", "must have a number for each of the targets")

    @property
    def outputs(self) -> int:
        return len(self.targets)


class Regression(ImageTask):
    """Prediction of K numbers per image.

    A batch is `{"image": (B, C, H, W), "target": (B, K)}`. Targets are standardized float32; the mean and standard deviation
    over the training images are in the facts. The host returns standardized predictions (B, K).
    """

    name = "regression"
    default_recipe = "regression"
    primary = "rmse"  # default; the recipe can set another metric
    higher_is_better = False
    metrics: ClassVar = {
        "rmse": Metric(label="root mean squared error", column="RMSE", higher_is_better=False),
        "mae": Metric(label="mean absolute error", column="MAE", higher_is_better=False),
        "r2": Metric(label="R²"),
        "spearman": Metric(label="Spearman's rank correlation", column="Spearman"),
    }
    column_rules = ColumnRules(truth=["target"])
    config: RegressionConfig
    config_class = RegressionConfig
    facts_class = RegressionFacts
    numeric = True
    sources = "a .csv, .tsv or .parquet with a column of image paths and columns of numbers; bars"
    activation = "none"
    _scale: Mapping[str, Sequence[float]] | None = None  # None until `load_files` or `load`

    def load(self, *, model_data_config: Mapping[str, Any]) -> TaskData:
        loaded = self.load_images(model_data_config)
        numbers = loaded.train.labels
        if self._scale is None:
            self._scale = {"mean": numbers.mean(0).tolist(), "deviation": numbers.std(0).tolist()}
        mean, deviation = (np.array(self._scale[name]) for name in ("mean", "deviation"))
        for split in loaded.splits.values():
            split.labels = ((split.labels - mean) / deviation).astype(np.float32)
        return self.task_data(loaded, facts={"scale": self._scale})

    def load_files(self, folder: Path) -> None:
        path = folder / FILE
        if path.exists():
            try:
                scale = asdict(read(ScaleFacts, read_mapping(path), where="scale"))
            except (OSError, ValueError) as error:
                raise DataError(f"{path}: cannot be read ({error}); restore the file") from None
            self._refuse_other_scale(scale)
            self._scale = scale

    def _refuse_other_scale(self, scale: Mapping[str, Sequence[float]]) -> None:
        if self._scale is not None and {name: self._scale[name] for name in scale} != scale:
            raise DataError(f"{FILE}: is not the scale in data.json; restore good copies of both files")

    def save_files(self, folder: Path) -> None:
        if self._scale is not None:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / FILE, json.dumps(self._scale) + "\n")

    def use_fitted_transform(self, facts: Mapping[str, Any]) -> None:
        super().use_fitted_transform(facts)
        self._scale = facts["scale"]
        data = replace(self.config.data, label_column=None, label_columns=tuple(facts["targets"]))
        self.config = replace(self.config, data=data)

    def _loss(self, logits: Tensor, target: Tensor) -> Tensor:
        return self.example_losses(logits, target).mean()

    def example_losses(self, logits: Tensor, target: Tensor) -> Tensor:
        config = self.config.loss
        if config.name == "huber":
            losses = F.huber_loss(logits, target, reduction="none", delta=config.delta)
        else:
            losses = (F.mse_loss if config.name == "mse" else F.l1_loss)(logits, target, reduction="none")
        return losses.mean(1)

    def predict(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """Return `target` and `predicted` (B, K), in the units of the data, float64."""
        logits = mean_logits(outputs, classes=self._classes)
        return {"target": self._numbers(batch["target"]), "predicted": self._numbers(logits)}

    def _numbers(self, standardized: Tensor) -> Tensor:
        scale = self._scale or {}  # set by load
        mean, deviation = (torch.tensor(scale[name], dtype=torch.float64) for name in ("mean", "deviation"))
        return standardized.cpu().double() * deviation + mean  # on the CPU, because not every device has float64

    def measure(self, table: RecordTable, facts: Mapping[str, Any]) -> Measured:
        return measure(table)

    def chance(self, table: RecordTable, facts: Mapping[str, Any]) -> Chance:
        """Return the metrics of always predicting the mean of the training numbers."""
        target = table.array("target")
        predicted = np.broadcast_to(np.array(facts["scale"]["mean"]), target.shape)
        values = measure(RecordTable(names=table.names, columns={"predicted": predicted, "target": target})).values
        return Chance(description="always the mean of the training images", values=dict(values))

    def sections(self, predictions: Sequence[Mapping[str, Any]], *, facts: Mapping[str, Any]) -> list[Section]:
        """Return tables of errors and of predicted against true values for each number."""
        return sections(predictions, names=facts["targets"])

    def compatible(self, a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
        return a.get("targets") == b.get("targets")

    def serving(self, facts: Mapping[str, Any], *, model_data_config: Mapping[str, Any]) -> Serving:
        described = super().serving({**facts, "classes": facts["targets"]}, model_data_config=model_data_config)
        scale = facts["scale"]
        self._refuse_other_scale(scale)
        return replace(described, scale=tuple(scale["deviation"]), offset=tuple(scale["mean"]))

    @classmethod
    def from_serving(cls, serving: Serving) -> tuple[dict[str, Any], dict[str, Any]]:
        section, facts = super().from_serving(serving)
        scale = {"mean": list(serving.offset), "deviation": list(serving.scale)}
        return section, {"targets": facts["classes"], "input": facts["input"], "scale": scale}

    @classmethod
    def missing_from_host(cls, model_data_config: Mapping[str, Any]) -> str:
        return "the mean and deviation of the numbers that it was trained on"
