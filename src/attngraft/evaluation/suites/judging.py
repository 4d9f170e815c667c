"""What may be answered, and what counts as right, where a test set says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attngraft.tasks.images.heads import mean_logits
from attngraft.tasks.task import Evaluation


class Answering(nn.Module):
    """A classifier that answers with some of its classes alone: the others' logits are as low as can be (not minus infinity,
    with which losses of each class by itself are not numbers)."""

    allowed: Tensor

    def __init__(self, model: nn.Module, answers: np.ndarray, *, classes: int) -> None:
        super().__init__()
        self.model, self.classes = model, classes
        allowed = torch.zeros(classes, dtype=torch.bool)
        allowed[torch.from_numpy(answers)] = True
        self.register_buffer("allowed", allowed)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        logits = mean_logits(self.model(*args, **kwargs), classes=self.classes)
        return logits.masked_fill(~self.allowed, torch.finfo(logits.dtype).min / 4)


def judged(evaluation: Evaluation, accepted: Mapping[str, Sequence[int]]) -> Evaluation:
    """The evaluation of single labels with any of the `accepted` ones, by image, counting as right; `real` is the share.

    Metrics against one label are left out: which of several it is, is chance.
    """
    found = evaluation.predictions
    right = [
        int(predicted) in accepted[name] for name, predicted in zip(found.names, found.arrays["predicted"], strict=True)
    ]
    score = np.array(right, dtype=np.float64)
    predictions = replace(found, score=score, binary=True)
    return replace(evaluation, metrics={"real": float(score.mean())}, predictions=predictions)
