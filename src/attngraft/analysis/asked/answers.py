"""What a run answered on its validation images at its last epoch, from its predictions.npz."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attngraft.analysis.subjects import Subject
from attngraft.errors import TrainingError, UsageError


@dataclass(frozen=True, kw_only=True)
class Answers:
    """One label per image."""

    names: tuple[str, ...]
    target: np.ndarray  #: (N,)
    predicted: np.ndarray  #: (N,)
    classes: tuple[str, ...]


def answers_of(subject: Subject) -> Answers:
    """
    Raises:
        UsageError: the run has none, is not finished, or its images have not one label each.
        TrainingError: the file is damaged.
    """
    record = subject.record
    if record is None or record.predictions is None:
        raise UsageError(f"{subject.name}: has no predictions.npz; a run writes it when it is finished")
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
        names=tuple(map(str, names)),
        target=target.astype(np.int64),
        predicted=predicted.astype(np.int64),
        classes=tuple(map(str, record.facts["classes"])),
    )
