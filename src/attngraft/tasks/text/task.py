"""Classification of texts with one label each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attngraft.errors import ConfigError, DataError
from attngraft.files import user_path
from attngraft.results.records import Records
from attngraft.strict import FieldError
from attngraft.tasks.classification.labels import LabelTask
from attngraft.tasks.facts import LARGEST_SIZE, InputFacts, LabelFacts
from attngraft.tasks.images.sources.splitting import split_digest
from attngraft.tasks.task import (
    FITTED_FOLDER,
    SPLIT_FILE,
    Batch,
    Loss,
    Serving,
    Split,
    StepContext,
    TaskData,
    to_records,
)
from attngraft.tasks.text.config import TextClassificationConfig
from attngraft.tasks.text.lengths import call_model, takes_padding
from attngraft.tasks.text.source import Texts, TextSource, open_texts
from attngraft.tasks.text.tokenizer import FILE, Tokenizer, folder_tokenizer, pad, read_tokenizer, train_tokenizer

_TOKENIZER = f"the run's tokenizer ({FITTED_FOLDER}/{FILE} in its folder) is missing or was changed; restore that file"


class TextSplit(Split):
    """Encoded texts and their labels."""

    def __init__(self, texts: Texts, tokenizer: Tokenizer) -> None:
        self.names, self.labels, self.pad = texts.names, texts.labels, tokenizer.pad
        self.ids, self.cut = tokenizer.encode(texts.texts)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, key: tuple[int, int]) -> tuple[np.ndarray, int]:
        return self.ids[key[1]], int(self.labels[key[1]])

    def collate(self, examples: list[Any]) -> Batch:
        ids, labels = zip(*examples, strict=True)
        return {**pad(ids, value=self.pad), "target": torch.tensor(labels)}

    def name(self, index: int) -> str:
        return self.names[index]


@dataclass(frozen=True, kw_only=True)
class TextInputFacts(InputFacts):
    """Facts about the tokens of texts."""

    column: str
    tokenizer: str
    vocab_size: int
    max_length: int | None


@dataclass(frozen=True, kw_only=True)
class TextFacts(LabelFacts):
    """Facts of the classification of texts."""

    input: TextInputFacts

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("vocab_size", "max_length"):
            number = getattr(self.input, name)
            if number is not None and not 1 <= number <= LARGEST_SIZE:
                raise FieldError(f"input.{name}", f"must be between 1 and {LARGEST_SIZE}; got {number}")


class TextClassification(LabelTask):
    """Classification of texts with one label each.

    A batch is `{"input_ids": (B, L), "attention_mask": (B, L), "target": (B,)}`, with L tokens in its longest text.
    """

    name = "text_classification"
    default_recipe = "text"
    auto_class = "AutoModelForSequenceClassification"
    capabilities = frozenset({"data_check", "export", "folds", "halving", "labels", "predict"})
    config: TextClassificationConfig
    config_class = TextClassificationConfig
    facts_class = TextFacts
    sources = (
        "a .csv, .tsv, .jsonl or .parquet with a column of texts and one of labels, or a folder with train.csv and "
        "val.csv"
    )
    noun = "text"

    def __init__(self, config: TextClassificationConfig, *, seed: int) -> None:
        super().__init__(config, seed=seed)
        self._tokenizer: Tokenizer | None = None
        self._expected: str | None = None  # digest of a trained model's tokenizer

    def load(self, *, model_data_config: Mapping[str, Any]) -> TaskData:
        if model_data_config.get("kind") != "text":
            raise ConfigError(
                "task text_classification: the host is an image model; use a text model, hf:FOLDER or hf:USER/NAME, such "
                "as hf:google-bert/bert-base-uncased (for images, remove --task text_classification)"
            )
        config, source = self.config, open_texts(self.config.data, saved_split=self._saved_split)
        self._random_split = source.drawn
        self.set_classes(source.classes, np.bincount(source.train.labels, minlength=len(source.classes)))
        if self._tokenizer is None:
            self._tokenizer = self._new_tokenizer(source.train, model_data_config)
        if config.tokenizer.max_length is not None:  # stages of a recipe may set different values
            self._tokenizer = self._tokenizer.cut_at(config.tokenizer.max_length)
        if self._expected not in (None, self._tokenizer.digest):
            raise DataError(_TOKENIZER)
        splits = {name: TextSplit(texts, self._tokenizer) for name, texts in source.parts().items()}
        facts = {"task": self.name, "source": config.data.source, **_facts(source, self._tokenizer, splits)}
        return TaskData(
            train=splits["train"],
            val=splits["val"],
            test=splits.get("test"),
            model_args={"num_classes": self._classes},
            facts=facts,
            refusal=source.refusal,
        )

    def _new_tokenizer(self, train: Texts, host: Mapping[str, Any]) -> Tokenizer:
        config, limit, size = self.config.tokenizer, host.get("max_length"), int(host["vocab_size"])
        length, padding = config.max_length or limit, host.get("pad")
        if limit is not None and length is not None and length > limit:
            raise ConfigError(
                f"task.tokenizer.max_length: the host supports at most {limit} tokens, got {length}; use --set "
                f"task.tokenizer.max_length={limit}"
            )
        if config.vocab_size is not None and config.vocab_size > size:
            raise ConfigError(
                f"task.tokenizer.vocab_size: the host has {size} embeddings, got {config.vocab_size}; use --set "
                f"task.tokenizer.vocab_size={size} or less"
            )
        folder = config.source or host.get("tokenizer") or "train"
        if folder != "train":
            found = folder_tokenizer(user_path(folder), pad=padding, max_length=length)
        else:
            wanted = config.vocab_size or size
            found = train_tokenizer(
                train.texts, vocab_size=wanted, lower_case=config.lower_case, pad=padding, max_length=length
            )
        if found.vocab_size > size:
            raise ConfigError(
                f"task.tokenizer: the tokenizer has {found.vocab_size} tokens, but the host has {size} embeddings; use "
                "the host's tokenizer, or --set task.tokenizer.source=train"
            )
        return found

    def load_files(self, folder: Path) -> None:
        if (folder / FILE).is_file():
            self._tokenizer = read_tokenizer(folder / FILE)

    def save_files(self, folder: Path) -> None:
        if self._tokenizer is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._tokenizer.save(folder / FILE)

    def use_fitted_transform(self, facts: Mapping[str, Any]) -> None:
        self._expected = facts.get("input", {}).get("tokenizer")

    def step(self, model: nn.Module, batch: Batch, at: StepContext) -> Mapping[str, Loss]:
        return {"loss": Loss(mean=self.loss(self._call(model, batch), batch)["loss"])}

    def infer(self, model: nn.Module, batch: Batch, *, full: bool = True) -> Records:
        return to_records(self.predict(self._call(model, batch), batch))

    def needs_unwrapped(self, model: nn.Module) -> bool:
        """Return whether the model cannot mask padding and is therefore called once for every length."""
        return not takes_padding(model)

    def _call(self, model: nn.Module, batch: Batch) -> Tensor:
        return call_model(model, batch["input_ids"], batch["attention_mask"])

    def to_model(self, batch: Batch) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return `input_ids`, and `attention_mask` if there is padding."""
        padded = not bool(batch["attention_mask"].all())
        return (), {name: batch[name] for name in ("input_ids", *(["attention_mask"] if padded else []))}

    def compatible(self, a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
        """Return whether both have the same classes and tokenizer."""
        ours, theirs = (facts.get("input", {}).get("tokenizer") for facts in (a, b))
        return super().compatible(a, b) and (None in (ours, theirs) or ours == theirs)

    def serving(self, facts: Mapping[str, Any], *, model_data_config: Mapping[str, Any]) -> Serving:
        known = facts["input"]
        given = self._tokenizer
        if given is not None and (given.digest != known["tokenizer"] or given.vocab_size > known["vocab_size"]):
            raise DataError(_TOKENIZER)
        return Serving(
            kind="text",
            input={
                "tokenizer": f"{FITTED_FOLDER}/{FILE}",
                "max_length": known["max_length"],
                "vocab_size": known["vocab_size"],
                "column": known["column"],
            },
            activation=self.activation,
            classes=tuple(facts["classes"]),
        )

    @classmethod
    def from_serving(cls, serving: Serving) -> tuple[dict[str, Any], dict[str, Any]]:
        section, facts = super().from_serving(serving)
        del facts["input"]["tokenizer"]  # a path here, but a digest in the facts of data
        return section, facts

    @classmethod
    def missing_from_host(cls, model_data_config: Mapping[str, Any]) -> str:
        if model_data_config.get("kind") != "text" or model_data_config.get("tokenizer"):
            return ""  # `load` rejects image models
        save = "AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER)"
        return f"the tokenizer that it was trained with (save it in the host's folder: {save})"


def _facts(source: TextSource, tokenizer: Tokenizer, splits: Mapping[str, TextSplit]) -> dict[str, Any]:
    lengths = np.array([len(each) for each in splits["train"].ids])
    cut = sum(split.cut for split in splits.values())
    facts: dict[str, Any] = {
        "kind": "text",
        "where": source.where,
        "split": source.origin,
        "classes": list(source.classes),
        "sizes": {name: len(split) for name, split in splits.items()},
        "counts": source.counts(),
        "input": {
            "column": source.column,
            "tokenizer": tokenizer.digest,
            "vocab_size": tokenizer.vocab_size,
            "max_length": tokenizer.max_length,
        },
        "tokens": {"median": int(np.median(lengths)), "longest": int(lengths.max()), "cut": cut},
        "notes": list(source.notes),
        "split_digest": split_digest(source.val),
        "check": {"train_digest": split_digest(source.train)},
        **({} if source.test is None else {"test_digest": split_digest(source.test)}),
    }
    if cut > 0:
        facts["notes"].append(f"{cut} texts are cut to {tokenizer.max_length} tokens.")
    return facts | ({"split_file": SPLIT_FILE} if source.drawn else {})
