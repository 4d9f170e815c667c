"""Examples of captions and of images, and their batches."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from attngraft.tasks.captioning.features import FeatureFile
from attngraft.tasks.captioning.split import IGNORED, CaptionSplit
from attngraft.tasks.captioning.vocabulary import BOS, EOS, PAD, build_vocabulary
from tests.tasks.captioning import pictures
from tests.tasks.captioning.pictures import CHANNELS, opened, rows, write_features


def split_of(folder: Path, per: Literal["captions", "images"], *, max_length: int = 20) -> CaptionSplit:
    if not (folder / "captions_train.jsonl").exists():
        pictures.write_jsonl(folder)
        write_features(folder / "features.h5")
    images = opened(folder).train
    vocabulary = build_vocabulary([text for texts in images.captions for text in texts], min_count=1)
    features = FeatureFile(folder / "features.h5")
    return CaptionSplit(images, features, vocabulary, max_length=max_length, part="train", per=per)


def test_an_example_is_a_caption_with_its_image(tmp_path: Path) -> None:
    split = split_of(tmp_path, "captions")
    assert len(split) == 10 and [split.name(i) for i in (0, 1, 5)] == ["0.png#0", "0.png#1", "2.png#1"]
    batch = split.collate([split[0, 1], split[0, 4]])
    assert batch["inputs"].shape == (2, 6, CHANNELS) and batch["index"].tolist() == [0, 2]
    np.testing.assert_array_equal(batch["inputs"][0, :4], rows(0))
    assert not batch["inputs"][0, 4:].any()
    vocabulary = split._tokens
    assert vocabulary.decode(batch["input_ids"][0]) == "the square is red"
    assert batch["input_ids"][:, 0].tolist() == [BOS] * 2 and batch["input_ids"][1, -1] == PAD
    assert batch["labels"][1].tolist() == [*vocabulary.encode("a blue square")[1:-1], EOS, IGNORED]
    assert batch["image"].tolist() == [0, 1]
    assert batch["references"] == [["A red square .", "The square is red!"], ["A blue square .", "The square is blue!"]]


def test_an_example_is_an_image_with_all_captions(tmp_path: Path) -> None:
    split = split_of(tmp_path, "images")
    assert len(split) == 5 and split.name(2) == "2.png"
    batch = split.collate([split[0, 1], split[0, 2]])
    assert batch["image"].tolist() == [0, 0, 1, 1] and batch["input_ids"].shape == batch["labels"].shape == (4, 5)
    assert len(batch["inputs"]) == len(batch["references"]) == 2
    one = split_of(tmp_path, "captions")
    alone = one.collate([one[0, index] for index in (2, 3, 4, 5)])
    for name in ("input_ids", "labels"):
        assert torch.equal(batch[name], alone[name])


@pytest.mark.parametrize("max_length", [2, 4])
def test_long_captions_are_cut(tmp_path: Path, max_length: int) -> None:
    split = split_of(tmp_path, "images", max_length=max_length)
    labels = split.collate([split[0, 0]])["labels"]
    assert labels.shape == (2, max_length)
    assert (labels == EOS).any().item() == (max_length == 4)  # the caption of 3 words ends


def test_fingerprints_depend_on_captions_and_features(tmp_path: Path) -> None:
    split = split_of(tmp_path, "images")
    before = split.fingerprint()
    assert split_of(tmp_path, "images").fingerprint() == before
    assert split_of(tmp_path, "images", max_length=3).fingerprint() != before
    write_features(tmp_path / "features.h5", regions=9)
    assert split_of(tmp_path, "images").fingerprint() != before
