"""What a model makes of images: any of the forms in which there is one, fed as evaluation feeds it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from attngraft.errors import ExportError, UsageError
from attngraft.export import onnx, torch_export
from attngraft.export.check import Forward
from attngraft.saved.folder import load
from attngraft.saved.manifest import MANIFEST, Manifest, parse_manifest, read_manifest
from attngraft.targets.run import open_run
from attngraft.tasks.images.heads import mean_logits
from attngraft.tasks.images.serving import Preparation
from attngraft.tasks.images.sources.decoding import UnreadableImage
from attngraft.tasks.task import Serving
from attngraft.training.evaluate import Weights

_READERS = 4  #: threads that decode images; Pillow lets go of Python's lock meanwhile
_OPENERS = {".onnx": onnx.open_onnx, ".pt2": torch_export.open_program}


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What the model says of one image; or why it could not be read."""

    image: str  #: as it was named
    probabilities: np.ndarray | None = None  #: (classes,)
    error: str | None = None


class Predictor:
    """A model with its way from a file to probabilities.

        predictor = open_model("./flowers-model")
        for prediction in predictor(["a.jpg", "b.jpg"]):
            print(prediction.image, predictor.serving.classes[prediction.probabilities.argmax()])

    Args:
        forward: normalized images (B, C, H, W) to outputs (B, classes).
        serving: what the model takes, and what its outputs mean.
        dtype: that the model takes.
    """

    def __init__(self, forward: Forward, serving: Serving, *, dtype: torch.dtype = torch.float32) -> None:
        self.serving = serving
        self._forward, self._dtype = forward, dtype
        self._preparation = Preparation.of_serving(serving)

    def __call__(self, images: Iterable[str | os.PathLike[str]], *, batch: int = 32) -> Iterator[Prediction]:
        """A prediction for each file, in order; those that cannot be read say why and do not stop the others."""
        with ThreadPoolExecutor(min(_READERS, os.cpu_count() or 1)) as readers:
            for names in _batched((os.fspath(image) for image in images), batch):
                views = list(readers.map(self._view, names))
                readable = [view for view in views if isinstance(view, Tensor)]
                found = iter(self._probabilities(readable) if readable else ())
                for name, view in zip(names, views, strict=True):
                    if isinstance(view, Tensor):
                        yield Prediction(image=name, probabilities=next(found))
                    else:
                        yield Prediction(image=name, error=view)

    def _view(self, name: str) -> Tensor | str:
        """The image as bytes (C, H, W), or why there is none."""
        try:
            with open(name, "rb") as stream:
                return self._preparation.view(stream, where=name)
        except UnreadableImage as error:
            return error.reason
        except OSError as error:
            return error.strerror or str(error)

    @torch.inference_mode()
    def _probabilities(self, views: list[Tensor]) -> np.ndarray:
        outputs = self._forward(self._preparation.batch(views).to(self._dtype))
        logits = mean_logits(outputs, classes=len(self.serving.classes)).cpu()
        several = self.serving.activation == "sigmoid"
        probabilities: np.ndarray = (logits.sigmoid() if several else logits.softmax(-1)).numpy()
        return probabilities


def open_model(
    model: str | os.PathLike[str], *, checkpoint: Weights = "last", device: str | torch.device | None = None
) -> Predictor:
    """A predictor from an exported folder, a run's folder, a .pt2 program or an .onnx file.

    Args:
        model: where it is. A program says itself how it is fed, so it can be used apart from its folder.
        checkpoint: of a run: the weights of the last epoch, of the best one, or their moving averages.
        device: where a folder's model runs; None: the accelerator, if there is one. Programs run on the CPU.

    Raises:
        UsageError: there is nothing there, or something else.
        ExportError: it is damaged, or says nothing of how it is fed.
        TrainingError: a run without such weights.
    """
    path = Path(model)
    if path.is_dir():
        return _of_folder(path, checkpoint, device)
    if not path.is_file():
        raise UsageError(f"{path}: there is no such model; give an exported folder, a run's folder, a .pt2 or an .onnx")
    if path.suffix not in _OPENERS:
        raise UsageError(f"{path}: is no model; give an exported folder, a run's folder, a .pt2 or an .onnx")
    forward, text = _OPENERS[path.suffix](path)
    manifest = _manifest(path, text)
    return Predictor(forward, manifest.serving, dtype=getattr(torch, manifest.dtype))


def _of_folder(path: Path, checkpoint: Weights, device: str | torch.device | None) -> Predictor:
    if device is None:
        device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else "cpu"
    if (path / "recipe.yaml").is_file():
        source = open_run(path, checkpoint, unfinished=True)
        network, manifest = source.model, source.manifest
    else:
        manifest = read_manifest(path)
        network = load(path)
    try:
        network = network.to(device)
    except (RuntimeError, AssertionError) as error:  # no such name, or built without it
        raise UsageError(f"--device {device}: {str(error).splitlines()[0]}") from None
    return Predictor(lambda images: network(images.to(device)), manifest.serving, dtype=getattr(torch, manifest.dtype))


def _manifest(path: Path, text: str | None) -> Manifest:
    """What a program carries; else what its folder says."""
    if text is not None:
        return parse_manifest(text, where=f"{path} ({MANIFEST})")
    if (path.parent / MANIFEST).is_file():
        return read_manifest(path.parent)
    raise ExportError(
        f"{path}: says nothing of its classes and of how images are prepared for it; use one that attngraft export made"
    )


def _batched(names: Iterable[str], size: int) -> Iterator[list[str]]:
    iterator = iter(names)
    while part := list(itertools.islice(iterator, size)):
        yield part
