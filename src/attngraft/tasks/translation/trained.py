"""The interface of tokenizers of sentence pairs, and tokenizers trained on the training pairs."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from attngraft.errors import ConfigError
from attngraft.files import write_atomically
from attngraft.tasks.text.tokenizer import FILE, bounded, encoding_errors
from attngraft.tasks.translation.source import Pairs

SETTINGS = "translation.json"  #: the tokenizer's `TokenIds`, beside its own files

_SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")  #: ids 0 to 3, unless the host has other ids
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]  #: names that `tokenizers` expects
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  #: marks the start of a word in Metaspace
_RARE = 3  #: a word in fewer than this many places of its language is unknown


@dataclass(frozen=True, kw_only=True)
class TokenIds:
    """The kind of a tokenizer and its special ids; of the tokenizer of a host, also the languages and the prefix."""

    kind: Literal["bpe", "words", "host"]
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

    @cached_property
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

    @abstractmethod
    def tokens(self, ids: Iterable[int]) -> tuple[str, ...]:
        """Return the tokens of ids, to show them."""

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
        self.ids, self._text, self._inner = ids, text, bounded(_package().Tokenizer.from_str(text))
        vocabulary = self._inner.get_vocab()
        self.vocab_size = 1 + max(vocabulary.values())
        self.unknown = None if _BYTES[0] in vocabulary else vocabulary["<unk>"]
        self._begin = vocabulary["<s>"]
        self._special = {vocabulary[name] for name in ("<pad>", "<s>", "</s>")}
        for each in (ids.pad, ids.start, ids.end, ids.forced or 0):
            if not 0 <= each < self.vocab_size:
                raise ValueError(f"{each} is not the id of a token")
        if (ids.pad, ids.end) != (vocabulary["<pad>"], vocabulary["</s>"]):
            raise ValueError("the ids of padding and end are not those of <pad> and </s>")

    def encode_source(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.array([self._begin, *ids, self.end], dtype=np.int32) for ids in self._encode(texts)]

    def encode_target(self, texts: Sequence[str]) -> list[np.ndarray]:
        return [np.array([*ids, self.end], dtype=np.int32) for ids in self._encode(texts)]

    def _encode(self, texts: Sequence[str]) -> Iterable[list[int]]:
        with encoding_errors():
            return [each.ids for each in self._inner.encode_batch(list(texts), add_special_tokens=False)]

    def decode(self, ids: Iterable[int]) -> str:
        text: str = self._inner.decode([int(i) for i in ids if int(i) not in self._special])
        return text

    def tokens(self, ids: Iterable[int]) -> tuple[str, ...]:
        return tuple(str(self._inner.id_to_token(int(i))) for i in ids)

    def _contents(self) -> str:
        return self._text

    def _save(self, folder: Path) -> None:
        write_atomically(folder / FILE, self._text)


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
    special = dict(ids or special_ids({}))
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
    special = dict(ids or special_ids({}))
    inner.model = package.models.WordLevel(_numbered(special, sorted(words - {*_SPECIAL})), unk_token="<unk>")
    return TrainedTokenizer(inner.to_str(), _token_ids("words", special))


def special_ids(host: Mapping[str, Any]) -> dict[str, int]:
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


def _token_ids(kind: Literal["bpe", "words"], special: Mapping[str, int]) -> TokenIds:
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


def _package() -> Any:
    try:
        import tokenizers  # optional
    except ImportError:
        raise ConfigError("task translation: requires tokenizers; run pip install 'attngraft[text]'") from None
    return tokenizers
