"""Tokenizers of sentence pairs: trained on the training pairs, or that of a transformers folder."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attngraft.errors import ConfigError, DataError
from attngraft.files import write_atomically
from attngraft.suggest import did_you_mean, shortened
from attngraft.tasks.text.tokenizer import FILE
from attngraft.tasks.translation.config import SMALLEST, TranslationConfig
from attngraft.tasks.translation.source import Pairs

SETTINGS = "translation.json"  #: the tokenizer's `TokenIds`, beside its own files

_SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")  #: ids 0 to 3, unless the host has other ids
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]  #: names that `tokenizers` expects
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  #: marks the start of a word in Metaspace
_RARE = 3  #: a word in fewer than this many places of its language is unknown
_SAVE = "AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER)"


@dataclass(frozen=True, kw_only=True)
class TokenIds:
    """The kind of a tokenizer, its special ids, and, for the tokenizer of a host, the languages and the prefix of sources."""

    kind: str  #: bpe, words or host
    pad: int
    start: int  #: first input of the decoder
    end: int
    forced: int | None = None  #: first token of every translation, such as its language in NLLB
    source: str | None = None
    target: str | None = None
    prefix: str = ""  #: text before each source, such as `translate English to German: `


class PairTokenizer(ABC):
    """Tokenizer of sources and targets.

    Attributes:
        ids: special ids, see `TokenIds`.
        vocab_size: largest id + 1.
        unknown: id of unknown tokens; None: every text can be encoded.
    """

    ids: TokenIds
    vocab_size: int
    unknown: int | None = None

    @property
    def pad(self) -> int:
        return self.ids.pad

    @property
    def start(self) -> int:
        return self.ids.start

    @property
    def end(self) -> int:
        return self.ids.end

    @property
    def forced(self) -> int | None:
        return self.ids.forced

    @property
    def digest(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of the vocabulary and settings."""
        return hashlib.sha256((json.dumps(asdict(self.ids)) + self._contents()).encode()).hexdigest()[:16]

    @abstractmethod
    def encode_source(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each source, int32, with the special tokens of the encoder's input."""

    @abstractmethod
    def encode_target(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each target, int32, without the start token and with the end token."""

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids without the special tokens."""

    def save(self, folder: Path) -> None:
        """Write the tokenizer to an existing folder.

        Raises:
            StorageError: a file cannot be written.
        """
        self._save(folder)
        write_atomically(folder / SETTINGS, json.dumps(asdict(self.ids), indent=2) + "\n")

    @abstractmethod
    def _contents(self) -> str: ...

    @abstractmethod
    def _save(self, folder: Path) -> None: ...


class TrainedTokenizer(PairTokenizer):
    """A tokenizer of the `tokenizers` package.

    Args:
        text: the contents of tokenizer.json.
        ids: the special ids.
    """

    def __init__(self, text: str, ids: TokenIds) -> None:
        self.ids, self._text, self._inner = ids, text, _package().Tokenizer.from_str(text)
        vocabulary = self._inner.get_vocab()
        self.vocab_size = 1 + max(vocabulary.values())
        self.unknown = None if _BYTES[0] in vocabulary else vocabulary["<unk>"]
        self._begin = vocabulary["<s>"]
        self._special = {vocabulary[name] for name in ("<pad>", "<s>", "</s>")}

    def encode_source(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.array([self._begin, *ids, self.end], dtype=np.int32) for ids in self._encode(texts)]

    def encode_target(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.array([*ids, self.end], dtype=np.int32) for ids in self._encode(texts)]

    def _encode(self, texts: Sequence[str]) -> Iterable[list[int]]:
        return (each.ids for each in self._inner.encode_batch(list(texts), add_special_tokens=False))

    def decode(self, ids: Iterable[int]) -> str:
        text: str = self._inner.decode([int(i) for i in ids if int(i) not in self._special])
        return text

    def _contents(self) -> str:
        return self._text

    def _save(self, folder: Path) -> None:
        write_atomically(folder / FILE, self._text)


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
        found = self._inner(texts, **options, truncation=False, padding=False, verbose=False)["input_ids"]
        return [np.array(ids, dtype=np.int32) for ids in found]

    def decode(self, ids: Iterable[int]) -> str:
        text: str = self._inner.decode([int(i) for i in ids], skip_special_tokens=True)
        return text.strip()

    def _contents(self) -> str:
        return json.dumps(sorted(self._vocabulary.items()))

    def _save(self, folder: Path) -> None:
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
        found = train_words(train, ids=_special_ids(host))
    else:
        wanted = config.vocab_size if size is None else min(config.vocab_size, int(size))
        if wanted < SMALLEST:
            raise ConfigError(
                f"task.tokens=bpe: the host has {size} embeddings, but at least {SMALLEST} tokens are needed; use a host with "
                "more, or --set task.tokens=words"
            )
        found = train_bpe([*train.sources, *train.targets], vocab_size=wanted, ids=_special_ids(host))
    if size is not None and found.vocab_size > int(size):
        raise ConfigError(
            f"task.tokens={found.ids.kind}: the tokenizer has {found.vocab_size} ids, but the host has {size} embeddings; use "
            "the tokenizer that the host was trained with (save it in the host's folder), or, for a host without weights, "
            "--set task.tokens=bpe"
        )
    return found


def read_tokenizer(folder: Path) -> PairTokenizer:
    """Read a tokenizer that `PairTokenizer.save` wrote.

    Raises:
        DataError: a file is missing or damaged.
    """
    try:
        ids = TokenIds(**json.loads((folder / SETTINGS).read_text(encoding="utf-8")))
        if ids.kind == "host":
            return HostTokenizer(_from_pretrained(folder, ids.source, ids.target), ids)
        return TrainedTokenizer((folder / FILE).read_text(encoding="utf-8"), ids)
    except ConfigError:
        raise
    except Exception as error:  # the packages raise plain exceptions
        reason = str(error).strip().partition("\n")[0]
        raise DataError(f"{folder}: cannot be read as a tokenizer ({reason}); restore its files") from None


def train_bpe(texts: Sequence[str], *, vocab_size: int, ids: Mapping[str, int] | None = None) -> TrainedTokenizer:
    """Train byte pair encoding; the result is deterministic and encodes all text without loss.

    Words are marked before punctuation is split, so that decoding restores the spaces. Characters outside the alphabet are
    encoded as UTF-8 bytes. Only normalization (NFC) and U+2581, which becomes a space, change a text.

    Args:
        texts: sentences of both languages.
        vocab_size: largest number of tokens, of which 4 are special and 256 are bytes; at most half of the others are
            characters, the most frequent ones.
        ids: ids of `<pad>`, `<unk>`, `<s>` and `</s>`; None: 0 to 3.
    """
    package = _package()
    split = package.pre_tokenizers
    inner = package.Tokenizer(package.models.BPE())
    inner.normalizer = package.normalizers.NFC()
    inner.pre_tokenizer = split.Sequence([split.Metaspace(), split.Punctuation()])
    room = vocab_size - len(_SPECIAL) - len(_BYTES)
    counts = Counter(char for text in texts for char in inner.normalizer.normalize_str(text) if char != " ")
    alphabet = [_SPACE, *sorted(counts.keys() - {_SPACE}, key=lambda char: (-counts[char], char))[: room // 2]]
    # of the trainers in `tokenizers`, only this one is deterministic, and only with a given alphabet
    trainer = package.trainers.BpeTrainer(
        vocab_size=room, initial_alphabet=alphabet, limit_alphabet=len(alphabet), show_progress=False
    )
    inner.train_from_iterator(texts, trainer)
    learned = json.loads(inner.to_str())["model"]
    special = dict(ids or _special_ids({}))
    vocabulary = _numbered(special, [*_BYTES, *sorted(learned["vocab"], key=learned["vocab"].__getitem__)])
    merges = [tuple(merge) for merge in learned["merges"]]
    inner.model = package.models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True)
    inner.decoder = package.decoders.Sequence([package.decoders.ByteFallback(), package.decoders.Metaspace()])
    return TrainedTokenizer(inner.to_str(), _token_ids("bpe", special))


def train_words(train: Pairs, *, ids: Mapping[str, int] | None = None) -> TrainedTokenizer:
    """Return a tokenizer of lower-case words and marks that occur at least 3 times in their language; others are unknown.

    Args:
        train: the training pairs.
        ids: as in `train_bpe`.
    """
    package, words = _package(), set[str]()
    inner = package.Tokenizer(package.models.WordLevel(unk_token="<unk>"))
    inner.normalizer = package.normalizers.Sequence([package.normalizers.NFC(), package.normalizers.Lowercase()])
    inner.pre_tokenizer = package.pre_tokenizers.Split(package.Regex(r"\w+|[^\w\s]"), behavior="removed", invert=True)
    for texts in (train.sources, train.targets):
        trainer = package.trainers.WordLevelTrainer(vocab_size=2**31, min_frequency=_RARE, show_progress=False)
        inner.train_from_iterator(texts, trainer)
        words |= inner.get_vocab().keys()
    special = dict(ids or _special_ids({}))
    inner.model = package.models.WordLevel(_numbered(special, sorted(words - {*_SPECIAL})), unk_token="<unk>")
    return TrainedTokenizer(inner.to_str(), _token_ids("words", special))


def _special_ids(host: Mapping[str, Any]) -> dict[str, int]:
    """Return the ids of the special tokens and of `start`: those of the host, or else the first free ones."""
    decoder = host.get("decoder") or {}
    start = decoder.get("start")
    wanted = {"<pad>": host.get("pad"), "</s>": decoder.get("end"), "<s>": start}
    found: dict[str, int] = {}
    for name, number in wanted.items():
        if number is not None and number not in found.values():
            found[name] = int(number)
    for name in _SPECIAL:
        found.setdefault(name, next(i for i in range(len(_SPECIAL) + 1) if i not in found.values()))
    return found | {"start": found["<s>"] if start is None else int(start)}


def _token_ids(kind: str, special: Mapping[str, int]) -> TokenIds:
    return TokenIds(kind=kind, pad=special["<pad>"], start=special.get("start", special["<s>"]), end=special["</s>"])


def _numbered(special: Mapping[str, int], tokens: Iterable[str]) -> dict[str, int]:
    """Return the special tokens with their ids, and the others with the ids between and after them."""
    found = {name: special[name] for name in _SPECIAL}
    taken, number = set(found.values()), 0
    for token in dict.fromkeys(tokens):
        while number in taken:
            number += 1
        found[token] = number
        number += 1
    return found


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
            f"task.tokens=host: transformers cannot read a tokenizer in {folder} ({reason}); save one there ({_SAVE}), or use "
            "--set task.tokens=bpe"
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
    what = "is not set" if language is None else f"has no token for {language!r}{near}"
    raise ConfigError(
        f"task.{side}: the {side} language {what if language is None else f'of the tokenizer in {folder} {what}'}; use --set "
        f"task.{side}=LANGUAGE with one of {shortened(sorted(known), 12)}; name columns or files of another name with --set "
        f"task.data.{side}_column=NAME"
    )


def _prefix(folder: Path, config: TranslationConfig) -> str:
    """Return the text that a T5 model expects before each source of these languages, from its configuration."""
    try:
        parameters = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("task_specific_params") or {}
    except (OSError, ValueError):
        return ""
    return str(parameters.get(f"translation_{config.source}_to_{config.target}", {}).get("prefix", ""))


def _from_pretrained(folder: Path, source: str | None, target: str | None) -> Any:
    try:
        import transformers  # optional and slow to import
    except ImportError:
        raise ConfigError("task.tokens=host: requires transformers; run pip install 'attngraft[hf]'") from None
    languages = {} if source is None or target is None else {"src_lang": source, "tgt_lang": target}
    found = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    if languages and hasattr(found, "src_lang"):
        found.src_lang, found.tgt_lang = source, target
    return found


def _package() -> Any:
    try:
        import tokenizers  # optional
    except ImportError:
        raise ConfigError("task translation: requires tokenizers; run pip install 'attngraft[text]'") from None
    return tokenizers
