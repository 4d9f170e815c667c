"""Distillation of image classifiers: conversion of images for the teacher, and loss on logits."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attngraft.errors import ConfigError
from attngraft.tasks.heads import mean_logits
from attngraft.tasks.images.inputs import HostInput, ImageBatches
from attngraft.tasks.task import Batch, Distillation

#: (student logits, teacher logits, temperature=, hard=) -> scalar
TeacherLoss = Callable[..., Tensor]


class ImageDistillation(Distillation):
    """Distillation for tasks whose models map images to logits (B, classes).

    Args:
        batches: normalizes batches for the student.
        student, teacher: description of each model's input.
        loss: compares the logits of both models; logits of a model with two heads are averaged.
        classes: number of classes.

    Raises:
        ConfigError: the teacher has one input channel and the student three.
    """

    def __init__(
        self, batches: ImageBatches, *, student: HostInput, teacher: HostInput, loss: TeacherLoss, classes: int
    ) -> None:
        if teacher.channels not in (student.channels, 3):
            raise ConfigError(
                f"distill.teacher: has {teacher.channels} input channels and the student {student.channels}; a grayscale "
                "teacher cannot be used with color images: use --host-arg in_chans=1, or use another teacher"
            )
        self._batches, self._loss, self._classes = batches, loss, classes
        self._convert = _InputConversion(student, teacher)

    def to_teacher(self, batch: Batch) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        (images,), _ = self._batches.to_model(batch)
        return (self._convert(images),), {}

    def loss(self, outputs: Any, taught: Any, *, temperature: float, hard: bool) -> Tensor:
        student, teacher = (mean_logits(each, classes=self._classes) for each in (outputs, taught))
        return self._loss(student, teacher, temperature=temperature, hard=hard)


class _InputConversion:
    """Convert the student's images (B, C, H, W) to the teacher's channels, size and normalization.

    The renormalization (x * std + mean - mean') / std' is one multiplication and one addition. It commutes with resizing,
    whose weights sum to 1.
    """

    def __init__(self, student: HostInput, teacher: HostInput) -> None:
        self._channels = teacher.channels
        self._size = (teacher.height, teacher.width)
        self._mode = teacher.interpolation if teacher.interpolation in ("bilinear", "bicubic") else "bicubic"
        gray = student.channels == 1
        mean, std = (values * self._channels if gray else values for values in (student.mean, student.std))
        same = mean == teacher.mean and std == teacher.std
        pairs = zip(mean, std, teacher.mean, teacher.std, strict=gray or student.channels == teacher.channels)
        self._scale, self._shift = None, None
        if not same:
            numbers = [(s / teacher_s, (m - teacher_m) / teacher_s) for m, s, teacher_m, teacher_s in pairs]
            self._scale, self._shift = (torch.tensor(column).view(-1, 1, 1) for column in zip(*numbers, strict=True))

    def __call__(self, images: Tensor) -> Tensor:
        if images.shape[1] != self._channels:
            images = images.expand(-1, self._channels, -1, -1)
        if images.shape[-2:] != self._size:
            images = F.interpolate(images, self._size, mode=self._mode, antialias=True)
        if self._scale is None or self._shift is None:
            return images
        if self._scale.device != images.device:  # at the first step only
            self._scale, self._shift = self._scale.to(images.device), self._shift.to(images.device)
        return torch.addcmul(self._shift.to(images.dtype), images, self._scale.to(images.dtype))
