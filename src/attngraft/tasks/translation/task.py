"""Translation of sentences by encoder-decoders."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from attngraft.errors import ConfigError, DataError
from attngraft.results.measured import Measured
from attngraft.results.records import Records, RecordTable
from attngraft.results.sections import Metric, Section
from attngraft.results.study import Chance
from attngraft.strict import FieldError, OpenSection
from attngraft.tasks.configured import ConfiguredTask
from attngraft.tasks.facts import Facts, InputFacts
from attngraft.tasks.images.sources.splitting import split_digest
from attngraft.tasks.task import FITTED_FOLDER, SPLIT_FILE, Batch, Loss, StepContext, TaskData
from attngraft.tasks.text.lengths import call_padded, logits_of
from attngraft.tasks.translation.codec import TranslationCodec
from attngraft.tasks.translation.config import TranslationConfig
from attngraft.tasks.translation.examples import example_section
from attngraft.tasks.translation.metrics import RULES, Scorer, measure
from attngraft.tasks.translation.source import Pairs, PairSource, open_pairs
from attngraft.tasks.translation.split import PairSplit, encode_pairs
from attngraft.tasks.translation.tokenizer import new_tokenizer, read_tokenizer
from attngraft.tasks.translation.trained import SETTINGS, PairTokenizer

_PLATEAU = 0.95  #: a loss of more than this part of the loss by frequencies is on its plateau
_INPUTS = ("input_ids", "attention_mask", "decoder_input_ids")


@dataclass(frozen=True, kw_only=True)
class TokenFacts(InputFacts):
    """Facts about the tokens of both languages."""

    tokenizer: str
    vocab_size: int


@dataclass(frozen=True, kw_only=True)
class UnigramFacts(OpenSection):
    """What can be predicted without the source: loss and accuracy in each split, and a sentence."""

    loss: dict[str, float]
    accuracy: dict[str, float]
    sentence: str


@dataclass(frozen=True, kw_only=True)
class TranslationFacts(Facts):
    """Facts of translation."""

    sizes: dict[str, int]
    input: TokenFacts
    unigram: UnigramFacts

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, numbers in (("loss", self.unigram.loss), ("accuracy", self.unigram.accuracy)):
            if missing := {"train", "val", *self.sizes} - numbers.keys():
                raise FieldError(f"unigram.{name}", f"must have a number for each split; {min(missing)} is missing")


_TOKENIZER = f"the run's tokenizer ({FITTED_FOLDER} in its folder) is missing or was changed; restore its files"


class Translation(ConfiguredTask):
    """Translation of sentences by encoder-decoders.

    A batch is `{"input_ids": (B, Ns), "attention_mask": (B, Ns), "decoder_input_ids": (B, Nt), "labels": (B, Nt)}`, and
    lists of the sentences, `source` and `reference`.
    """

    name = "translation"
    default_recipe = "tiny-translation"
    primary = "bleu"  # default; the recipe can set another metric
    metrics: ClassVar = {
        "bleu": Metric(label="BLEU", best=100),
        "chrf": Metric(label="chrF2++", best=100),
        "perplexity": Metric(label="perplexity", higher_is_better=False, best=1),
        "accuracy": Metric(label="accuracy of target tokens", column="accuracy", share=True),
        "loss": Metric(label="loss", higher_is_better=False),
    }
    auto_class = "AutoModelForSeq2SeqLM"
    column_rules = RULES
    capabilities = frozenset({"data_check", "export", "folds", "generation", "halving", "predict"})
    has_light_inference = True
    config: TranslationConfig
    config_class = TranslationConfig
    facts_class = TranslationFacts
    sources = "a folder with train.en and train.de, or a table with a column per language"

    def __init__(self, config: TranslationConfig, *, seed: int) -> None:
        super().__init__(config, seed=seed)
        self._tokenizer: PairTokenizer | None = None
        self._expected: str | None = None  # digest of a trained model's tokenizer
        self._positions: int | None = None  # largest number of source tokens, set by load or codec
        self._scores: Scorer | None = None

    # -- data ----------------------------------------------------------------------------------------------------------

    def load(self, *, model_data_config: Mapping[str, Any]) -> TaskData:
        limit, wanted = _decoder(model_data_config)["max_length"], self.config.decoding.max_length
        self._positions = model_data_config["max_length"]
        if limit is not None and wanted > limit:
            raise ConfigError(
                f"task.decoding.max_length: the host has {limit} positions, got {wanted}; use --set "
                f"task.decoding.max_length={limit}"
            )
        source = open_pairs(self.config, saved_split=self._saved_split)
        self._random_split = source.drawn
        if self._tokenizer is None:
            self._tokenizer = new_tokenizer(self.config, source.train, model_data_config)
        if self._expected not in (None, self._tokenizer.digest):
            raise DataError(_TOKENIZER)
        splits, notes = encode_pairs(source, self._tokenizer, self.config, model_data_config)
        facts = self._facts(source, splits)
        any_size = model_data_config["vocab_size"] is None  # a host for any vocabulary
        sizes = {name: getattr(self._tokenizer, name) for name in ("vocab_size", "pad", "start", "end")}
        return TaskData(
            train=splits["train"],
            val=splits["val"],
            test=splits.get("test"),
            model_args=sizes if any_size else {},
            whole=(lambda: self._whole(source, model_data_config)) if source.drawn and source.test is None else None,
            facts={**facts, "notes": [*source.notes, *notes]},
            refusal=source.refusal,
        )

    def _whole(self, source: PairSource, host: Mapping[str, Any]) -> PairSplit:
        """Return training and validation pairs together."""
        parts = source.train, source.val
        names = [field.name for field in fields(Pairs)]
        pairs = Pairs(**{name: [each for part in parts for each in getattr(part, name)] for name in names})
        return encode_pairs(replace(source, val=pairs), self._trained(), self.config, host)[0]["val"]

    def _facts(self, source: PairSource, splits: Mapping[str, PairSplit]) -> dict[str, Any]:
        tokenizer, lengths = self._trained(), splits["train"].lengths
        facts: dict[str, Any] = {
            "task": self.name,
            "source": self.config.data.source,
            "kind": "text",
            "where": source.where,
            "split": source.origin,
            "languages": list(source.columns),
            "sizes": {name: len(split) for name, split in splits.items()},
            "input": {"tokenizer": tokenizer.digest, "tokens": tokenizer.ids.kind, "vocab_size": tokenizer.vocab_size},
            "tokens": {
                side: {"median": int(np.median(numbers)), "longest": int(numbers.max())}
                for side, numbers in zip(("source", "target"), lengths.T, strict=True)
            },
            "metrics": self._scorer.signatures,
            "unigram": _unigram(source, splits, tokenizer.vocab_size),
            "split_digest": split_digest(source.val),
            "check": {"train_digest": split_digest(source.train)},
            **({} if source.test is None else {"test_digest": split_digest(source.test)}),
        }
        return facts | ({"split_file": SPLIT_FILE} if source.drawn else {})

    def load_files(self, folder: Path) -> None:
        if (folder / SETTINGS).is_file():
            self._tokenizer = read_tokenizer(folder)

    def save_files(self, folder: Path) -> None:
        if self._tokenizer is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._tokenizer.save(folder)

    def use_fitted_transform(self, facts: Mapping[str, Any]) -> None:
        self._expected = facts.get("input", {}).get("tokenizer")

    def compatible(self, a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
        """Return whether both have the same tokenizer."""
        return a["input"] == b["input"]

    # -- training and inference ----------------------------------------------------------------------------------------

    def weights(self, batch: Batch) -> Mapping[str, float]:
        """Return the number of target tokens."""
        return {"loss": float((batch["labels"] >= 0).sum())}

    def step(self, model: nn.Module, batch: Batch, at: StepContext) -> Mapping[str, Loss]:
        """Return the cross-entropy, with a share `smoothing` of the probability on the other V - 1 tokens.

        `cross_entropy` spreads its smoothing over all V tokens, hence the factor V / (V - 1).
        """
        logits = self._logits(model, batch)
        classes = logits.shape[-1]
        smoothing = self.config.loss.smoothing * classes / (classes - 1)
        labels = batch["labels"].flatten()
        return {"loss": Loss(mean=F.cross_entropy(logits.flatten(0, 1), labels, label_smoothing=smoothing))}

    def infer(self, model: nn.Module, batch: Batch, *, full: bool = True) -> Records:
        logits, labels = self._logits(model, batch).detach(), batch["labels"]
        known = labels >= 0
        nll = F.cross_entropy(logits.transpose(1, 2).float(), labels, reduction="none").cpu().double()
        correct = (logits.argmax(-1) == labels) & known
        codec, references = self._codec(), batch["reference"]
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        translations = codec.decode(codec.generate(model, inputs, greedy=not full))
        texts = {"source": batch["source"], "reference": references, "translation": translations}
        return Records(
            statistics={
                "nll": nll.sum(1).numpy(),
                "tokens": known.sum(1).cpu().numpy(),
                "correct": correct.sum(1).cpu().numpy(),
                **self._scorer.counts(translations, references),
            },
            outputs={name: np.array(column, dtype=np.str_) for name, column in texts.items()},
        )

    def _logits(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs = {name: batch[name] for name in _INPUTS}
        return call_padded(model, inputs, lambda called, given: logits_of(called(**given)))

    def _codec(self) -> TranslationCodec:
        return TranslationCodec(self._trained(), self.config.decoding, max_length=self._positions)

    def _trained(self) -> PairTokenizer:
        if self._tokenizer is None:
            raise TypeError("the task has no tokenizer yet; call load or load_files first")
        return self._tokenizer

    def codec(self, facts: Mapping[str, Any], *, model_data_config: Mapping[str, Any]) -> TranslationCodec:
        self._positions = model_data_config.get("max_length")
        known, given = facts["input"], self._tokenizer
        if given is None or given.digest != known["tokenizer"] or given.vocab_size > known["vocab_size"]:
            raise DataError(_TOKENIZER)
        return self._codec()

    @classmethod
    def missing_from_host(cls, model_data_config: Mapping[str, Any]) -> str:
        if not model_data_config.get("decoder") or model_data_config.get("tokenizer"):
            return ""  # `load` rejects other models
        save = "AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER)"
        return f"the tokenizer that it was trained with (save it in the host's folder: {save})"

    # -- metrics -------------------------------------------------------------------------------------------------------

    @property
    def _scorer(self) -> Scorer:
        """Scorer of the target language, which ignores case for lower-case words."""
        if self._scores is None:
            words = self._tokenizer is not None and self._tokenizer.ids.kind == "words"
            self._scores = Scorer(lower_case=words, language=self.config.target or "")
        return self._scores

    def measure(self, table: RecordTable, facts: Mapping[str, Any]) -> Measured:
        return measure(table, units=facts["input"]["tokenizer"])

    def chance(self, table: RecordTable, facts: Mapping[str, Any]) -> Chance:
        """Return the metrics of predictions that do not depend on the source.

        They are the most frequent target sentence of the training part, if the references were saved, and the frequencies
        of its tokens as probabilities.
        """
        part = "test" if "test" in facts["sizes"] else "val"
        loss = facts["unigram"]["loss"][part]
        values = {"perplexity": float(np.exp(loss)), "accuracy": facts["unigram"]["accuracy"][part], "loss": loss}
        if "reference" in table:
            references = list(map(str, table["reference"]))
            counts = self._scorer.counts([facts["unigram"]["sentence"]] * len(references), references)
            columns = {name: table.array(name) for name in ("nll", "tokens", "correct")} | counts
            constant = measure(RecordTable(names=table.names, columns=columns), units="").values
            values |= {name: constant[name] for name in ("bleu", "chrf")}
        return Chance(description="always the most frequent sentence or token of the training part", values=values)

    def training_note(self, metrics: Mapping[str, float], facts: Mapping[str, Any]) -> str:
        """Return a warning if the validation loss is hardly below that of the tokens' frequencies in training."""
        loss, frequencies = metrics.get("loss", 0.0), facts["unigram"]["loss"]["val"]
        if loss < _PLATEAU * frequencies:
            return ""
        return (
            f"the decoder has learned little more than the frequencies of tokens: the validation loss is {loss:.3g}, and "
            f"that of the frequencies alone {frequencies:.3g}; use a lower learning rate (--set optimizer.lr), a longer "
            "warm-up (--set schedule.warmup_steps), or more updates"
        )

    def sections(self, predictions: Sequence[Mapping[str, Any]], *, facts: Mapping[str, Any]) -> list[Section]:
        """Return translations of some sentences by the first seed's run, if its outputs were saved."""
        return [example_section(predictions[0])] if "translation" in predictions[0] else []


