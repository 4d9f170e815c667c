"""A host's outputs as logits over the data's classes."""

from __future__ import annotations

import torch
from torch import Tensor

from attngraft.errors import TrainingError


def heads_of(outputs: object, *, classes: int) -> tuple[Tensor, ...]:
    """The logits of each of the model's heads (B, classes): one, or two of a distilled host in training.

    Half precision becomes float32, because losses lose digits there.

    Raises:
        TrainingError: no tensor, or one of another shape.
    """
    heads = outputs if isinstance(outputs, tuple | list) else (outputs,)
    if len(heads) not in (1, 2) or not all(isinstance(head, Tensor) for head in heads):
        raise TrainingError(
            f"the host returned {_describe(outputs)}; classification needs a tensor of logits, or two from a distilled host"
        )
    for head in heads:
        if head.ndim != 2 or head.shape[1] != classes:
            raise TrainingError(
                f"the host returned logits of shape {tuple(head.shape)}; the data have {classes} classes, so they must be "
                f"(batch, {classes}): leave num_classes to the data"
            )
    return tuple(head.float() if head.dtype in (torch.float16, torch.bfloat16) else head for head in heads)


def mean_logits(outputs: object, *, classes: int) -> Tensor:
    """The mean over heads, in float32: what predictions are made from; (B, classes).

    Raises:
        TrainingError: see `heads_of`.
    """
    return torch.stack([head.float() for head in heads_of(outputs, classes=classes)]).mean(0)


def _describe(outputs: object) -> str:
    if isinstance(outputs, tuple | list):
        return f"{type(outputs).__name__} of {len(outputs)} ({', '.join(type(part).__name__ for part in outputs[:4])})"
    return type(outputs).__name__
