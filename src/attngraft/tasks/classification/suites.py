"""Test sets and folders of class folders for evaluating a trained classifier without its training data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attngraft.errors import DataError
from attngraft.tasks.heads import mean_logits
from attngraft.tasks.images.sources.base import TRAIN_NAMES, VAL_NAMES
from attngraft.tasks.images.sources.folder import FolderImages, list_folder
from attngraft.tasks.images.suites.test_sets import by_top_folder, imagenet_order, open_test_set
from attngraft.tasks.suites import JudgedModel, Suite, SuiteExamples
from attngraft.tasks.task import Evaluation, Split


class RestrictedClassifier(nn.Module):
    """A classifier restricted to some of its classes; the others get very low logits.

    The logits are not minus infinity, which would make losses of individual classes NaN.
    """

    allowed: Tensor

    def __init__(self, model: nn.Module, allowed: np.ndarray, *, classes: int) -> None:
        super().__init__()
        self.model, self.classes = model, classes
        mask = torch.zeros(classes, dtype=torch.bool)
        mask[torch.from_numpy(allowed)] = True
        self.register_buffer("allowed", mask)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        logits = mean_logits(self.model(*args, **kwargs), classes=self.classes)
        return logits.masked_fill(~self.allowed, torch.finfo(logits.dtype).min / 4)


def score_accepted(evaluation: Evaluation, accepted: Mapping[str, Sequence[int]]) -> Evaluation:
    """Return the accuracy `real`: any of an image's `accepted` classes is a correct prediction.

    Metrics that compare with a single label are dropped, because the choice among several labels is arbitrary.
    """
    predictions = evaluation.predictions
    correct = [
        int(predicted) in accepted[name]
        for name, predicted in zip(predictions.names, predictions.arrays["predicted"], strict=True)
    ]
    score = np.array(correct, dtype=np.float64)
    scored = replace(predictions, score=score, binary=True)
    return replace(evaluation, metrics={"real": float(score.mean())}, predictions=scored)


def open_test_set_of(
    suite: Suite, source: str | None, model: JudgedModel, *, open_test: Callable[..., Split]
) -> SuiteExamples:
    """Open the test set of a suite for a model with ImageNet's classes.

    Args:
        suite: the suite.
        source: folder of the test set.
        model: the model to evaluate.
        open_test: `Classification.open_test`.

    Raises:
        DataError: the model has other classes, or the images are missing or have an unexpected layout.
    """
    facts = model.facts or _imagenet_facts(model)
    order = imagenet_order(list(facts.get("classes", ())), run=model.name)
    if source is None:
        raise suite.missing()
    test_set = open_test_set(suite.test_set, Path(source))
    images = test_set.images.take(np.arange(len(test_set.images)), order[test_set.images.labels])
    examples = SuiteExamples(
        split=open_test(images, facts=facts, model_data_config=model.data_config),
        facts=facts,
        notes=test_set.notes,
    )
    if test_set.classes is not None:
        allowed = order[list(test_set.classes)]
        restrict = partial(RestrictedClassifier, allowed=allowed, classes=len(facts["classes"]))
        examples = replace(examples, answers=sorted(allowed.tolist()), restrict=restrict)
    if test_set.accepted:
        accepted = {image: [int(order[label]) for label in labels] for image, labels in test_set.accepted.items()}
        examples = replace(examples, metric="real", score=partial(score_accepted, accepted=accepted))
    return examples


def _imagenet_facts(model: JudgedModel) -> Mapping[str, Any]:
    """Return facts for a model without a run: its classes, numbered as in timm, and the crop of its host."""
    return {
        "classes": [str(number) for number in range(model.args.get("num_classes", 0))],
        "input": {"eval_crop_pct": model.data_config.get("crop_pct")},
    }


def class_folders(folder: Path, classes: Sequence[str]) -> FolderImages | None:
    """Return the images of a folder with one folder per class of the model; None for any other source.

    Raises:
        DataError: there are images outside of the class folders.
    """
    numbers = {name: index for index, name in enumerate(classes)}
    if not folder.is_dir():
        return None
    by_folder = by_top_folder(list_folder(folder).files)
    if by_folder.keys().isdisjoint(numbers):
        return None
    outside = sorted(file for name, files in by_folder.items() if name not in numbers for file in files)
    parts = {name.lower() for name in by_folder} & {*TRAIN_NAMES, *VAL_NAMES} if outside else set()
    training = not parts.isdisjoint(TRAIN_NAMES)
    if training and not parts.isdisjoint(VAL_NAMES):  # a data set with splits; a split has the name of a class
        return None
    if outside:
        raise DataError(
            f"{folder}: contains folders of the run's classes, but also {len(outside):,} image{'s' * (len(outside) > 1)} "
            f"outside of them ({outside[0]}); move images without a class elsewhere"
            + (", or select a split with --split" if training else "")
        )
    files = sorted(file for each in by_folder.values() for file in each)
    labels = np.array([numbers[file.split("/")[0]] for file in files], dtype=np.int64)
    return FolderImages(folder, names=files, labels=labels)