def _decoder(host: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the description of the host's decoder.

    Raises:
        ConfigError: the host is not an encoder-decoder of texts.
    """
    if host.get("kind") != "text" or not host.get("decoder"):
        raise ConfigError(
            "task translation: the host is not an encoder-decoder; use --host attngraft:mt_transformer, or hf:FOLDER or "
            "hf:USER/NAME with one, such as hf:Helsinki-NLP/opus-mt-en-de"
        )
    decoder: Mapping[str, Any] = host["decoder"]
    return decoder


def _unigram(source: PairSource, splits: Mapping[str, PairSplit], vocab_size: int) -> dict[str, Any]:
    """Return what can be predicted without the source: loss and accuracy in each split, and a sentence.

    The loss is the cross-entropy of target tokens under their frequencies in the training part, plus one; the accuracy is
    that of the most frequent token.
    """
    counts = {name: np.bincount(np.concatenate(split.targets), minlength=vocab_size) for name, split in splits.items()}
    train = counts["train"] + 1
    surprise, top = np.log(train.sum() / train), int(train.argmax())
    return {
        "loss": {name: float(each @ surprise / each.sum()) for name, each in counts.items()},
        "accuracy": {name: float(each[top] / each.sum()) for name, each in counts.items()},
        "sentence": Counter(source.train.targets).most_common(1)[0][0],
    }
