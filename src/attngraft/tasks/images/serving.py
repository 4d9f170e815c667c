"""How a model of images is used away from its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO, Any, Literal

import torch
from PIL import Image
from torch import Tensor

from attngraft.tasks.images.inputs import HostInput
from attngraft.tasks.images.sources import in_mode
from attngraft.tasks.images.sources.decoding import decode
from attngraft.tasks.images.views import fixed_view
from attngraft.tasks.task import Serving


def image_serving(
    facts: Mapping[str, Any],
    *,
    model_data_config: Mapping[str, Any],
    activation: Literal["softmax", "sigmoid"],
    threshold: float | None = None,
) -> Serving:
    """What `Task.serving` returns for models of images, with evaluation's view as the input."""
    host = HostInput.from_model(model_data_config)
    return Serving(
        kind="images",
        input={
            "size": [host.channels, host.height, host.width],
            "mean": list(host.mean),
            "std": list(host.std),
            "interpolation": host.interpolation,
            "crop_pct": facts["input"]["eval_crop_pct"],  # decided by the size of the images it was trained on
            "crop_mode": host.crop_mode,
        },
        activation=activation,
        classes=tuple(facts["classes"]),
        threshold=threshold,
    )


class Preparation:
    """From files to what the model takes, by the very steps of evaluation."""

    def __init__(self, host: HostInput) -> None:
        self.host, self._view = host, fixed_view(host, crop_pct=host.crop_pct)

    @classmethod
    def of_serving(cls, serving: Serving) -> Preparation:
        """For a model whose task says how it is used."""
        given = serving.input
        channels, height, width = (int(number) for number in given["size"])
        return cls(
            HostInput(
                channels=channels,
                height=height,
                width=width,
                mean=tuple(given["mean"]),
                std=tuple(given["std"]),
                interpolation=given["interpolation"],
                crop_pct=given["crop_pct"],
                crop_mode=given["crop_mode"],
            )
        )

    def view(self, stream: IO[bytes], *, where: str) -> Tensor:
        """An encoded image as bytes (C, H, W): decoded, turned upright, in the host's mode, resized and cropped.

        Raises:
            UnreadableImage: names `where`.
        """
        return self.view_of(decode(stream, where=where))

    def view_of(self, image: Image.Image) -> Tensor:
        """The same of an image that is decoded and upright."""
        view: Tensor = self._view(in_mode(image, self.host.mode))
        return view

    def batch(self, views: Sequence[Tensor]) -> Tensor:
        """Views as normalized images (B, C, H, W), float32."""
        return self.host.normalize(torch.stack(list(views)))
