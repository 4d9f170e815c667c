"""Predictions of classes or numbers for image files or texts by a run, an exported folder or a program, as in evaluation.

Writers save predictions as CSV, as JSON, or as one JSON object per line.
"""

import csv
import io
import itertools
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch
from accelerate.utils import send_to_device
from torch import Tensor, nn

from attngraft.errors import ExportError, UsageError
from attngraft.export import onnx, torch_export
from attngraft.export.check import Forward
from attngraft.models.trust import trusting
from attngraft.saved.folder import load, open_codec
from attngraft.saved.manifest import MANIFEST, parse_manifest, read_manifest
from attngraft.targets.run import open_run
from attngraft.tasks.codec import OTHER, Codec, Serving
from attngraft.tasks.images.heads import mean_logits
from attngraft.tasks.images.sources.decoding import UnreadableImage
from attngraft.tasks.images.transforms import Preprocessor
from attngraft.tasks.text.lengths import call_model
from attngraft.tasks.text.tokenizer import read_tokenizer
from attngraft.training.evaluate import Weights

_READERS = 4  #: number of threads that decode images, during which Pillow releases the GIL
_OPENERS = {".onnx": onnx.open_onnx, ".pt2": torch_export.open_program}

Format = Literal["csv", "json", "jsonl"]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Probabilities, numbers or another value for one input, or the reason why it cannot be read."""

    image: str  #: name of the file as given by the user, or the text
    probabilities: np.ndarray | None = None  #: (classes,)
    numbers: np.ndarray | None = None  #: (numbers,) of a model that predicts numbers
    value: Any = None  #: JSON-ready, of a task with its own codec
    error: str | None = None


class Predictor:
    """A model with its preprocessing, which maps image files to probabilities.

        predictor = open_model("./flowers-model")
        for prediction in predictor(["a.jpg", "b.jpg"]):
            print(prediction.image, predictor.serving.classes[prediction.probabilities.argmax()])

    Args:
        forward: function that maps normalized images (B, C, H, W) to outputs (B, classes).
        serving: description of the model's inputs and outputs.
        dtype: dtype of the model's input.
    """

    def __init__(self, forward: Forward, serving: Serving, *, dtype: torch.dtype = torch.float32) -> None:
        self.serving = serving
        self._forward, self._dtype = forward, dtype
        self._preprocessor = Preprocessor.from_serving(serving)

    def __call__(self, images: Iterable[str | os.PathLike[str]], *, batch: int = 32) -> Iterator[Prediction]:
        """Yield a prediction per file, in order; for unreadable files, it contains the reason instead of probabilities."""
        names = (os.fspath(image) for image in images)
        with ThreadPoolExecutor(min(_READERS, os.cpu_count() or 1)) as readers:
            while part := list(itertools.islice(names, batch)):
                inputs = list(readers.map(self._read, part))
                readable = [each for each in inputs if isinstance(each, Tensor)]
                predicted = iter(self._predicted(readable) if readable else ())
                field = "numbers" if self.serving.numeric else "probabilities"
                for name, each in zip(part, inputs, strict=True):
                    if isinstance(each, Tensor):
                        yield Prediction(image=name, **{field: next(predicted)})
                    else:
                        yield Prediction(image=name, error=each)

    def _read(self, name: str) -> Tensor | str:
        """Return the image as uint8 (C, H, W), or the reason why it cannot be read."""
        try:
            with open(name, "rb") as stream:
                return self._preprocessor.read(stream, where=name)
        except UnreadableImage as error:
            return error.reason
        except OSError as error:
            return error.strerror or str(error)

    @torch.inference_mode()
    def _predicted(self, images: list[Tensor]) -> np.ndarray:
        return _activated(self._forward(self._preprocessor.batch(images).to(self._dtype)), self.serving)


class TextPredictor(Predictor):
    """A model with its tokenizer, which maps texts to probabilities.

    Args:
        model: network that takes `input_ids` and `attention_mask` (B, L).
        serving: description of the model's inputs and outputs.
        folder: the folder of the run or the exported model, with the tokenizer.
        device: the device of the model.
    """

    def __init__(self, model: nn.Module, serving: Serving, *, folder: Path, device: str | torch.device) -> None:
        self.serving = serving
        self._model, self._device = model, device
        self._tokenizer = read_tokenizer(folder / serving.input["tokenizer"])

    @torch.inference_mode()
    def __call__(self, texts: Iterable[str | os.PathLike[str]], *, batch: int = 32) -> Iterator[Prediction]:
        """Yield a prediction per text, in order."""
        remaining = (str(text) for text in texts)
        while part := list(itertools.islice(remaining, batch)):
            inputs = self._tokenizer.batch(self._tokenizer.encode(part)[0])
            outputs = call_model(self._model, **{name: value.to(self._device) for name, value in inputs.items()})
            for text, probabilities in zip(part, _activated(outputs, self.serving), strict=True):
                yield Prediction(image=text, probabilities=probabilities)


class CodecPredictor(Predictor):
    """A model with its task's own codec (`Task.codec`).

    Args:
        model: the network.
        codec: description of its inputs and outputs.
        device: the device of the model.
    """

    def __init__(self, model: nn.Module, codec: Codec, *, device: str | torch.device) -> None:
        self.serving = OTHER
        self._model, self._codec, self._device = model, codec, device

    @torch.no_grad()
    def __call__(self, inputs: Iterable[str | os.PathLike[str]], *, batch: int = 32) -> Iterator[Prediction]:
        """Yield a prediction per input, in order."""
        remaining = (os.fspath(each) for each in inputs)
        while part := list(itertools.islice(remaining, batch)):
            args, kwargs = send_to_device(self._codec.encode(part), self._device)
            outputs = self._codec.run(self._model, args, kwargs)
            for name, value in zip(part, self._codec.decode(outputs), strict=True):
                yield Prediction(image=name, value=value)


def _activated(outputs: object, serving: Serving) -> np.ndarray:
    logits = mean_logits(outputs, classes=len(serving.classes)).cpu()
    predicted: np.ndarray = serving.activate(logits).numpy()
    return predicted


def open_model(
    model: str | os.PathLike[str],
    *,
    checkpoint: Weights = "last",
    device: str | torch.device | None = None,
    trust_code: bool = False,
) -> Predictor:
    """Open an exported folder, a run's folder, a .pt2 program or an .onnx file as a predictor.

    Args:
        model: the path. Programs contain their manifest, so they can be used without their folder.
        checkpoint: for a run: the weights of the last or best epoch, or their moving averages.
        device: device of a folder's model; None: the accelerator, if there is one. Programs run on the CPU.
        trust_code: import a `module:` host that the folder names, which runs its code.

    Raises:
        UsageError: the path does not exist, or is not a model.
        ExportError: the model is damaged or has no manifest.
        TrainingError: the run does not have these weights.
    """
    path = Path(model)
    if path.is_dir():
        return _open_folder(path, checkpoint, device, trust_code=trust_code)
    if not path.is_file():
        raise UsageError(f"{path}: does not exist; use an exported folder, a run's folder, or a .pt2 or .onnx file")
    if path.suffix not in _OPENERS:
        raise UsageError(f"{path}: not a model; use an exported folder, a run's folder, or a .pt2 or .onnx file")
    forward, text = _OPENERS[path.suffix](path)
    if text is not None:
        manifest = parse_manifest(text, where=f"{path} ({MANIFEST})")
    elif (path.parent / MANIFEST).is_file():
        manifest = read_manifest(path.parent)
    else:
        raise ExportError(
            f"{path}: has no manifest, so classes and preprocessing are unknown; use a file written by attngraft export"
        )
    return Predictor(forward, manifest.serving, dtype=getattr(torch, manifest.dtype))


def _open_folder(path: Path, checkpoint: Weights, device: str | torch.device | None, *, trust_code: bool) -> Predictor:
    if device is None:
        device = torch.accelerator.current_accelerator(check_available=True) or "cpu"
    if (path / "recipe.yaml").is_file():
        source = open_run(path, checkpoint, unfinished=True, trust_code=trust_code, purpose="predict")
        network, manifest, codec = source.model, source.manifest, source.codec
    else:
        manifest = read_manifest(path)
        network = load(path, trust_code=trust_code)
        with trusting(every=trust_code):
            codec = open_codec(manifest, path)
    try:
        network = network.to(device)
    except (RuntimeError, AssertionError) as error:  # unknown device, or torch was built without it
        raise UsageError(f"--device {device}: {str(error).splitlines()[0]}") from None
    if manifest.serving.kind == "other":
        return CodecPredictor(network, codec, device=device)
    if manifest.serving.kind == "text":
        return TextPredictor(network, manifest.serving, folder=path, device=device)
    return Predictor(lambda images: network(images.to(device)), manifest.serving, dtype=getattr(torch, manifest.dtype))


class PredictionWriter(ABC):
    """Base class for writing predictions to an open binary file, as UTF-8; names that are not UTF-8 keep their bytes.

    For one label per image, the output contains the most probable class, or the `top` classes, with probabilities. For
    several labels, it contains the labels whose probability reaches the threshold, and the probabilities of all or the
    `top` classes. For numbers, it contains all of them.

    Args:
        file: the output file.
        serving: description of the model's inputs and outputs.
        top: number of classes; None: one, or all classes for several labels per image.

    Raises:
        UsageError: `top` is given, and the model predicts numbers.
    """

    def __init__(self, file: IO[bytes], serving: Serving, *, top: int | None = None) -> None:
        if serving.numeric and top is not None:
            numbers = f"predicts numbers ({', '.join(serving.classes)})" if serving.classes else "has other outputs"
            raise UsageError(f"--top: this model {numbers}, not classes; remove it")
        self.file, self.serving = file, serving
        self.multilabel = serving.threshold is not None
        self.noun = {"text": "text", "other": "input"}.get(serving.kind, "image")
        self.all = top is None and self.multilabel
        self.top = min(top or 1, len(serving.classes))

    def begin(self) -> None:
        """Write the header."""
        return

    @abstractmethod
    def add(self, prediction: Prediction) -> None: ...

    def end(self) -> None:
        """Write the footer."""
        return

    def write(self, text: str) -> None:
        self.file.write(text.encode("utf-8", "surrogateescape"))

    def labels(self, probabilities: np.ndarray) -> list[str]:
        """Return the predicted labels of an image, for several labels per image."""
        reached = probabilities >= (self.serving.threshold or 0)
        return [self.serving.classes[index] for index in np.flatnonzero(reached)]

    def numbers(self, prediction: Prediction) -> dict[str, float]:
        """Return the predicted numbers by name."""
        found = () if prediction.numbers is None else prediction.numbers
        return {name: _rounded(number) for name, number in zip(self.serving.classes, found, strict=True)}

    def best(self, probabilities: np.ndarray) -> list[tuple[str, float]]:
        """Return the most probable classes in descending order; ties are in the order of the classes."""
        order = np.argsort(-probabilities, kind="stable")[: self.top]
        return [(self.serving.classes[index], _rounded(probabilities[index])) for index in order]


class CsvWriter(PredictionWriter):
    """Write CSV with the columns `image` (or `text`), those of the prediction, and `error` (empty if readable).

    For one label per image, the columns of the prediction are `label`, `probability`, `label_2`, `probability_2`, ... For
    several, they are `labels`, separated by `;` (by `|` if a class name contains `;`), and a column per class (`p:NAME`).
    Numbers have a column each.
    """

    def begin(self) -> None:
        ranks = [f"_{rank}" if rank > 1 else "" for rank in range(1, self.top + 1)]
        columns = [f"{column}{rank}" for rank in ranks for column in ("label", "probability")]
        if self.multilabel:
            columns = ["labels", *([f"p:{name}" for name in self.serving.classes] if self.all else columns)]
        if self.serving.numeric:
            columns = list(self.serving.classes) or ["prediction"]
        self.width = len(columns)
        self.separator = "|" if any(";" in name for name in self.serving.classes) else ";"
        self._row([self.noun, *columns, "error"])

    def add(self, prediction: Prediction) -> None:
        probabilities = prediction.probabilities
        if prediction.error is not None:
            self._row([prediction.image, *[""] * self.width, prediction.error])
            return
        if prediction.value is not None:
            self._row([prediction.image, _json(prediction.value), ""])
            return
        if probabilities is None:
            self._row([prediction.image, *self.numbers(prediction).values(), ""])
            return
        cells: list[Any] = [cell for pair in self.best(probabilities) for cell in pair]
        if self.multilabel:
            values = [_rounded(value) for value in probabilities] if self.all else cells
            cells = [self.separator.join(self.labels(probabilities)), *values]
        self._row([prediction.image, *cells, ""])

    def _row(self, cells: list[Any]) -> None:
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(cells)
        self.write(line.getvalue())


class JsonLinesWriter(PredictionWriter):
    """Write a JSON object per image on a line.

    It has `image` (or `text`), and `label`, `probability`, `top` (one label per image), or `labels`, `probabilities`
    (several labels), or `numbers`, or `error`.
    """

    def add(self, prediction: Prediction) -> None:
        self.write(_json(self.entry(prediction)) + "\n")

    def entry(self, prediction: Prediction) -> dict[str, Any]:
        probabilities = prediction.probabilities
        if prediction.error is not None:
            return {self.noun: prediction.image, "error": prediction.error}
        if prediction.value is not None:
            return {self.noun: prediction.image, "prediction": prediction.value}
        if probabilities is None:
            return {self.noun: prediction.image, "numbers": self.numbers(prediction)}
        best = self.best(probabilities)
        if self.multilabel:
            classes = self.serving.classes
            values = dict(zip(classes, map(_rounded, probabilities), strict=True)) if self.all else dict(best)
            return {self.noun: prediction.image, "labels": self.labels(probabilities), "probabilities": values}
        entry: dict[str, Any] = {self.noun: prediction.image, "label": best[0][0], "probability": best[0][1]}
        if len(best) > 1:
            entry["top"] = [{"label": label, "probability": value} for label, value in best]
        return entry


class JsonWriter(JsonLinesWriter):
    """Write one JSON object: `classes` or `numbers`, `threshold` (several labels), and a list, `images` or `texts`."""

    def begin(self) -> None:
        names = list(self.serving.classes)
        head: dict[str, Any] = {"numbers" if self.serving.numeric else "classes": names} if names else {}
        if self.multilabel:
            head["threshold"] = self.serving.threshold
        self.write(f'{_json(head)[:-1]}{", " if head else ""}"{self.noun}s": [')
        self.first = True

    def add(self, prediction: Prediction) -> None:
        self.write(("\n" if self.first else ",\n") + _json(self.entry(prediction)))
        self.first = False

    def end(self) -> None:
        self.write("\n]}\n")


WRITERS: dict[Format, type[PredictionWriter]] = {"csv": CsvWriter, "json": JsonWriter, "jsonl": JsonLinesWriter}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _rounded(value: float) -> float:
    """Round to six significant digits."""
    return float(f"{value:.6g}")
