"""Class logits from the outputs of a host."""

import torch
from torch import Tensor

from attngraft.errors import TrainingError


def heads_of(outputs: object, *, classes: int) -> tuple[Tensor, ...]:
    """Return the logits (B, classes) of each head: two for a distilled host in training, otherwise one.

    The outputs are tensors, or a transformers output with `logits`. Half precision is converted to float32 for the loss.

    Raises:
        TrainingError: an output is not a tensor, or does not have the shape (B, classes).
    """
    outputs = getattr(outputs, "logits", outputs)
    heads = outputs if isinstance(outputs, tuple | list) else (outputs,)
    if len(heads) not in (1, 2) or not all(isinstance(head, Tensor) for head in heads):
        kinds = type(outputs).__name__
        if isinstance(outputs, tuple | list):
            kinds += f" of {len(outputs)} ({', '.join(type(part).__name__ for part in outputs[:4])})"
        raise TrainingError(
            f"the host returned {kinds}; classification needs a tensor of logits, or two from a distilled host"
        )
    for head in heads:
        if head.ndim != 2 or head.shape[1] != classes:
            raise TrainingError(
                f"the host returned logits of shape {tuple(head.shape)}, but the data have {classes} classes, so the shape "
                f"must be (batch, {classes}); remove num_classes from host.args"
            )
    return tuple(head.float() if head.dtype in (torch.float16, torch.bfloat16) else head for head in heads)


def mean_logits(outputs: object, *, classes: int) -> Tensor:
    """Return the logits (B, classes) used for predictions: the mean over heads, in float32.

    Raises:
        TrainingError: see `heads_of`.
    """
    return torch.stack([head.float() for head in heads_of(outputs, classes=classes)]).mean(0)
