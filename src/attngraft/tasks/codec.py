"""Inputs and outputs of a trained model without its data, for export, prediction and cost measurements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from PIL import Image
from torch import Tensor, nn

from attngraft.tasks.heads import mean_logits

_LENGTH = 16  #: largest number of tokens in an example input


@dataclass(frozen=True, kw_only=True)
class Program:
    """A separately callable part of a model (all of it, an encoder, a generation step) with example inputs."""

    module: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TextInput:
    """A text, or an image to be captioned, as input of a model, with the tokens at both sides of its attention maps.

    The rows of a decoder's maps are its input tokens (the start token and all of `target` but the last), so row i belongs
    to the prediction of `target[i]`.
    """

    kwargs: Mapping[str, Any]  #: of the forward pass, for a batch of one
    source: tuple[str, ...]  #: tokens of the text, or positions of the image's features
    inputs: tuple[str, ...] = ()  #: input tokens of the decoder; empty without a decoder
    target: tuple[str, ...] = ()  #: predicted or given tokens of the output, one per input token
    keys: tuple[str, ...] = ()  #: `source` and what else an encoder attends to, such as memory slots; empty: `source`
    picture: Image.Image | None = None  #: the image, if `source` is a grid over all of it, row by row
    grid: tuple[int, int] = (0, 0)  #: rows and columns of the grid


class Codec(ABC):
    """Description of a model's inputs and outputs; returned by `Task.codec`."""

    lines: ClassVar[bool] = False  #: whether inputs and outputs are lines of text; blank lines are not predicted
    images: ClassVar[bool] = False  #: whether inputs are image files, and outputs can be saved as images (`save`)
    extensions: Sequence[str] = ()  #: of the files that are inputs, to find them in folders
    labels: Sequence[str] = ()  #: names of the classes, if `decode` returns their probabilities by name

    @property
    def takes(self) -> str:
        """The kind of inputs, for messages."""
        return "images" if self.images else "text" if self.lines else "other inputs"

    def check(self, raw: str) -> None:
        """Check that a raw input can be predicted; by default, every input can.

        Raises:
            DataError: it cannot; `attngraft predict` reports the reason and continues with the next input.
        """
        return

    @abstractmethod
    def example_inputs(self, batch_size: int) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return example positional and keyword arguments: on the CPU, drawn from torch's generator."""

    def programs(self, model: nn.Module, *, batch_size: int = 1) -> Mapping[str, Program]:
        """Return the separately callable parts of a model by name; by default only `forward`, the whole model."""
        args, kwargs = self.example_inputs(batch_size)
        return {"forward": Program(module=model, args=args, kwargs=kwargs)}

    def encode(self, inputs: Sequence[str]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return the model's positional and keyword arguments for raw inputs (those of `attngraft predict`).

        Raises:
            DataError: an input cannot be read.
        """
        raise NotImplementedError(
            f"{type(self).__name__}.encode is not implemented; override it to predict from raw inputs"
        )

    def run(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return the outputs for encoded inputs, by default from one forward pass; override this for generation."""
        return model(*args, **kwargs)

    @abstractmethod
    def decode(self, outputs: Any) -> list[Any]:
        """Return a JSON-ready value for each example of the model's outputs."""

    def files(self, raw: str) -> list[str]:
        """Return the names of the files that `save` writes for a raw input."""
        raise NotImplementedError(f"{type(self).__name__}.files is not implemented; override it to write images")

    def save(self, raw: str, output: Any, folder: Path) -> None:
        """Write the output for a raw input (one element of `run`'s result) to files in an existing folder.

        Raises:
            StorageError: a file cannot be written.
        """
        raise NotImplementedError(f"{type(self).__name__}.save is not implemented; override it to write images")

    def text_input(self, model: nn.Module, raw: str, target: str | None = None) -> TextInput:
        """Return a raw input, to show attention between its tokens and those of the output (`attngraft explore`).

        Args:
            model: the model, which may generate the output's tokens.
            raw: a text; for models that caption images (`takes`), an image file.
            target: the output's text; None: generate it.

        Raises:
            DataError: the input cannot be used.
        """
        raise NotImplementedError(
            f"{type(self).__name__}.text_input is not implemented; override it for models of texts"
        )


@dataclass(frozen=True, kw_only=True)
class Serving(Codec):
    """Description of models of images or texts whose outputs are classes or numbers, (B, K); JSON-ready."""

    #: kind of inputs, for `attngraft predict`; other: the task has its own codec
    kind: Literal["images", "text", "other"]
    #: images: size (C, H, W), mean, std, interpolation, crop_pct, crop_mode; text: tokenizer (a file of the model's folder),
    #: max_length, vocab_size, column
    input: Mapping[str, Any]
    #: function that maps the outputs (B, classes) to probabilities; none: numbers are predicted, outputs * scale + offset
    activation: Literal["softmax", "sigmoid", "none"]
    classes: tuple[str, ...]  #: names of the outputs: classes, or the predicted numbers
    threshold: float | None = None  #: multi-label: labels with at least this probability are predicted; None: one label
    scale: tuple[float, ...] = ()  #: factor of each predicted number
    offset: tuple[float, ...] = ()  #: offset of each predicted number

    @property
    def takes(self) -> str:
        return "other inputs" if self.kind == "other" else self.kind

    @property
    def numeric(self) -> bool:
        """Return whether the model predicts numbers instead of classes."""
        return self.activation == "none"

    def activate(self, outputs: Tensor) -> Tensor:
        """Return the probabilities, or the numbers in float64, of outputs (B, classes)."""
        if self.activation == "none":
            scale, offset = (torch.tensor(each, dtype=torch.float64) for each in (self.scale, self.offset))
            return outputs.double().cpu() * scale + offset
        return outputs.sigmoid() if self.activation == "sigmoid" else outputs.softmax(-1)

    def example_inputs(self, batch_size: int) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return standard-normal images (B, C, H, W), or random ids (B, L)."""
        if self.kind == "text":
            length = min(self.input["max_length"] or _LENGTH, _LENGTH)
            return (torch.randint(self.input["vocab_size"], (batch_size, length)),), {}
        return (torch.randn(batch_size, *map(int, self.input["size"])),), {}

    def decode(self, outputs: Any) -> list[dict[str, float]]:
        """Return the probabilities of the classes, or the numbers, by name."""
        logits = mean_logits(outputs, classes=len(self.classes))
        return [dict(zip(self.classes, row, strict=True)) for row in self.activate(logits).tolist()]


#: `serving` of the manifests of models whose codec is not a `Serving`
OTHER = Serving(kind="other", input={}, activation="none", classes=())
