"""What models answer about labelled images: as their runs saved it, or as they say when they are shown the images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from attngraft.analysis.ask import Ask
from attngraft.errors import TrainingError, UsageError
from attngraft.targets.handle import ModelHandle
from attngraft.targets.images import ImageSet, numbered_names
from attngraft.targets.test_sets import CLASSES, synsets
from attngraft.tasks.images.heads import mean_logits


@dataclass(frozen=True, kw_only=True)
class Answers:
    """One label per image."""

    names: tuple[str, ...]
    target: np.ndarray  #: (N,)
    predicted: np.ndarray  #: (N,)
    classes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Answered:
    """What all models answer about the same images."""

    models: list[Answers]  #: in the order of the models
    images: str  #: which images they were, for a note

    @property
    def first(self) -> Answers:
        return self.models[0]


def answers_of_all(ask: Ask) -> Answered:
    """What runs saved in their predictions.npz, where all did and no other images were named; else the models are run on
    up to `limit` labelled images.

    A model that knows more classes than the data have chooses among the data's.

    Raises:
        UsageError: images without one label each, or a model of other classes; runs that were judged on other images.
        TrainingError: a file is damaged.
    """
    names = [subject.name for subject in ask.subjects]
    if not ask.saved:
        found = [_given(ask, subject) for subject in ask.subjects]
        images = f"{len(found[0].names)} labelled images of {ask.images.source}, among whose classes models choose"
        return Answered(models=found, images=images)
    found = [_saved(subject) for subject in ask.subjects]
    first = found[0]
    for name, each in zip(names[1:], found[1:], strict=True):
        if each.classes != first.classes:
            raise UsageError(
                f"{name} and {names[0]} were trained for other classes; give labelled images whose classes both know with "
                "--data"
            )
        if each.names != first.names or (each.target != first.target).any():
            raise UsageError(
                f"{name} and {names[0]} were judged on other images; give the same ones to both with --data"
            )
    return Answered(models=found, images="the validation images at the last epoch")


def _saved(subject: ModelHandle) -> Answers:
    record = subject.record
    if record is None or record.predictions is None:
        raise TypeError(f"{subject.name} saved nothing")  # whoever asks has looked
    try:
        with np.load(record.predictions, allow_pickle=False) as file:
            if not {"target", "predicted"} <= set(file.files):
                raise UsageError(
                    f"{subject.name}: its task gives images several labels, or none; this compares single ones"
                )
            target, predicted, names = file["target"], file["predicted"], file["name"]
    except (OSError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise TrainingError(f"{record.predictions}: cannot be read ({error}); make the run anew") from None
    return Answers(
        names=tuple(numbered_names(map(str, names))),
        target=target.astype(np.int64),
        predicted=predicted.astype(np.int64),
        classes=tuple(map(str, record.facts["classes"])),
    )


def _given(ask: Ask, subject: ModelHandle) -> Answers:
    """By running the model."""
    album = ask.images
    labels = _labels(album)
    places = album.sample(ask.limit)
    predicted: list[np.ndarray] = []
    columns: list[int] | None = None
    with torch.no_grad():
        for images in ask.batches(subject):
            outputs = subject.model(images)
            if columns is None:
                columns = _columns(subject, album, _outputs(outputs))
            logits = mean_logits(outputs, classes=_outputs(outputs)).cpu()
            predicted.append(logits[:, columns].argmax(1).numpy())
    return Answers(
        names=tuple(album.names[place] for place in places),
        target=labels[places].astype(np.int64),
        predicted=np.concatenate(predicted).astype(np.int64),
        classes=album.classes,
    )


def _labels(album: ImageSet) -> np.ndarray:
    if album.labels is None or not album.classes:
        raise UsageError(
            f"{album.source}: these images have no labels, so that no answer is right or wrong; give labelled images with "
            "--data (a folder with a folder per class, a table, ...)"
        )
    if album.labels.ndim != 1:
        raise UsageError(f"{album.source}: its images have several labels, or none; this compares single ones")
    return album.labels


def _outputs(outputs: object) -> int:
    """How many classes a model says."""
    head = outputs[0] if isinstance(outputs, tuple | list) and len(outputs) else outputs
    return int(head.shape[-1]) if isinstance(head, torch.Tensor) else 0


def _columns(subject: ModelHandle, album: ImageSet, outputs: int) -> list[int]:
    """Which of a model's outputs stands for each of the data's classes: by their names; where nobody named the model's, it
    is one of ImageNet or has as many as the data."""
    known = subject.classes
    if not known and outputs == CLASSES and set(album.classes) <= set(synsets()):
        known = synsets()
    if not known and outputs == len(album.classes):
        return list(range(outputs))
    if not known:
        raise UsageError(
            f"{subject.name}: says {outputs} classes without names, and {album.source} has {len(album.classes)}; give a "
            "run or an exported folder that was trained for these classes"
        )
    missing = [name for name in album.classes if name not in known]
    if missing:
        raise UsageError(
            f"{subject.name}: does not know {', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''} of {album.source}; "
            f"it knows {', '.join(known[:3])}{', ...' if len(known) > 3 else ''}: give data whose classes it was trained for"
        )
    return [known.index(name) for name in album.classes]
