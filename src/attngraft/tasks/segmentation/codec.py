"""Segmentation of image files by a trained model, without its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from attngraft.files import atomic_file
from attngraft.models.dense import padded_size
from attngraft.tasks.images.file_codec import ImageFileCodec
from attngraft.tasks.images.inputs import HostInput, image_to_tensor
from attngraft.tasks.images.transforms import Preprocessor
from attngraft.tasks.segmentation.config import InferenceConfig
from attngraft.tasks.segmentation.inference import predict_labels
from attngraft.tasks.task import unwrapped

_OPACITY = 0.5  #: of the colors of classes in an overlay


class SegmentationCodec(ImageFileCodec):
    """Image files as inputs; their label maps, in the size of the image, as outputs.

    Args:
        host: the host's input.
        test: settings of the inference.
        crop: height and width of training examples, the size of windows.
        classes, colors: names and colors of the classes.
    """

    def __init__(
        self,
        host: HostInput,
        test: InferenceConfig,
        *,
        crop: tuple[int, int],
        classes: Sequence[str],
        colors: Sequence[Sequence[int]],
    ) -> None:
        super().__init__(host)
        self.test, self.crop = test, tuple(crop)
        self.classes, self.colors = tuple(classes), [tuple(color) for color in colors]

    def example_inputs(self, batch_size: int) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return standard-normal images (B, C, H, W) of the size of the crop."""
        return (torch.randn(batch_size, self.host.channels, *self.crop),), {}

    def preprocessor(self) -> Preprocessor:
        """Return the preprocessing of images to one size for analyses: that of the crop, rounded up to multiples of 32.

        Images are resized to cover it, and center-cropped.
        """
        height, width = padded_size(self.crop)
        return Preprocessor(replace(self.host, height=height, width=width, crop_pct=1.0, crop_mode="center"))

    def encode(self, inputs: Sequence[str]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return a list of normalized images (C, H, W).

        Raises:
            DataError: a file cannot be read.
        """
        return ([self.host.normalize(image_to_tensor(self.open_image(each))) for each in inputs],), {}

    def run(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
        """Return label maps (H, W)."""
        called: Any = unwrapped(model)
        return [predict_labels(called, image, self.test, window=self.crop) for image in args[0]]  # type: ignore[arg-type]

    def decode(self, outputs: Any) -> list[dict[str, float]]:
        """Return the share of the pixels of each class that occurs, in descending order.

        Args:
            outputs: label maps, or logits (B, K, h, w).
        """
        maps = outputs.argmax(1) if isinstance(outputs, Tensor) and outputs.ndim == 4 else outputs
        found = []
        for labels in maps:
            shares = torch.bincount(labels.reshape(-1), minlength=len(self.classes)).double() / labels.numel()
            order = [index for index in shares.argsort(descending=True).tolist() if shares[index] > 0]
            found.append({self.classes[index]: round(float(shares[index]), 6) for index in order})
        return found

    def files(self, raw: str) -> list[str]:
        return [f"{Path(raw).stem}.png", f"{Path(raw).stem}-overlay.jpg"]

    def save(self, raw: str, output: Tensor, folder: Path) -> None:
        """Write a label map with the colors of the classes as its palette, and the colors over the image."""
        labels = output.to(torch.uint8).cpu().numpy()
        mask = Image.fromarray(labels)
        mask.putpalette([channel for color in self.colors for channel in color])
        pictures = (mask, "PNG"), (overlay(self.open_image(raw).convert("RGB"), labels, self.colors), "JPEG")
        for name, (image, form) in zip(self.files(raw), pictures, strict=True):
            with atomic_file(folder / name) as file:
                image.save(file, form)


def overlay(image: Image.Image, labels: np.ndarray, colors: Sequence[Sequence[int]]) -> Image.Image:
    """Return an RGB image with the colors of the labels (H, W) over it; labels without a color leave it as it is."""
    table = np.zeros((256, 3), dtype=np.uint8)
    table[: len(colors)] = colors
    known = Image.fromarray(np.where(labels < len(colors), round(255 * _OPACITY), 0).astype(np.uint8))
    return Image.composite(Image.fromarray(table[labels]), image, known)
