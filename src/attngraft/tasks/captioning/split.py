"""Splits of images with captions: features, ids of the captions, and references."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from attngraft.tasks.captioning.encoder import resized
from attngraft.tasks.captioning.features import FeatureFile
from attngraft.tasks.captioning.source import CaptionedImages
from attngraft.tasks.captioning.vocabulary import CaptionTokens
from attngraft.tasks.images.inputs import HostInput
from attngraft.tasks.images.stored import read_image
from attngraft.tasks.task import Batch, Split

IGNORED = -100  #: label of padding


class CaptionSplit(Split):
    """Images with captions.

    Args:
        images: the images.
        features: their features, or the input of a model that takes images.
        tokens: the tokens of captions.
        max_length: largest number of tokens of a caption, with its end; longer ones are cut.
        part: name of the split.
        per: what an example is: a `caption` with its image, or an `image` with all its captions.
    """

    def __init__(
        self,
        images: CaptionedImages,
        features: FeatureFile | HostInput,
        tokens: CaptionTokens,
        *,
        max_length: int,
        part: str,
        per: Literal["captions", "images"] = "captions",
    ) -> None:
        self.images, self.part, self.per = images, part, per
        self._features, self._tokens, self._max_length = features, tokens, max_length
        counts = [len(each) for each in images.captions]
        self._image = np.repeat(np.arange(len(images)), counts)  # of each caption
        self._first = np.cumsum([0, *counts])

    def __len__(self) -> int:
        return len(self._image) if self.per == "captions" else len(self.images)

    def __getitem__(self, key: tuple[int, int]) -> dict[str, Any]:
        """Return `inputs`, features (R, C) or a resized image; `ids` of one or all captions; and `index` of the image."""
        index = key[1]
        image = int(self._image[index]) if self.per == "captions" else index
        captions = self.images.captions[image]
        chosen = [captions[index - self._first[image]]] if self.per == "captions" else captions
        if isinstance(self._features, FeatureFile):
            inputs = torch.from_numpy(self._features.rows(self.images, image))
        else:
            inputs = resized(read_image(self.images.images[image]), self._features)
        ids = [self._tokens.encode(each, max_length=self._max_length) for each in chosen]
        return {"inputs": inputs, "ids": ids, "index": image}

    def collate(self, examples: list[dict[str, Any]]) -> Batch:
        """Return a batch of B images with T captions of up to L tokens.

        `inputs`: features (B, R, C), zero at padding, or images (B, 3, H, W); `input_ids` (T, L): the start token and the
        words, `labels` (T, L): the words and the end token, -100 at padding; `image` (T,): image of each caption; `index`
        (B,): number of the images in the split; `references`: the captions of each image; `part`.
        """
        ids = [caption for each in examples for caption in each["ids"]]
        tokens = torch.full((len(ids), max(map(len, ids)) - 1), self._tokens.pad)
        labels = torch.full_like(tokens, IGNORED)
        for number, each in enumerate(ids):
            tokens[number, : len(each) - 1] = torch.from_numpy(each[:-1])
            labels[number, : len(each) - 1] = torch.from_numpy(each[1:])
        counts = torch.tensor([len(each["ids"]) for each in examples])
        return {
            "inputs": stacked([each["inputs"] for each in examples]),
            "input_ids": tokens,
            "labels": labels,
            "image": torch.arange(len(examples)).repeat_interleave(counts),
            "index": torch.tensor([each["index"] for each in examples]),
            "references": [list(self.images.captions[each["index"]]) for each in examples],
            "part": self.part,
        }

    def name(self, index: int) -> str:
        """Return the image's name; of a caption, with its number, as in Flickr's files: `1.jpg#0`."""
        if self.per == "images":
            return self.images.names[index]
        image = int(self._image[index])
        return f"{self.images.names[image]}#{index - self._first[image]}"

    def fingerprint(self) -> bytes:
        inputs = self._features.digest if isinstance(self._features, FeatureFile) else repr(self._features)
        found = hashlib.sha256(f"{self._tokens.digest} {inputs} {self._max_length}".encode())
        for captions in self.images.captions:
            found.update("\n".join([*captions, ""]).encode() + b"\0")
        return found.digest()


def stacked(inputs: Sequence[Tensor]) -> Tensor:
    """Return features (R, C) of several images as (B, R, C), zero at padding; images are stacked."""
    return pad_sequence(list(inputs), batch_first=True) if inputs[0].ndim == 2 else torch.stack(list(inputs))
