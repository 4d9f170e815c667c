"""The tokenizer of a run: that of a transformers folder, or one trained on the training pairs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attngraft.errors import ConfigError, DataError
from attngraft.files import refuse_links
from attngraft.opening import read_mapping, read_text
from attngraft.strict import read
from attngraft.suggest import did_you_mean, shortened
from attngraft.tasks.text.tokenizer import FILE, encoding_errors, pretrained_tokenizer
from attngraft.tasks.translation.config import SMALLEST, TranslationConfig
from attngraft.tasks.translation.source import Pairs
from attngraft.tasks.translation.trained import (
    SETTINGS,
    PairTokenizer,
    TokenIds,
    TrainedTokenizer,
    special_ids,
    train_bpe,
    train_words,
)

_SAVE = "AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER)"


class HostTokenizer(PairTokenizer):
    """A tokenizer of transformers, with the languages in `ids`."""

    def __init__(self, inner: Any, ids: TokenIds) -> None:
        self.ids, self._inner = ids, inner
        self._vocabulary: dict[str, int] = inner.get_vocab()
        self.vocab_size = 1 + max(self._vocabulary.values())
        self.unknown = inner.unk_token_id

    def encode_source(self, texts: Sequence[str]) -> list[np.ndarray]:
        return self._encode([f"{self.ids.prefix}{text}" for text in texts])

    def encode_target(self, texts: Sequence[str]) -> list[np.ndarray]:
        return self._encode(None, text_target=list(texts))

    def _encode(self, texts: Sequence[str] | None, **options: Any) -> list[np.ndarray]:
        with encoding_errors():
            found = self._inner(texts, **options, truncation=False, padding=False, verbose=False)["input_ids"]
        return [np.array(ids, dtype=np.int32) for ids in found]

    def decode(self, ids: Iterable[int]) -> str:
        text: str = self._inner.decode([int(i) for i in ids], skip_special_tokens=True)
        return text.strip()

    def tokens(self, ids: Iterable[int]) -> tuple[str, ...]:
        return tuple(map(str, self._inner.convert_ids_to_tokens([int(i) for i in ids])))

    def _contents(self) -> str:
        return json.dumps(sorted(self._vocabulary.items()))

    def _save(self, folder: Path) -> None:
        refuse_links(folder)
        self._inner.save_pretrained(str(folder))


def new_tokenizer(config: TranslationConfig, train: Pairs, host: Mapping[str, Any]) -> PairTokenizer:
    """Return the tokenizer of a new run: that of the host's folder, or one trained on the training pairs.

    Args:
        config: the recipe's task section.
        train: the training pairs.
        host: the host's input (`models.host_input`).

    Raises:
        ConfigError: the host has no tokenizer, or too few embeddings, or the tokenizer does not have the languages.
    """
    size, folder = host.get("vocab_size"), host.get("tokenizer")
    if config.tokens == "host" and folder is None:
        raise ConfigError(
            f"task.tokens=host: the host's folder has no tokenizer; save one there ({_SAVE}), or use --set task.tokens=bpe"
        )
    if folder is not None and config.tokens in ("host", None):
        found: PairTokenizer = _of_folder(Path(folder), config, host)
    elif config.tokens == "words":
        found = train_words(train, ids=special_ids(host))
    else:
        wanted = config.vocab_size if size is None else min(config.vocab_size, int(size))
        if wanted < SMALLEST:
            raise ConfigError(
                f"task.tokens=bpe: the host has {size} embeddings, but at least {SMALLEST} tokens are needed; use a host "
                "with more, or --set task.tokens=words"
            )
        found = train_bpe([*train.sources, *train.targets], vocab_size=wanted, ids=special_ids(host))
    if size is not None and found.vocab_size > int(size):
        raise ConfigError(
            f"task.tokens={found.ids.kind}: the tokenizer has {found.vocab_size} ids, but the host has {size} embeddings; "
            "use the tokenizer that the host was trained with (save it in the host's folder), or, for a host without "
            "weights, --set task.tokens=bpe"
        )
    return found


def read_tokenizer(folder: Path) -> PairTokenizer:
    """Read a tokenizer that `PairTokenizer.save` wrote.

    Raises:
        DataError: a file is missing or damaged.
    """
    try:
        ids = read(TokenIds, read_mapping(folder / SETTINGS), where=str(folder / SETTINGS))
        if ids.kind == "host":
            return HostTokenizer(_from_pretrained(folder, ids.source, ids.target), ids)
        return TrainedTokenizer(read_text(folder / FILE), ids)
    except ConfigError:
        raise
    except Exception as error:  # the packages raise plain exceptions
        reason = str(error).strip().partition("\n")[0]
        raise DataError(f"{folder}: cannot be read as a tokenizer ({reason}); restore its files") from None


def _of_folder(folder: Path, config: TranslationConfig, host: Mapping[str, Any]) -> HostTokenizer:
    try:
        inner = _from_pretrained(folder, None, None)
    except ImportError as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(f"task.tokens=host: {folder}: {reason}; run pip install sentencepiece") from None
    except Exception as error:  # any error
        if isinstance(error, ConfigError):
            raise
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"task.tokens=host: transformers cannot read a tokenizer in {folder} ({reason}); save one there ({_SAVE}), or "
            "use --set task.tokens=bpe"
        ) from None
    decoder, forced = host.get("decoder") or {}, None
    if hasattr(inner, "src_lang"):  # NLLB, M2M-100, mBART: a token for each language
        known = _languages(inner)
        for side in ("source", "target"):
            _require_language(getattr(config, side), known, side=side, folder=folder)
        inner.src_lang, inner.tgt_lang = config.source, config.target
        forced = known[str(config.target)]
    elif decoder.get("forced") is not None:
        forced = int(decoder["forced"])
    pad, end = inner.pad_token_id, inner.eos_token_id
    pad = host.get("pad") if pad is None else pad
    end = decoder.get("end") if end is None else end
    if pad is None or end is None:
        raise ConfigError(
            f"task.tokens=host: the tokenizer in {folder} has no padding or no end token; add it, and save it again"
        )
    ids = TokenIds(
        kind="host",
        pad=int(pad),
        start=int(decoder["start"] if decoder.get("start") is not None else pad),
        end=int(end),
        forced=forced,
        source=config.source,
        target=config.target,
        prefix=_prefix(folder, config),
    )
    return HostTokenizer(inner, ids)


def _languages(inner: Any) -> dict[str, int]:
    """Return the languages of a multilingual tokenizer and the ids of their tokens."""
    known = getattr(inner, "lang_code_to_id", None)
    if known:
        return dict(known)
    named = {str(token) for token in inner.special_tokens_map.values() if isinstance(token, str)}
    return {token: number for token, number in inner.get_added_vocab().items() if token not in named}


def _require_language(language: str | None, known: Mapping[str, int], *, side: str, folder: Path) -> None:
    if language in known:
        return
    same = [name for name in sorted(known) if language and name.lower().startswith(language.lower())]
    near = f" (did you mean {' or '.join(same[:3])}?)" if same else did_you_mean(language or "", known)
    what = f"the tokenizer in {folder} has no token for {language!r}{near}"
    what = f"the language is not set, but the tokenizer in {folder} needs it" if language is None else what
    raise ConfigError(
        f"task.{side}: {what}; use --set task.{side}=LANGUAGE with one of {shortened(sorted(known), 12)}, and name files or "
        f"columns of another name with --set task.data.{side}_column=NAME"
    )


def _prefix(folder: Path, config: TranslationConfig) -> str:
    """Return the text that a T5 model expects before each source of these languages, from its configuration."""
    try:
        parameters = read_mapping(folder / "config.json").get("task_specific_params") or {}
        return str(parameters.get(f"translation_{config.source}_to_{config.target}", {}).get("prefix", ""))
    except (OSError, ValueError, AttributeError):  # values of another type belong to another model
        return ""


def _from_pretrained(folder: Path, source: str | None, target: str | None) -> Any:
    found = pretrained_tokenizer(folder)
    if source is not None and target is not None and hasattr(found, "src_lang"):
        found.src_lang, found.tgt_lang = source, target
    return found
