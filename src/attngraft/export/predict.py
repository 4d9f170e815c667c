"""Predictions for images and texts by a run, an exported folder or a program, preprocessed as in evaluation.

Writers save predictions as CSV, as JSON, or as one JSON object per line.
"""

import csv
import io
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch
from accelerate.utils import send_to_device
from torch import Tensor, nn

from attngraft.devices import accelerator_device
from attngraft.errors import DataError, ExportError, UsageError
from attngraft.export import onnx, torch_export
from attngraft.export.check import Forward
from attngraft.files import csv_cell
from attngraft.models.trust import from_folder
from attngraft.opening import open_regular
from attngraft.saved.folder import load, open_codec
from attngraft.saved.manifest import MANIFEST, Manifest, check_file, parse_manifest, read_manifest
from attngraft.targets.run import open_run
from attngraft.tasks.codec import OTHER, Codec, Serving
from attngraft.tasks.heads import mean_logits
from attngraft.tasks.images.sources.decoding import UnreadableImage
from attngraft.tasks.images.transforms import Preprocessor
from attngraft.tasks.text.lengths import call_model
from attngraft.tasks.text.tokenizer import read_tokenizer
from attngraft.training.evaluate import Weights

_READERS = 4  #: number of threads that decode images; Pillow releases the GIL
_OPENERS = {".onnx": onnx.open_onnx, ".pt2": torch_export.open_program}

