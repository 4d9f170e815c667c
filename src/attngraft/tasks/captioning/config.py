"""The recipe's `task` section for captioning."""

from dataclasses import dataclass, field
from typing import Literal

from attngraft.strict import FieldError, require
from attngraft.tasks.captioning.encoder import EncoderConfig
from attngraft.tasks.images.config import SplitConfig


@dataclass(frozen=True, kw_only=True)
class CaptionDataConfig(SplitConfig):
    """Images and their captions, and their split into training, validation and test.

    Without captions for validation, a random part of the training images is used. A file `dataset_*.json` of Karpathy in
    the folder assigns the images to training, validation and test.
    """

    source: str  #: a folder with captions of COCO or Flickr, or with captions_train.jsonl, ...; or one file of captions
    split_file: str | None = None  #: Karpathy's dataset_*.json, or a saved split; used instead of other splits
    #: folder of the images, relative to the source; null: SPLIT, images/SPLIT, images, Images, or beside the captions
    images: str | None = None

    def __post_init__(self) -> None:
        if not self.source.strip():
            raise FieldError(
                "source", "is empty; give a folder with captions, or a .json, .jsonl or .csv file of captions"
            )
        super().__post_init__()
        karpathy = self.split_file is not None and self.split_file.endswith(".json")
        require(self, "folds", self.folds is None or not karpathy, "cannot be combined with a split file of Karpathy")


@dataclass(frozen=True, kw_only=True)
class VocabularyConfig:
    """The words that captions are written with."""

    min_count: int = 5  #: rarer words become <unk>
    validation: bool = True  #: whether words of validation captions count, as in the meshed-memory transformer

    def __post_init__(self) -> None:
        require(self, "min_count", self.min_count >= 1, "must be at least 1")


@dataclass(frozen=True, kw_only=True)
class CaptionMetricsConfig:
    """The primary metric."""

    primary: Literal["cider", "bleu4", "bleu1", "rouge_l", "loss"] = "cider"  #: metric used to compare runs


@dataclass(frozen=True, kw_only=True)
class CaptionDecodingConfig:
    """Beam search in final evaluations and prediction; evaluations during training decode greedily."""

    beams: int = 5  #: number of partial captions that are kept; 1: greedy decoding
    length_penalty: float = 0.0  #: score: log-probability / length^length_penalty

    def __post_init__(self) -> None:
        require(self, "beams", 1 <= self.beams <= 1000, "must lie between 1 and 1000")
        require(self, "length_penalty", abs(self.length_penalty) <= 10, "must lie between -10 and 10")


@dataclass(frozen=True, kw_only=True)
class RewardConfig:
    """Self-critical training: CIDEr-D of sampled captions, relative to that of the image's other samples."""

    samples: int = 5  #: captions of each image
    draw: Literal["beam", "multinomial"] = (
        "beam"  #: the beams of a beam search, or words drawn from their probabilities
    )
    #: what is subtracted from a reward: the mean of the image's rewards (`mean`), or of its others (`leave_one_out`)
    baseline: Literal["mean", "leave_one_out"] = "mean"
    #: document of the document frequencies: an image with all its captions, or, as in the meshed-memory transformer's code,
    #: one caption
    documents: Literal["images", "captions"] = "images"

    def __post_init__(self) -> None:
        require(
            self,
            "samples",
            2 <= self.samples <= 1000,
            "must lie between 2 and 1000, since the baseline is made of them",
        )


@dataclass(frozen=True, kw_only=True)
class CaptioningConfig:
    """The `task` section of a captioning recipe."""

    data: CaptionDataConfig
    #: HDF5 file of features, of a detector or of `attngraft features`; null: features.h5 or features.hdf5 in the source
    features: str | None = None
    encoder: EncoderConfig | None = None  #: image model that computes the features in each step, instead of a file
    train_encoder: bool = False  #: train the weights of `encoder` too
    vocabulary: VocabularyConfig = field(default_factory=VocabularyConfig)
    max_length: int = 20  #: largest number of tokens of a caption, with its end; longer training captions are cut
    #: an example is a caption with its image; or an image with all its captions, which is encoded once for all of them
    examples: Literal["captions", "images"] = "captions"
    objective: Literal["cross_entropy", "reward"] = "cross_entropy"  #: reward: self-critical, examples are images
    reward: RewardConfig = field(default_factory=RewardConfig)
    decoding: CaptionDecodingConfig = field(default_factory=CaptionDecodingConfig)
    metrics: CaptionMetricsConfig = field(default_factory=CaptionMetricsConfig)

    def __post_init__(self) -> None:
        require(self, "max_length", self.max_length >= 2, "must be at least 2")
        require(self, "features", self.features is None or bool(self.features.strip()), "must name a file")
        require(self, "features", self.features is None or self.encoder is None, "cannot be combined with encoder")
        require(self, "train_encoder", self.encoder is not None or not self.train_encoder, "requires task.encoder")
