"""Images that illustrate a study of images, and their file, examples.json."""

from __future__ import annotations

import base64
import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from attngraft.errors import AttngraftError
from attngraft.files import write_atomically
from attngraft.opening import read_json
from attngraft.strict import read

EXAMPLES_FILE = "examples.json"
_JPEG = b"\xff\xd8\xff"  #: first bytes of a JPEG file


@dataclass(frozen=True, kw_only=True)
class ExamplePrediction:
    """Predictions of one image by all seeds of a variant."""

    predicted: str  #: the most frequent class; of other tasks, a text such as the image's mean IoU, or its caption
    confidence: float  #: mean over the seeds that predict it
    right: int  #: number of seeds that are correct


@dataclass(frozen=True, kw_only=True)
class ExampleImage:
    """An image with its label, and the predictions of the baseline and of the variant."""

    name: str
    label: str
    baseline: ExamplePrediction
    variant: ExamplePrediction
    jpeg: str  #: thumbnail in base64

    def __post_init__(self) -> None:
        if not base64.b64decode(self.jpeg, validate=True).startswith(_JPEG):
            raise ValueError("jpeg must be a JPEG file in base64")


@dataclass(frozen=True, kw_only=True)
class ExampleGroup:
    """Images that were selected for the same reason."""

    title: str
    images: list[ExampleImage]


@dataclass(frozen=True, kw_only=True)
class ExampleImages:
    """Images on which the baseline and the best variant differ, and on which the variant is wrong."""

    variant: str
    seeds: int
    groups: list[ExampleGroup]
    masks: bool = False  #: whether pictures are large, and predictions texts of their own
    #: what the pictures show; empty: image, labels, two masks, their errors
    panels: str = ""


def save_examples(examples: ExampleImages | None, folder: Path) -> None:
    """Write examples.json; None removes the file."""
    if examples is None:
        (folder / EXAMPLES_FILE).unlink(missing_ok=True)
    else:
        write_atomically(folder / EXAMPLES_FILE, json.dumps(dataclasses.asdict(examples), indent=1) + "\n")


def load_examples(folder: Path) -> ExampleImages | None:
    """Read examples.json; None if there is no such file or it is damaged, since it only illustrates a report."""
    path = folder / EXAMPLES_FILE
    try:
        return read(ExampleImages, read_json(path), where=str(path))
    except (OSError, ValueError, AttngraftError):
        return None