Format = Literal["csv", "json", "jsonl", "text"]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Probabilities, numbers or another value for one input, or the reason why it cannot be read."""

    image: str  #: name of the file as given by the user, or the text
    probabilities: np.ndarray | None = None  #: (classes,)
    numbers: np.ndarray | None = None  #: (numbers,) of a model that predicts numbers
    value: Any = None  #: JSON-ready, of a task with its own codec
    error: str | None = None


class Predictor:
    """A model with its preprocessing, which maps image files, texts or other inputs to predictions.

        predictor = open_model("./flowers-model")
        for prediction in predictor(["a.jpg", "b.jpg"]):
            print(prediction.image, predictor.serving.classes[prediction.probabilities.argmax()])

    Args:
        serving: description of the model's inputs and outputs.
        predict: function that maps a batch of inputs to their probabilities, numbers or other values.
        read: function that opens an input by name; None: the names are the inputs.
        codec: the task's own codec.
    """

    folder: Path | None = None  #: where a codec with `images` also saves its outputs; None: nowhere

    def __init__(
        self,
        serving: Serving,
        predict: Callable[[list[Any]], Sequence[Any] | np.ndarray],
        *,
        read: Callable[[str], Any] | None = None,
        codec: Codec | None = None,
    ) -> None:
        self.serving, self.codec = serving, codec
        self._predict, self._open = predict, read

    @property
    def lines(self) -> bool:
        """Whether inputs and outputs are lines of text."""
        return self.codec is not None and self.codec.lines

    @torch.no_grad()
    def __call__(self, inputs: Iterable[str | os.PathLike[str]], *, batch: int = 32) -> Iterator[Prediction]:
        """Yield a prediction per input, in order; for an unreadable file, `error` is set instead of the values."""
        names = (os.fspath(each) for each in inputs)
        field = "numbers" if self.serving.numeric else "probabilities"
        field = "value" if self.serving.kind == "other" and not self.serving.classes else field
        with ThreadPoolExecutor(min(_READERS, os.cpu_count() or 1)) as readers:
            while part := list(itertools.islice(names, batch)):
                read = list(readers.map(self._read, part))
                readable = [each for each in read if not isinstance(each, Prediction)]
                outputs = self._predict(readable) if readable else []
                if len(outputs) != len(readable):
                    raise ExportError(
                        f"the model returned {len(outputs)} outputs for {len(readable)} inputs; export it again"
                    )
                predicted = iter(outputs)
                for name, each in zip(part, read, strict=True):
                    yield each if isinstance(each, Prediction) else Prediction(image=name, **{field: next(predicted)})

    def _read(self, name: str) -> Any:
        """Return the opened input, or a prediction with the reason why it cannot be read."""
        try:
            return name if self._open is None else self._open(name)
        except UnreadableImage as error:
            reason = error.reason
        except DataError as error:
            reason = str(error)
        except OSError as error:
            reason = error.strerror or str(error)
        return Prediction(image=name, error=reason)


def _image_predictor(forward: Forward, manifest: Manifest) -> Predictor:
    serving, dtype = manifest.serving, getattr(torch, manifest.dtype)
    preprocessor = Preprocessor.from_serving(serving)

    def read(name: str) -> Tensor:
        with open_regular(name) as stream:
            return preprocessor.read(stream, where=name)

    def predict(images: list[Tensor]) -> np.ndarray:
        return _activated(forward(preprocessor.batch(images).to(dtype)), serving)

    return Predictor(serving, predict, read=read)


def _text_predictor(model: nn.Module, serving: Serving, *, folder: Path, device: str | torch.device) -> Predictor:
    file = folder / serving.input["tokenizer"]
    check_file(file, folder)
    tokenizer = read_tokenizer(file, of_model=serving.input)

    def predict(texts: list[str]) -> np.ndarray:
        inputs = tokenizer.batch(tokenizer.encode(texts)[0])
        return _activated(call_model(model, **send_to_device(inputs, device)), serving)

    return Predictor(serving, predict)


def _codec_predictor(model: nn.Module, codec: Codec, *, device: str | torch.device) -> Predictor:
    def read(raw: str) -> str:
        codec.check(raw)
        return raw

    def predict(inputs: list[str]) -> list[Any]:
        filled = [not codec.lines or bool(each.strip()) for each in inputs]
        if not any(filled):
            return [""] * len(inputs)
        args, kwargs = codec.encode([each for each, full in zip(inputs, filled, strict=True) if full])
        args, kwargs = send_to_device((args, kwargs), device)
        found = codec.run(model, args, kwargs)
        if predictor.folder is not None:
            for each, name in zip(found, inputs, strict=True):
                codec.save(name, each, predictor.folder)
        outputs = iter(codec.decode(found))
        if codec.labels:
            return [np.array([each[name] for name in codec.labels]) for each in outputs]
        return [next(outputs) if full else "" for full in filled]

    serving = replace(OTHER, classes=tuple(codec.labels), activation="softmax" if codec.labels else "none")
    predictor = Predictor(serving, predict, read=read, codec=codec)
    return predictor


def _activated(outputs: object, serving: Serving) -> np.ndarray:
    logits = mean_logits(outputs, classes=len(serving.classes)).cpu()
    predicted: np.ndarray = serving.activate(logits).numpy()
    if np.isnan(predicted).any():
        raise ExportError(
            "the model's outputs are not numbers; check its weights, and the preprocessing in its attngraft.json, or export "
            "it again"
        )
    return predicted


def open_model(
    model: str | os.PathLike[str],
    *,
    checkpoint: Weights = "last",
    device: str | torch.device | None = None,
    trust_code: bool = False,
    allow_download: bool = False,
) -> Predictor:
    """Open an exported folder, a run's folder, a .pt2 program or an .onnx file as a predictor.

    Args:
        model: the path. Programs contain their manifest, so they can be used without their folder.
        checkpoint: for a run: the weights of the last or best epoch, or their moving averages.
        device: device of a folder's model; None: the accelerator, if there is one. Programs run on the CPU.
        trust_code: import a `module:` host named in the folder, or open a .pt2 program; this runs its code.
        allow_download: download what the folder names (a host of the Hub, a data set) and is not in the caches.

    Raises:
        UsageError: the path does not exist, or is not a model.
        ExportError: the model is damaged or has no manifest.
        TrainingError: the run does not have these weights.
    """
    path = Path(model)
    if path.is_dir():
        with from_folder(trust_code=trust_code, allow_download=allow_download):
            return _open_folder(path, checkpoint, device, trust_code=trust_code)
    if not path.exists():
        raise UsageError(f"{path}: does not exist; use an exported folder, a run's folder, or a .pt2 or .onnx file")
    if path.suffix not in _OPENERS:
        raise UsageError(f"{path}: not a model; use an exported folder, a run's folder, or a .pt2 or .onnx file")
    if path.suffix == ".pt2" and not trust_code:
        raise UsageError(
            f"{path}: torch runs code that a .pt2 file contains; if you trust its source, add --trust-code "
            "(trust_code=True), or use the exported folder or an .onnx file"
        )
    check_file(path, path.parent)
    forward, text = _OPENERS[path.suffix](path)
    if text is not None:
        manifest = parse_manifest(text, where=f"{path} ({MANIFEST})")
    elif (path.parent / MANIFEST).is_file():
        manifest = read_manifest(path.parent)
    else:
        raise ExportError(
            f"{path}: has no manifest, so classes and preprocessing are unknown; use a file written by attngraft export"
        )
    return _image_predictor(forward, manifest)


def _open_folder(path: Path, checkpoint: Weights, device: str | torch.device | None, *, trust_code: bool) -> Predictor:
    if device is None:
        device = accelerator_device() or "cpu"
    if not (path / MANIFEST).is_file():
        source = open_run(path, checkpoint, unfinished=True, trust_code=trust_code, purpose="predict")
        network, manifest, codec = source.model, source.manifest, source.codec
    else:
        manifest = read_manifest(path)
        network = load(path, trust_code=trust_code)
        codec = open_codec(manifest, path)
    try:
        network = network.to(device)
    except (RuntimeError, AssertionError) as error:  # unknown device, or torch was built without it
        raise UsageError(f"--device {device}: {str(error).splitlines()[0]}") from None
    if manifest.serving.kind == "other":
        return _codec_predictor(network, codec, device=device)
    if manifest.serving.kind == "text":
        return _text_predictor(network, manifest.serving, folder=path, device=device)
    return _image_predictor(lambda images: network(images.to(device)), manifest)


class PredictionWriter:
    """Write predictions to an open binary file, a JSON object on each line; subclasses write other formats.

    The first key is `image`, `text` or `input`. The others depend on the model and the input:

    - one label per input: `label` and `probability` of the most probable class, and, if `top` is more than 1, `top`
    - several labels per input: `labels` whose probability reaches the threshold, and `probabilities` of all or `top` classes
    - numbers: `numbers`, by name
    - a task with its own codec: `prediction`
    - an unreadable input: `error`

    The file is UTF-8; names that are not UTF-8 keep their bytes.

    Args:
        file: the output file.
        serving: description of the model's inputs and outputs.
        top: number of classes; None: one, or all if an input can have several labels.

    Raises:
        UsageError: `top` is given, and the model does not predict classes.
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

    def add(self, prediction: Prediction) -> None:
        """Write a prediction."""
        self.write(_json(self.entry(prediction)) + "\n")

    def end(self) -> None:
        """Write the footer."""
        return

    def write(self, text: str) -> None:
        self.file.write(text.encode("utf-8", "surrogateescape"))

    def labels(self, probabilities: np.ndarray) -> list[str]:
        """Return the labels whose probability reaches the threshold."""
        reached = probabilities >= (self.serving.threshold or 0)
        return [self.serving.classes[index] for index in np.flatnonzero(reached)]

    def numbers(self, prediction: Prediction) -> dict[str, float]:
        """Return the predicted numbers by name."""
        found = () if prediction.numbers is None else prediction.numbers
        return {name: _rounded(number) for name, number in zip(self.serving.classes, found, strict=True)}

    def best(self, probabilities: np.ndarray) -> list[tuple[str, float]]:
        """Return the `top` classes with their probabilities, most probable first; ties keep the order of the classes."""
        order = np.argsort(-probabilities, kind="stable")[: self.top]
        return [(self.serving.classes[index], _rounded(probabilities[index])) for index in order]

    def entry(self, prediction: Prediction) -> dict[str, Any]:
        """Return a prediction as a JSON-ready object."""
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


