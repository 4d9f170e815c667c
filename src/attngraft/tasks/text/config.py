"""The recipe's `task` section for text classification."""

from dataclasses import dataclass, field, fields
from typing import Literal

from attngraft.strict import FieldError, require
from attngraft.tasks.classification.config import LossConfig, MetricsConfig
from attngraft.tasks.images.config import DataConfig

MOST_TOKENS = 1_000_000  #: of a trained tokenizer, which allocates memory for all of them


@dataclass(frozen=True, kw_only=True)
class TableDataConfig:
    """A table of examples, and its split into training, validation and test.

    If the source has no validation split (by a split column, or as a separate table in a folder), or with
    `val_fraction`, a random part is used for validation.
    """

    source: str  #: a .csv, .tsv, .jsonl or .parquet, or a folder with one table per split
    split_column: str | None = None  #: column with the split's name (train, val); null: detected by name
    train_split: str | None = None  #: name of the training split
    val_split: str | None = None  #: name of the validation split
    #: name of the test split; null: `test` or `testing`, if it is not the validation split; none: compare runs on validation
    test_split: str | None = None
    val_fraction: float | None = None  #: fraction of the training examples (of each class) to use for validation
    split_seed: int = 0  #: seed of the random split; independent of the run's seed, so all runs share one split
    folds: int | None = None  #: number of folds of cross-validation, set by `attngraft compare --folds`
    fold: int | None = None  #: fold used for validation, from 0; the other folds are used for training
    group_column: str | None = None  #: column of groups (patients, ...), kept whole by a random split and by folds
    split_file: str | None = None  #: file with a saved split, used instead of a random split
    check: Literal["auto", "off"] = "auto"  #: off: train even if validation or test examples are in the training split

    def __post_init__(self) -> None:
        if not self.source.strip():
            raise FieldError(
                "source", "is empty; give a .csv, .tsv, .jsonl or .parquet, or a folder with one per split"
            )
        self.as_table()  # checks the rest

    def as_table(self) -> DataConfig:
        """Return the settings for reading the table."""
        shared = {field.name for field in fields(DataConfig)} & {field.name for field in fields(self)}
        return DataConfig(**{name: getattr(self, name) for name in shared}, label_separator="none")


@dataclass(frozen=True, kw_only=True)
class TextDataConfig(TableDataConfig):
    """A table of texts and labels, split into training, validation and test; a random split takes a part of each class."""

    text_column: str | None = None  #: column of texts; null: detected by name (text, sentence, review, ...)
    label_column: str | None = None  #: column of labels; null: detected by name


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """The tokenizer: from the host, from another folder, or trained on the training texts.

    By default, the host's tokenizer is used, or, if its folder has none, a tokenizer is trained. It is saved with the run
    and never trained again.
    """

    source: str | None = None  #: `train`, or a folder with a tokenizer; null: the host's, otherwise `train`
    lower_case: bool = True  #: whether a trained tokenizer ignores case and accents
    vocab_size: int | None = None  #: largest vocabulary of a trained tokenizer; null: the host's
    max_length: int | None = None  #: longer texts are cut to this number of tokens; null: the host's limit

    def __post_init__(self) -> None:
        fits = self.vocab_size is None or 32 <= self.vocab_size <= MOST_TOKENS
        require(self, "vocab_size", fits, f"must be from 32 to {MOST_TOKENS:,}")
        require(self, "max_length", self.max_length is None or self.max_length >= 3, "must be at least 3")


@dataclass(frozen=True, kw_only=True)
class TextClassificationConfig:
    """The `task` section of a text classification recipe."""

    data: TextDataConfig
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
