"""Detection in image files by a trained model, without its data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attngraft.files import atomic_file
from attngraft.tasks.detection.augmentation import resized
from attngraft.tasks.detection.config import DetectionTestConfig
from attngraft.tasks.detection.drawing import drawn
from attngraft.tasks.detection.inference import Detected, detect, in_pixels
from attngraft.tasks.images.file_codec import ImageFileCodec
from attngraft.tasks.images.inputs import HostInput, image_to_tensor
from attngraft.tasks.task import unwrapped

_SHOWN = 0.5  #: smallest score of the detections that are drawn
_SIDE = 64  #: of example inputs, if images have no fixed size


class DetectionCodec(ImageFileCodec):
    """Image files as inputs; detections in pixels of the image as outputs.

    Args:
        host: the host's input.
        test: settings of the inference.
        canvas: height and width of the host's input if it is fixed, else None.
        classes: names of the classes.
        ids: the category ids of the data, one per class.
    """

    def __init__(
        self,
        host: HostInput,
        test: DetectionTestConfig,
        *,
        canvas: tuple[int, int] | None,
        classes: Sequence[str],
        ids: Sequence[int],
    ) -> None:
        super().__init__(host)
        self.test, self.canvas = test, canvas
        self.classes, self.ids = tuple(classes), tuple(ids)

    @property
    def _size(self) -> tuple[int, int]:
        return self.canvas or (self.test.size or _SIDE, self.test.size or _SIDE)

    def example_inputs(self, batch_size: int) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return random images (B, C, H, W) of the size of the canvas, or squares of the shorter side of test images."""
        return (torch.randn(batch_size, self.host.channels, *self._size),), {}

    def encode(self, inputs: Sequence[str]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return a list of resized and normalized images (C, h, w), and the heights and widths of the originals.

        Raises:
            DataError: a file cannot be read.
        """
        images, sizes = [], []
        for each in inputs:
            original = image_to_tensor(self.open_image(each))
            images.append(self.host.normalize(resized(original, self.test, self.canvas)))
            sizes.append(tuple(original.shape[-2:]))
        return (images, sizes), {}

    def run(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Detected]:
        """Return the detections of each image."""
        called = unwrapped(model)
        return [detect(called, image, size) for image, size in zip(*args, strict=True)]

    def decode(self, outputs: Any) -> list[list[dict[str, Any]]]:
        """Return the detections of each image as COCO's results, with the name of the class.

        Args:
            outputs: detections, or the detector's outputs for images of the size of example inputs.
        """
        size = self._size
        return [self._results(each if isinstance(each, Detected) else in_pixels(each, size, size)) for each in outputs]

    def _results(self, found: Detected) -> list[dict[str, Any]]:
        results = []
        for index, (label, score) in enumerate(zip(found.labels.tolist(), found.scores.tolist(), strict=True)):
            left, top, right, bottom = (round(value, 2) for value in found.boxes[index].tolist())
            results.append(
                {
                    "category_id": self.ids[label],
                    "class": self.classes[label],
                    "score": round(score, 6),
                    "bbox": [left, top, round(right - left, 2), round(bottom - top, 2)],
                }
            )
            if found.masks is not None:
                mask = found.masks[index]
                results[-1]["segmentation"] = {"size": list(mask["size"]), "counts": mask["counts"].decode("ascii")}
        return results

    def files(self, raw: str) -> list[str]:
        return [f"{Path(raw).stem}.json", f"{Path(raw).stem}-objects.jpg"]

    def save(self, raw: str, output: Detected, folder: Path) -> None:
        """Write detections as COCO annotations with scores, and a drawing of those with a score of at least 0.5."""
        image = self.open_image(raw).convert("RGB")
        rows = self._results(output)
        content = {
            "images": [{"id": 1, "file_name": Path(raw).name, "width": image.width, "height": image.height}],
            "categories": [{"id": key, "name": name} for key, name in zip(self.ids, self.classes, strict=True)],
            "annotations": [
                {"id": number, "image_id": 1, "iscrowd": 0, "area": row["bbox"][2] * row["bbox"][3], **row}
                for number, row in enumerate(rows, start=1)
            ],
        }
        kept = int((output.scores >= _SHOWN).sum())
        picture = drawn(
            image,
            output.boxes[:kept],
            output.labels[:kept],
            None if output.masks is None else output.masks[:kept],
            captions=[f"{row['class']} {row['score']:.2f}" for row in rows[:kept]],
        )
        text, drawing = self.files(raw)
        with atomic_file(folder / text) as file:
            file.write(json.dumps(content).encode())
        with atomic_file(folder / drawing) as file:
            picture.save(file, "JPEG")