class CsvWriter(PredictionWriter):
    """Write CSV. The first column is `image`, `text` or `input`; the last is `error`, empty for readable inputs.

    The columns between them depend on the model:

    - one label per input: `label`, `probability`, `label_2`, `probability_2`, ...
    - several labels per input: `labels`, separated by `;` (by `|` if a class name contains `;`), then one probability per
      class (`p:NAME`), or, if `top` is given, `label`, `probability`, `label_2`, ...
    - numbers: one column per number
    - a task with its own codec: `prediction`, as JSON unless it is a text
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
            value = prediction.value
            self._row([prediction.image, value if isinstance(value, str) else _json(value), ""])
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
        csv.writer(line, lineterminator="\n").writerow(map(csv_cell, cells))
        self.write(line.getvalue())


class JsonWriter(PredictionWriter):
    """Write one JSON object: names (`classes` or `numbers`), `threshold`, and `images`, `texts` or `inputs`."""

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


class TextWriter(PredictionWriter):
    """Write a line of text for every input, which is empty for an unreadable one."""

    def add(self, prediction: Prediction) -> None:
        self.write(f"{' '.join(str(prediction.value or '').splitlines())}\n")


WRITERS: dict[Format, type[PredictionWriter]] = {
    "csv": CsvWriter,
    "json": JsonWriter,
    "jsonl": PredictionWriter,
    "text": TextWriter,
}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _rounded(value: float) -> float:
    """Round to six significant digits."""
    return float(f"{value:.6g}")
