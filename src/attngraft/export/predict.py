"""Predictions on image files, by a run, an exported folder, or a program, with the preprocessing of evaluation."""

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
from attngraft.saved.manifest import MANIFEST, parse_manifest, read_manifest
from attngraft.targets.run import open_run
from attngraft.tasks.images.heads import mean_logits
from attngraft.tasks.images.sources.decoding import UnreadableImage
from attngraft.tasks.images.transforms import Preprocessor
from attngraft.tasks.task import Serving
from attngraft.training.evaluate import Weights

_READERS = 4  #: threads that decode images; Pillow releases the GIL meanwhile
_OPENERS = {".onnx": onnx.open_onnx, ".pt2": torch_export.open_program}


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Probabilities of one image, or the reason why it is unreadable."""

    image: str  #: name as given
    probabilities: np.ndarray | None = None  #: (classes,)
    error: str | None = None


class Predictor:
    """A model with its preprocessing: maps image files to probabilities.

        predictor = open_model("./flowers-model")
        for prediction in predictor(["a.jpg", "b.jpg"]):
            print(prediction.image, predictor.serving.classes[prediction.probabilities.argmax()])

    Args:
        forward: maps normalized images (B, C, H, W) to outputs (B, classes).
        serving: the model's inputs and outputs.
        dtype: of the model's input.
    """

    def __init__(self, forward: Forward, serving: Serving, *, dtype: torch.dtype = torch.float32) -> None:
        self.serving = serving
        self._forward, self._dtype = forward, dtype
        self._preprocessor = Preprocessor.from_serving(serving)

    def __call__(self, images: Iterable[str | os.PathLike[str]], *, batch: int = 32) -> Iterator[Prediction]:
        """Yield a prediction per file, in order; unreadable files give the reason and do not stop the others."""
        names = (os.fspath(image) for image in images)
        with ThreadPoolExecutor(min(_READERS, os.cpu_count() or 1)) as readers:
            while part := list(itertools.islice(names, batch)):
                inputs = list(readers.map(self._read, part))
                readable = [each for each in inputs if isinstance(each, Tensor)]
                probabilities = iter(self._probabilities(readable) if readable else ())
                for name, each in zip(part, inputs, strict=True):
                    if isinstance(each, Tensor):
                        yield Prediction(image=name, probabilities=next(probabilities))
                    else:
                        yield Prediction(image=name, error=each)

    def _read(self, name: str) -> Tensor | str:
        """Return the image as uint8 (C, H, W), or why it cannot be read."""
        try:
            with open(name, "rb") as stream:
                return self._preprocessor.read(stream, where=name)
        except UnreadableImage as error:
            return error.reason
        except OSError as error:
            return error.strerror or str(error)

    @torch.inference_mode()
    def _probabilities(self, images: list[Tensor]) -> np.ndarray:
        outputs = self._forward(self._preprocessor.batch(images).to(self._dtype))
        logits = mean_logits(outputs, classes=len(self.serving.classes)).cpu()
        sigmoid = self.serving.activation == "sigmoid"
        probabilities: np.ndarray = (logits.sigmoid() if sigmoid else logits.softmax(-1)).numpy()
        return probabilities


def open_model(
    model: str | os.PathLike[str], *, checkpoint: Weights = "last", device: str | torch.device | None = None
) -> Predictor:
    """Open an exported folder, a run's folder, a .pt2 program or an .onnx file as a predictor.

    Args:
        model: the path. A program contains its manifest, so it works apart from its folder.
        checkpoint: for a run: the weights of the last epoch, of the best one, or their moving averages.
        device: device of a folder's model; None: the accelerator, if there is one. Programs run on the CPU.

    Raises:
        UsageError: no such path, or something else.
        ExportError: it is damaged, or has no manifest.
        TrainingError: a run without such weights.
    """
    path = Path(model)
    if path.is_dir():
        return _open_folder(path, checkpoint, device)
    if not path.is_file():
        raise UsageError(f"{path}: no such model; give an exported folder, a run's folder, a .pt2 or an .onnx")
    if path.suffix not in _OPENERS:
        raise UsageError(f"{path}: not a model; give an exported folder, a run's folder, a .pt2 or an .onnx")
    forward, text = _OPENERS[path.suffix](path)
    if text is not None:
        manifest = parse_manifest(text, where=f"{path} ({MANIFEST})")
    elif (path.parent / MANIFEST).is_file():
        manifest = read_manifest(path.parent)
    else:
        raise ExportError(
            f"{path}: has no manifest, so its classes and how images are prepared are unknown; use a file that attngraft "
            "export made"
        )
    return Predictor(forward, manifest.serving, dtype=getattr(torch, manifest.dtype))


def _open_folder(path: Path, checkpoint: Weights, device: str | torch.device | None) -> Predictor:
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
    except (RuntimeError, AssertionError) as error:  # an unknown name, or torch was built without it
        raise UsageError(f"--device {device}: {str(error).splitlines()[0]}") from None
    return Predictor(lambda images: network(images.to(device)), manifest.serving, dtype=getattr(torch, manifest.dtype))
