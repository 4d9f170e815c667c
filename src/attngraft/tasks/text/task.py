"""Classification of texts with one label each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from attngraft.errors import ConfigError, DataError
from attngraft.results.measured import Measured
from attngraft.results.records import Records, RecordTable
from attngraft.results.sections import Section
from attngraft.strict import read
from attngraft.tasks.classification.evaluator import TOP, measure, records, sections
from attngraft.tasks.classification.losses import class_weights, training_loss
from attngraft.tasks.classification.task import Classification
from attngraft.tasks.images.heads import mean_logits
from attngraft.tasks.task import (
    FITTED_FOLDER,
    SPLIT_FILE,
    Batch,
    Loss,
    Serving,
    Split,
    StepContext,
    Task,
    TaskData,
    to_records,
)
from attngraft.tasks.text.config import TextClassificationConfig
from attngraft.tasks.text.lengths import call_model, logits_of
from attngraft.tasks.text.source import Texts, TextSource, open_texts, save_split
from attngraft.tasks.text.tokenizer import FILE, Tokenizer, folder_tokenizer, pad, read_tokenizer, train_tokenizer


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


class TextClassification(Task):
    """Classification of texts with one label each.

    A batch is `{"input_ids": (B, L), "attention_mask": (B, L), "target": (B,)}`, L the most tokens of its texts.
    """

    name = "text_classification"
    default_recipe = "text"
    auto_class = "AutoModelForSequenceClassification"
    primary = "top1"  # default; the recipe may choose another
    metrics: ClassVar = Classification.metrics
    capabilities = frozenset({"data_check", "export", "halving", "labels", "predict"})

    def __init__(self, config: TextClassificationConfig, *, seed: int) -> None:
        self.config, self.seed, self.primary = config, seed, config.metrics.primary
        self.higher_is_better = self.metrics[self.primary].higher_is_better
        self._loss = training_loss(config.loss)
        self._classes = 0  # set by load
        self._source: TextSource | None = None
        self._tokenizer: Tokenizer | None = None
        self._expected: str | None = None  # digest of the tokenizer of a trained model
        self._saved_split: Path | None = None

    @classmethod
    def from_config(cls, config: Mapping[str, Any], *, seed: int) -> TextClassification:
        if "data" not in config:
            raise ConfigError(
                "task.data: missing; give --data SOURCE on the command line, or task: {data: {source: ...}} in the recipe "
                "(a .csv, .tsv or .parquet with a column of texts and one of labels, or a folder with train.csv and val.csv)"
            )
        return cls(read(TextClassificationConfig, config, where="task"), seed=seed)

    def load(self, *, model_data_config: Mapping[str, Any]) -> TaskData:
        if model_data_config.get("kind") != "text":
            raise ConfigError(
                "task text_classification: the host takes images; use one that takes text, such as hf:FOLDER"
            )
        config, source = self.config, open_texts(self.config.data, saved_split=self._saved_split)
        self._source, self._classes = source, len(source.classes)
        if self.primary == "top5" and self._classes <= TOP:
            raise ConfigError(f"task.metrics.primary: top5 needs more than five classes, the data have {self._classes}")
        counts = np.bincount(source.train.labels, minlength=self._classes)
        self._loss = training_loss(config.loss, class_weights(config.loss, counts, source.classes))
        if self._tokenizer is None:
            self._tokenizer = self._new_tokenizer(source.train, model_data_config)
        if config.tokenizer.max_length is not None:  # another one, for a stage of training
            self._tokenizer = self._tokenizer.cut_at(config.tokenizer.max_length)
        if self._expected not in (None, self._tokenizer.digest):
            raise DataError(
                f"the tokenizer of the run ({FITTED_FOLDER}/{FILE} in its folder) is missing or was changed"
            )
        train, val = TextSplit(source.train, self._tokenizer), TextSplit(source.val, self._tokenizer)
        facts = {"task": self.name, "source": config.data.source, **_facts(source, self._tokenizer, train, val)}
        return TaskData(train=train, val=val, model_args={"num_classes": self._classes}, facts=facts)

    def _new_tokenizer(self, train: Texts, host: Mapping[str, Any]) -> Tokenizer:
        config, limit, size = self.config.tokenizer, host.get("max_length"), int(host["vocab_size"])
        length, padding = config.max_length or limit, host.get("pad")
        if limit is not None and length is not None and length > limit:
            raise ConfigError(f"task.tokenizer.max_length: the host takes at most {limit} tokens, got {length}")
        if config.vocab_size is not None and config.vocab_size > size:
            raise ConfigError(f"task.tokenizer.vocab_size: the host has {size} embeddings, got {config.vocab_size}")
        folder = config.source or host.get("tokenizer") or "train"
        if folder != "train":
            found = folder_tokenizer(Path(folder).expanduser(), pad=padding, max_length=length)
        else:
            wanted = config.vocab_size or size
            found = train_tokenizer(
                train.texts, vocab_size=wanted, lower_case=config.lower_case, pad=padding, max_length=length
            )
        if found.vocab_size > size:
            raise ConfigError(
                f"task.tokenizer: the tokenizer has {found.vocab_size} tokens, but the host {size} embeddings; use the "
                "host's own tokenizer, or another vocab_size for one of them"
            )
        return found

    def load_split(self, path: Path) -> None:
        self._saved_split = path if path.is_file() else None

    def save_split(self, path: Path) -> bool:
        if self._source is None or not self._source.drawn:
            return False
        if self._saved_split != path:
            save_split(path, self._source.train, self._source.val)
        return True

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

    def _call(self, model: nn.Module, batch: Batch) -> Tensor:
        return call_model(model, batch["input_ids"], batch["attention_mask"])

    def to_model(self, batch: Batch) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """Return the ids, and the mask if there is padding."""
        padded = not bool(batch["attention_mask"].all())
        return (), {name: batch[name] for name in ("input_ids", *(["attention_mask"] if padded else []))}

    def loss(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        return {"loss": self._loss(self._logits(outputs), batch["target"])}

    def predict(self, outputs: Any, batch: Batch) -> dict[str, Tensor]:
        """Return the columns of image classification."""
        stored = self.config.metrics.predictions
        return records(self._logits(outputs), batch["target"], loss=self.config.loss, stored=stored)

    def _logits(self, outputs: Any) -> Tensor:
        return mean_logits(logits_of(outputs), classes=self._classes)

    def measure(self, table: RecordTable, facts: Mapping[str, Any]) -> Measured:
        return measure(table, classes=len(facts["classes"]))

    def compatible(self, a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
        """Return whether classes and tokenizer are the same."""
        ours, theirs = (facts.get("input", {}).get("tokenizer") for facts in (a, b))
        return super().compatible(a, b) and (None in (ours, theirs) or ours == theirs)

    def serving(self, facts: Mapping[str, Any], *, model_data_config: Mapping[str, Any]) -> Serving:
        known = facts["input"]
        return Serving(
            kind="text",
            input={
                "tokenizer": f"{FITTED_FOLDER}/{FILE}",
                "max_length": known["max_length"],
                "vocab_size": known["vocab_size"],
                "column": known["column"],
            },
            activation="sigmoid" if self.config.loss.name == "bce" else "softmax",
            classes=tuple(facts["classes"]),
        )

    @classmethod
    def from_serving(cls, serving: Serving) -> tuple[dict[str, Any], dict[str, Any]]:
        section = {"loss": {"name": "bce"}} if serving.activation == "sigmoid" else {}
        known = {
            name: value for name, value in serving.input.items() if name != "tokenizer"
        }  # its path, not its digest
        return section, {"classes": list(serving.classes), "input": known}

    @classmethod
    def missing_from_host(cls, model_data_config: Mapping[str, Any]) -> str:
        return "" if model_data_config.get("tokenizer") else "the tokenizer that it was trained with"

    def sections(self, predictions: Sequence[Mapping[str, Any]], *, facts: Mapping[str, Any]) -> list[Section]:
        """Return recall, precision and F1 by class, the confusion matrix, and calibration."""
        return sections(predictions, classes=facts["classes"], counts=facts["counts"]["train"], noun="text")


def _facts(source: TextSource, tokenizer: Tokenizer, train: TextSplit, val: TextSplit) -> dict[str, Any]:
    lengths = np.array([len(each) for each in train.ids])
    facts: dict[str, Any] = {
        "kind": "text",
        "where": source.where,
        "split": source.origin,
        "classes": list(source.classes),
        "sizes": {"train": len(train), "val": len(val)},
        "counts": source.counts(),
        "input": {
            "column": source.column,
            "tokenizer": tokenizer.digest,
            "vocab_size": tokenizer.vocab_size,
            "max_length": tokenizer.max_length,
        },
        "tokens": {"median": int(np.median(lengths)), "longest": int(lengths.max()), "cut": train.cut + val.cut},
        "notes": list(source.notes),
        "split_digest": source.val.digest(),
        "check": {"train_digest": source.train.digest()},
    }
    if (train.cut + val.cut) > 0:
        facts["notes"].append(f"{train.cut + val.cut} texts are cut to {tokenizer.max_length} tokens.")
    return facts | ({"split_file": SPLIT_FILE} if source.drawn else {})
