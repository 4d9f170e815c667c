"""The recipe's `task` section for translation."""

from dataclasses import dataclass, field
from typing import Literal

from attngraft.strict import FieldError, require
from attngraft.tasks.text.config import MOST_TOKENS, TableDataConfig

SMALLEST = 300  #: smallest vocabulary of a trained tokenizer, which has 4 special tokens and 256 bytes


@dataclass(frozen=True, kw_only=True)
class TranslationDataConfig(TableDataConfig):
    """Pairs of sentences, and their split into training, validation and test.

    They are in line-aligned files (`train.en` and `train.de`, plain or .gz), or in the columns of a table.
    """

    source: str  #: a folder, a prefix of two line-aligned files, or a .csv, .tsv, .jsonl or .parquet
    #: column of source sentences, or extension of their file; null: the language, or `source` or `src`
    source_column: str | None = None
    target_column: str | None = None  #: column of target sentences, or extension of their file; null: as for sources
    max_length: int | None = None  #: training pairs with more words in a sentence are not used; null: no limit

    def __post_init__(self) -> None:
        if not self.source.strip():
            raise FieldError("source", "is empty; give a folder with train.en and train.de, or a table")
        super().__post_init__()
        require(self, "max_length", self.max_length is None or self.max_length >= 1, "must be at least 1")


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    """The cross-entropy of target tokens, with label smoothing in training."""

    smoothing: float = 0.1  #: probability that the other V - 1 tokens of the vocabulary share

    def __post_init__(self) -> None:
        require(self, "smoothing", 0 <= self.smoothing < 0.5, "must lie in [0, 0.5)")


@dataclass(frozen=True, kw_only=True)
class DecodingConfig:
    """Beam search in final evaluations, prediction and export; evaluations during training decode greedily."""

    beams: int = 5  #: number of partial translations that are kept; 1: greedy decoding
    length_penalty: float = 0.7  #: score: log-probability / length^length_penalty
    max_length: int = 100  #: largest number of tokens of a translation, with its end token

    def __post_init__(self) -> None:
        require(self, "beams", 1 <= self.beams <= 1000, "must lie between 1 and 1000")
        require(self, "length_penalty", abs(self.length_penalty) <= 10, "must lie between -10 and 10")
        require(self, "max_length", self.max_length >= 1, "must be at least 1")


@dataclass(frozen=True, kw_only=True)
class MetricsConfig:
    """The primary metric."""

    primary: Literal["bleu", "chrf", "perplexity", "accuracy", "loss"] = "bleu"  #: metric used to compare runs


@dataclass(frozen=True, kw_only=True)
class TranslationConfig:
    """The `task` section of a translation recipe."""

    data: TranslationDataConfig
    source: str | None = None  #: language of the source sentences: extension of their files, or name of their column
    target: str | None = None  #: language of the target sentences
    #: `bpe`: byte pair encoding, trained on both languages of the training pairs; `words`: lower-case words that occur at
    #: least 3 times; `host`: the tokenizer in the host's folder; null: `host` if there is one, otherwise `bpe`
    tokens: Literal["bpe", "words", "host"] | None = None
    vocab_size: int = 8000  #: largest vocabulary of `bpe`
    #: tokens per update: pairs times the longest sentence of either side, padding included; null: `train.batch_size` pairs
    batch_tokens: int | None = 4096
    #: pairs of more tokens than the host has positions or `batch_tokens`: `drop` them from training, and refuse them in
    #: validation and test; or `cut` them
    long: Literal["drop", "cut"] = "drop"
    loss: LossConfig = field(default_factory=LossConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)

    def __post_init__(self) -> None:
        fits = SMALLEST <= self.vocab_size <= MOST_TOKENS
        require(self, "vocab_size", fits, f"must be from {SMALLEST} to {MOST_TOKENS:,}")
        require(self, "batch_tokens", self.batch_tokens is None or self.batch_tokens >= 8, "must be at least 8")
        for name in ("source", "target"):
            given = getattr(self, name)
            require(self, name, given is None or bool(given.strip()), "must name a language, such as en")
        other = self.source is None or self.source != self.target
        require(self, "target", other, "must differ from task.source")
