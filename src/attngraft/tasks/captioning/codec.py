"""Captions of image files by a trained model, without its data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attngraft.downloads import downloads, permitted_downloads
from attngraft.errors import AttngraftError, DataError, UsageError
from attngraft.hosts.hosted import host_of
from attngraft.opening import DAMAGE, TEXT_LIMIT, array_of, open_regular
from attngraft.suggest import first_line
from attngraft.tasks.captioning.config import CaptioningConfig
from attngraft.tasks.captioning.encoder import EncoderConfig, ImageEncoder, create_encoder, grid_of, read_images
from attngraft.tasks.captioning.features import LARGEST_ROWS, REGIONS, mistake
from attngraft.tasks.captioning.split import stacked
from attngraft.tasks.captioning.vocabulary import CaptionTokens, Vocabulary
from attngraft.tasks.codec import Codec, TextInput
from attngraft.tasks.images.inputs import HostInput
from attngraft.tasks.images.sources.listing import EXTENSIONS
from attngraft.tasks.images.stored import read_image
from attngraft.tasks.task import unwrapped
from attngraft.tensors import meta_device

FEATURES = ".npy"  #: extension of an image's features


class CaptioningCodec(Codec):
    """Image files, or their features as .npy (R, C), as inputs; captions as outputs.

    Args:
        tokens: the tokens of captions.
        config: the recipe's task section, for decoding.
        given: the model's input, if it takes images; None: the model takes features.
        encoder: the image model that computed its features; None: unknown, such as a detector.
        digest: of the weights of `encoder`.
        rows, channels: shape of the features of an image.
    """

    extensions = (*sorted(EXTENSIONS), FEATURES)
    takes = "images"

    def __init__(
        self,
        tokens: CaptionTokens,
        config: CaptioningConfig,
        *,
        given: HostInput | None,
        encoder: EncoderConfig | None,
        digest: str,
        rows: int,
        channels: int,
    ) -> None:
        self.tokens, self.config, self.given = tokens, config, given
        self._encoder_config, self._digest, self._shape = encoder, digest, (rows, channels)
        self._permitted = permitted_downloads()  # of names in the run's folder

    def example_inputs(self, batch_size: int) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return random features (B, R, C) or images, and tokens of a caption of the largest length (B, L)."""
        given, tokens = self.given, self.tokens
        if given is None:
            inputs = torch.randn(batch_size, *self._shape)
        else:
            inputs = torch.randint(256, (batch_size, given.channels, given.height, given.width), dtype=torch.uint8)
        ids = torch.randint(len(tokens), (batch_size, self.config.max_length))
        ids[ids == tokens.pad] = tokens.end
        ids[:, 0] = tokens.start
        return (inputs, ids), {}

    @cached_property
    def encoder(self) -> ImageEncoder:
        """The image model that computed the features of the training images.

        Raises:
            DataError: it is unknown, or its weights are not there, or others.
        """
        if self._encoder_config is None:
            raise DataError(
                f"the model takes features of another model, such as a detector; give each image's features as {FEATURES}, "
                "an array (regions, channels)"
            )
        remedy = f"restore them, or give each image's features as {FEATURES}"
        try:
            with meta_device():
                sized = create_encoder(replace(self._encoder_config, pretrained=False, weights=None)).eval()
            with torch.device("meta"), torch.no_grad():
                channels = sized(sized.blank()).shape[-1]
            if channels != self._shape[1]:
                raise DataError(f"it has {channels:,} channels, and the features of training have {self._shape[1]:,}")
            with downloads(self._permitted):
                encoder = create_encoder(self._encoder_config).eval()
        except AttngraftError as error:
            raise DataError(f"the features' model cannot be created: {error}; {remedy}") from None
        if encoder.digest() != self._digest:
            raise DataError(
                f"the weights of the features' model {self._encoder_config.name} are not those of training; {remedy}"
            )
        return encoder

    def check(self, raw: str) -> None:
        if raw.lower().endswith(FEATURES):
            self._features(raw)
        else:
            read_image(Path(raw))
            if self.given is None:
                _ = self.encoder

    def encode(self, inputs: Sequence[str]) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return images (B, C, H, W), or features (B, R, C), zero at padding.

        Raises:
            DataError: an input cannot be read, or its features are unknown.
        """
        if self.given is not None:
            return (read_images([Path(each) for each in inputs], self.given),), {}
        return (stacked([self._features(each) for each in inputs]),), {}

    def _features(self, raw: str) -> Tensor:
        if not raw.lower().endswith(FEATURES):
            device = next(self.encoder.parameters()).device
            with torch.inference_mode():
                rows: Tensor = self.encoder(read_images([Path(raw)], self.encoder.given).to(device))[0]
            return rows.clone()
        if self.given is not None:
            raise DataError("the model takes images, not features; give an image")
        try:
            with open_regular(raw) as file:
                array = array_of(file.read(TEXT_LIMIT))
        except DAMAGE as error:
            raise DataError(f"{raw}: cannot be read as .npy ({first_line(error)}); write it with numpy.save") from None
        grid = self._encoder_config is not None
        fits = array.dtype.kind == "f" and array.ndim == 2 and array.shape[1] == self._shape[1]
        if fits and not (grid and len(array) > LARGEST_ROWS):
            with np.errstate(over="ignore"):  # gives infinity, which is refused
                found = array[: None if grid else REGIONS].astype(np.float32)
            if not mistake(found):
                return torch.from_numpy(found)
        raise DataError(
            f"{raw}: must have finite floats (regions, {self._shape[1]}), not {array.dtype} {array.shape}; give the "
            "image's features"
        )

    def text_input(self, model: nn.Module, raw: str, target: str | None = None) -> TextInput:
        """Return an image or its features as input, with words as `inputs` and `target`.

        `source` is the grid of the image's features, `row 0, column 0` first, if the image model is known; otherwise the
        regions. Words that the model does not know are `<unk>`.
        """
        tokens = self.tokens
        if not isinstance(tokens, Vocabulary):
            raise UsageError(
                "the explorer shows captioners of words, such as attngraft:m2_transformer; give one of them"
            )
        self.check(raw)
        (inputs,), _ = self.encode([raw])
        if target is None:
            with torch.no_grad():
                row = self.generate(model, inputs.to(next(model.parameters()).device))[0, 1:].tolist()
            output = row[: row.index(tokens.end) + 1] if tokens.end in row else row
        else:
            output = tokens.encode(target)[1:].tolist()
        host: Any = host_of(unwrapped(model))[0]
        if len(output) > (most := len(host.positions)):
            raise DataError(
                f"the caption has {len(output)} words with its end, but the model writes {most}; shorten it"
            )
        ids, words = [tokens.start, *output[:-1]], tokens.words
        given, count = self.given, inputs.shape[1] if self.given is None else self._shape[0]
        if given is None and not raw.lower().endswith(FEATURES):
            given = self.encoder.given
        grid = None if given is None else grid_of(count, given)
        if grid is None:
            source = tuple(f"region {number + 1}" for number in range(count))
        else:
            source = tuple(f"row {number // grid[1]}, column {number % grid[1]}" for number in range(count))
        return TextInput(
            kwargs={"features" if self.given is None else "images": inputs, "ids": torch.tensor([ids])},
            source=source,
            inputs=tuple(words[number] for number in ids),
            target=tuple(words[number] for number in output),
            keys=(*source, *(f"memory slot {number + 1}" for number in range(host.slots))) if host.slots else (),
            picture=None if grid is None else read_image(Path(raw)),
            grid=grid or (0, 0),
        )

    def run(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
        """Return the tokens of the captions found by beam search."""
        return self.generate(model, args[0])

    def generate(self, model: nn.Module, inputs: Tensor, *, greedy: bool = False) -> Tensor:
        """Return the tokens (B, L) of captions, with the start token, padded.

        Args:
            inputs: features or images.
            greedy: decode greedily instead of by beam search.
        """
        called: Any = unwrapped(model)
        decoding = self.config.decoding
        tokens: Tensor = called.generate(
            inputs,
            num_beams=1 if greedy else decoding.beams,
            length_penalty=decoding.length_penalty,
            max_new_tokens=self.config.max_length,
        )
        return tokens

    def decode(self, outputs: Any) -> list[str]:
        """Return the captions of tokens (B, L) with the start token, or of the most probable tokens of logits (B, L, V).

        Of equal words in a row, one is kept, as in the meshed-memory transformer.
        """
        ids: Tensor = outputs.argmax(2) if outputs.ndim == 3 else outputs[:, 1:]
        return [" ".join(without_repeats(self.tokens.decode(row).split())) for row in ids.tolist()]


def without_repeats(words: Sequence[str]) -> list[str]:
    """Return words of which none equals the one before it."""
    return [word for place, word in enumerate(words) if place == 0 or words[place - 1] != word]
