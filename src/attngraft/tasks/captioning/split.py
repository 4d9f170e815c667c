"""Splits of images with captions: features, ids of the captions, and references."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import numpy as np
import torch

from attngraft.tasks.captioning.features import FeatureFile
from attngraft.tasks.captioning.source import CaptionedImages
from attngraft.tasks.captioning.vocabulary import PAD, Vocabulary
from attngraft.tasks.task import Batch, Split

IGNORED = -100  #: label of padding


class CaptionSplit(Split):
    """Images with captions.

    Args:
        images: the images.
        features: their features.
        vocabulary: the words of captions.
        max_length: largest number of tokens of a caption, with its end; longer ones are cut.
        per: what an example is: a `caption` with its image, for training with cross-entropy; or an `image` with all its
            captions, for evaluation and for training by rewards.
    """

    def __init__(
        self,
        images: CaptionedImages,
        features: FeatureFile,
        vocabulary: Vocabulary,
        *,
        max_length: int,
        per: Literal["caption", "image"] = "caption",
    ) -> None:
        self.images, self.per = images, per
        self._features, self._vocabulary, self._max_length = features, vocabulary, max_length
        counts = [len(each) for each in images.captions]
        self._image = np.repeat(np.arange(len(images)), counts)  # of each caption
        self._first = np.cumsum([0, *counts])

    def __len__(self) -> int:
        return len(self._image) if self.per == "caption" else len(self.images)

    def __getitem__(self, key: tuple[int, int]) -> dict[str, Any]:
        """Return `features` (R, C), `ids` of one or all captions, and `references`, all captions as texts."""
        index = key[1]
        image = int(self._image[index]) if self.per == "caption" else index
        captions = self.images.captions[image]
        chosen = [captions[index - self._first[image]]] if self.per == "caption" else captions
        return {
            "features": torch.from_numpy(self._features.rows(self.images, image)),
            "ids": [self._vocabulary.encode(each, max_length=self._max_length) for each in chosen],
            "references": list(captions),
        }

    def collate(self, examples: list[dict[str, Any]]) -> Batch:
        """Return a batch of B images with T captions of up to L tokens.

        `features` (B, R, C), zero at padding, and `feature_mask` (B, R), 1 for regions; `input_ids` (T, L): <bos> and the
        words, `labels` (T, L): the words and <eos>, -100 at padding; `image` (T,): image of each caption; `references`: the
        captions of each image.
        """
        rows = [each["features"] for each in examples]
        features = torch.zeros(len(rows), max(map(len, rows)), rows[0].shape[1])
        mask = torch.zeros(features.shape[:2], dtype=torch.int64)
        for number, each in enumerate(rows):
            features[number, : len(each)] = each
            mask[number, : len(each)] = 1
        ids = [caption for each in examples for caption in each["ids"]]
        inputs = torch.full((len(ids), max(map(len, ids)) - 1), PAD)
        labels = torch.full_like(inputs, IGNORED)
        for number, each in enumerate(ids):
            inputs[number, : len(each) - 1] = torch.from_numpy(each[:-1])
            labels[number, : len(each) - 1] = torch.from_numpy(each[1:])
        counts = torch.tensor([len(each["ids"]) for each in examples])
        return {
            "features": features,
            "feature_mask": mask,
            "input_ids": inputs,
            "labels": labels,
            "image": torch.arange(len(examples)).repeat_interleave(counts),
            "references": [each["references"] for each in examples],
        }

    def name(self, index: int) -> str:
        """Return the image's name; of a caption, with its number, as in Flickr's files: `1.jpg#0`."""
        if self.per == "image":
            return self.images.names[index]
        image = int(self._image[index])
        return f"{self.images.names[image]}#{index - self._first[image]}"

    def fingerprint(self) -> bytes:
        found = hashlib.sha256(f"{self._vocabulary.digest} {self._features.digest} {self._max_length}".encode())
        for captions in self.images.captions:
            found.update("\n".join([*captions, ""]).encode() + b"\0")
        return found.digest()
