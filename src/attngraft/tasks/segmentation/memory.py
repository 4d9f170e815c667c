"""Memory of the prediction of an image, estimated on the meta device."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import nn

from attngraft.tasks.memory import InferenceMemory, peak_on_meta
from attngraft.tasks.segmentation.config import InferenceConfig
from attngraft.tasks.segmentation.inference import predict_labels

_PIXEL = 50  #: bytes per pixel of `mask_statistics`
_SIDES = (2048, 1024, 512)  #: shorter sides that are suggested


def inference_memory(
    model: nn.Module, size: tuple[int, int], test: InferenceConfig, *, window: tuple[int, int], channels: int
) -> InferenceMemory:
    """Estimate the memory of the prediction of an image and of its statistics, and of other settings of the inference.

    Args:
        model: the model in evaluation mode, on the meta device.
        size: width and height of the image.
        test, window: see `predict_labels`.
        channels: C of the image.
    """

    def count(config: InferenceConfig) -> int:
        image = torch.empty(channels, *size[::-1], device="meta")
        return max(
            peak_on_meta(model, lambda: predict_labels(model, image, config, window=window)),
            _PIXEL * size[0] * size[1],
        )

    return InferenceMemory(
        what=f"evaluating the largest image, {size[0]} x {size[1]},",
        bytes=count(test),
        smaller={text: partial(count, config) for text, config in _others(test, min(size)).items()},
    )


def _others(test: InferenceConfig, side: int) -> dict[str, InferenceConfig]:
    """Return settings that need less memory, by their names in the recipe; those that change least come first."""
    found, names = {}, list[str]()
    if test != test.light():
        test, names = test.light(), ["task.test.scales=[1]", "task.test.flip=false"]
        found[" --set ".join(names)] = test
    if test.mode == "whole":
        found[" --set ".join([*names, "task.test.mode=slide"])] = replace(test, mode="slide")
    for shorter in _SIDES:
        if shorter < min(side, test.size or side):
            found[" --set ".join([*names, f"task.test.size={shorter}"])] = replace(test, size=shorter)
    return found
