"""Predictions of models on labeled images, read from their runs or computed."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from attngraft.analysis.request import AnalysisRequest
from attngraft.errors import TrainingError, UsageError
from attngraft.opening import DAMAGE, open_npz
from attngraft.suggest import first_line, shortened
from attngraft.targets.handle import ModelHandle
from attngraft.targets.images import ImageSet, numbered_names
from attngraft.tasks.capabilities import require
from attngraft.tasks.heads import mean_logits
from attngraft.tasks.images.suites.test_sets import CLASSES, synsets
from attngraft.tasks.task import load_task


@dataclass(frozen=True, kw_only=True)
class LabelPredictions:
    """Predictions of one model, with one label per image."""

    names: tuple[str, ...]
    target: np.ndarray  #: class indices, (N,)
    predicted: np.ndarray  #: class indices, (N,)
    classes: tuple[str, ...]


def predictions_of_all(request: AnalysisRequest) -> tuple[list[LabelPredictions], str]:
    """Return the predictions of all models on the same images, and a description of the images.

    If all models are runs with a saved predictions.npz, and the user did not choose other images, the files are read.
    Otherwise the models are run on up to `limit` labeled images, and predict only the classes of the data.

    Raises:
        UsageError: images do not have one label each, a model was not trained for the classes, or the validation images
            of the runs differ.
        TrainingError: a file is damaged.
    """
    if not request.use_saved_predictions:
        predictions = [_predict(request, model) for model in request.models]
        count = len(predictions[0].names)
        return predictions, f"{count} labeled images of {request.images.source}, choosing among its classes"
    predictions = [_saved(model) for model in request.models]
    first = predictions[0]
    for name, each in zip(request.names[1:], predictions[1:], strict=True):
        both = f"{name} and {request.names[0]}"
        if each.classes != first.classes:
            raise UsageError(
                f"{both} were trained for different classes; use --data with labeled images of classes that both models have"
            )
        if each.names != first.names or (each.target != first.target).any():
            raise UsageError(
                f"{both} were validated on different images; use --data to evaluate both on the same images"
            )
    return predictions, "the validation images at the last epoch"


def _saved(model: ModelHandle) -> LabelPredictions:
    record = model.record
    if record is None or record.predictions is None:
        raise TypeError(f"{model.name} has no saved predictions")  # checked by `use_saved_predictions`
    require(load_task(record.recipe.task["name"]), "labels")
    record.check(record.predictions)
    try:
        with open_npz(record.predictions) as file:
            arrays = dict(file)
    except DAMAGE as error:
        raise TrainingError(f"{record.predictions}: cannot be read ({first_line(error)}); repeat the run") from None
    if not {"target", "predicted"} <= arrays.keys() or "classes" not in record.facts:
        raise UsageError(
            f"{model.name}: expected one label per image; its task has several labels or none; choose another run"
        )
    return LabelPredictions(
        names=tuple(numbered_names(map(str, arrays["name"]))),
        target=arrays["target"].astype(np.int64),
        predicted=arrays["predicted"].astype(np.int64),
        classes=tuple(map(str, record.facts["classes"])),
    )


def single_labels(images: ImageSet) -> np.ndarray:
    """Return the class of each image, (N,).

    Raises:
        UsageError: images do not have one label each.
    """
    if images.labels is None or not images.classes:
        raise UsageError(
            f"{images.source}: these images have no labels; use --data with labeled images (class folders, a table, ...)"
        )
    if images.labels.ndim != 1:
        raise UsageError(f"{images.source}: images have several labels; use --data with images of one label each")
    return images.labels


def class_logits(model: ModelHandle, images: ImageSet, outputs: Any) -> torch.Tensor:
    """Return the logits of the data's classes, (B, classes), from the outputs of a model.

    Raises:
        UsageError: the model was not trained for the classes.
    """
    head = outputs[0] if isinstance(outputs, tuple | list) and len(outputs) else outputs
    classes = int(head.shape[-1]) if isinstance(head, torch.Tensor) else 0
    return mean_logits(outputs, classes=classes)[:, _columns(model, images, classes)]


def _predict(request: AnalysisRequest, model: ModelHandle) -> LabelPredictions:
    images = request.images
    labels, indices = single_labels(images), images.sample(request.limit)
    predicted: list[np.ndarray] = []
    with torch.no_grad():
        for batch in request.batches(model):
            predicted.append(class_logits(model, images, model.model(batch)).argmax(1).cpu().numpy())
    return LabelPredictions(
        names=tuple(images.names[index] for index in indices),
        target=labels[indices].astype(np.int64),
        predicted=np.concatenate(predicted).astype(np.int64),
        classes=images.classes,
    )


def _columns(model: ModelHandle, images: ImageSet, outputs: int) -> list[int]:
    """Return the index of the model's output for each class of the data.

    Classes are matched by name. A model without class names is assumed to have the classes of ImageNet if it has 1000
    outputs, or the classes of the data if it has as many outputs.
    """
    known = model.classes
    if not known and outputs == CLASSES and set(images.classes) <= set(synsets()):
        known = synsets()
    if not known and outputs == len(images.classes):
        return list(range(outputs))
    if not known:
        raise UsageError(
            f"{model.name}: has {outputs} classes without names, but {images.source} has {len(images.classes)}; use a run "
            "or an exported folder that was trained for these classes"
        )
    missing = [name for name in images.classes if name not in known]
    if missing:
        raise UsageError(
            f"{model.name}: class {shortened(missing, 3)} of {images.source} is not among the model's classes "
            f"({shortened(known, 3)}); use data with classes that the model was trained for"
        )
    return [known.index(name) for name in images.classes]
