"""Tokens of captions and their ids: the interface, and vocabularies of words."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from attngraft.errors import DataError
from attngraft.files import write_atomically
from attngraft.opening import read_mapping
from attngraft.suggest import cut

FILE = "vocabulary.json"
SPECIAL = ("<unk>", "<pad>", "<bos>", "<eos>")  #: in the order of the meshed-memory transformer
UNK, PAD, BOS, EOS = range(len(SPECIAL))

_WORD = re.compile(r"\w+(?:['-]\w+)*")


def words_of(caption: str) -> list[str]:
    """Return the lower-case words of a caption, without punctuation.

    A word is a run of letters, digits and underscores, which may contain single apostrophes and hyphens: `dog's`, `t-shirt`.
    """
    return _WORD.findall(unicodedata.normalize("NFC", caption).lower().replace("\u2019", "'"))


class CaptionTokens(ABC):
    """Tokens that captions are written with.

    Attributes:
        start: first input of the decoder.
        end: last token of a caption.
        pad: padding; may be equal to `end`.
    """

    start: int
    end: int
    pad: int

    @abstractmethod
    def __len__(self) -> int:
        """Return the largest id + 1."""

    @property
    @abstractmethod
    def digest(self) -> str:
        """16 hexadecimal digits, equal for equal tokens."""

    @abstractmethod
    def encode(self, caption: str, *, max_length: int | None = None) -> np.ndarray:
        """Return the ids of the start token, the caption and the end token, int64.

        At most `max_length` ids follow the start token; a caption that is cut has no end token, as it does not end there.
        """

    @abstractmethod
    def decode(self, ids: Iterable[int]) -> str:
        """Return the caption of ids after the start token, up to the end token."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the files that `host_tokens.read_tokens` reads.

        Raises:
            StorageError: a file cannot be written.
        """

    @abstractmethod
    def reference_ids(self, captions: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        """Return the ids of the words of each image's captions, for rewards."""

    @abstractmethod
    def hypothesis_ids(self, tokens: Tensor) -> list[list[int]]:
        """Return the ids of the words of sampled tokens (N, L) without start token, for rewards.

        They are those of `reference_ids`, called before. Words that are in no reference have other ids.
        """


class Vocabulary(CaptionTokens):
    """Words and their ids: the special tokens, then words in the order of `words`.

    Args:
        words: the words, without special tokens.
    """

    start, end, pad = BOS, EOS, PAD

    def __init__(self, words: Sequence[str]) -> None:
        self.words = (*SPECIAL, *words)
        self._ids = {word: number for number, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.words).encode()).hexdigest()[:16]

    def encode(self, caption: str, *, max_length: int | None = None) -> np.ndarray:
        ids = [BOS, *(self._ids.get(word, UNK) for word in words_of(caption)), EOS]
        return np.array(ids if max_length is None else ids[: max_length + 1], dtype=np.int64)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the words up to <eos>, separated by spaces, without <bos> and <pad>."""
        found = list[str]()
        for each in ids:
            if (number := int(each)) == EOS:
                break
            if number not in (BOS, PAD):
                found.append(self.words[number])
        return " ".join(found)

    def save(self, folder: Path) -> None:
        """Write vocabulary.json."""
        write_atomically(folder / FILE, json.dumps({"words": self.words[len(SPECIAL) :]}, ensure_ascii=False))

    def reference_ids(self, captions: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        """Return the ids of the words; words that models do not write have ids of their own."""
        other: dict[str, int] = {}

        def ids(caption: str) -> list[int]:
            found = zip(words_of(caption), self.encode(caption)[1:-1].tolist(), strict=True)
            return [
                number if number != UNK else other.setdefault(word, len(self) + len(other)) for word, number in found
            ]

        return [[ids(each) for each in texts] for texts in captions]

    def hypothesis_ids(self, tokens: Tensor) -> list[list[int]]:
        return ids_of_captions(tokens)


def ids_of_captions(tokens: Tensor) -> list[list[int]]:
    """Return the ids of each caption (N, L), without start, end and padding."""
    rows = tokens.tolist()
    ended = [row[: row.index(EOS)] if EOS in row else row for row in rows]
    return [[each for each in row if each not in (BOS, PAD)] for row in ended]


def build_vocabulary(captions: Iterable[str], *, min_count: int) -> Vocabulary:
    """Return the words that occur at least `min_count` times, the most frequent first, equally frequent ones by name.

    Raises:
        DataError: there is no such word.
    """
    counts = Counter(word for caption in captions for word in words_of(caption))
    words = sorted(
        (word for word, count in counts.items() if count >= min_count), key=lambda word: (-counts[word], word)
    )
    if not words:
        raise DataError(
            f"no word occurs {min_count} times in the captions; add captions, or use --set task.vocabulary.min_count=1"
            if counts
            else "the captions have no words, which are letters and digits; add captions"
        )
    return Vocabulary(words)


def read_vocabulary(folder: Path) -> Vocabulary:
    """Read the file that `Vocabulary.save` wrote.

    Raises:
        DataError: it is missing or damaged.
    """
    path = folder / FILE
    try:
        words = read_mapping(path)["words"]
        if not isinstance(words, list) or not all(isinstance(word, str) and word.split() == [word] for word in words):
            raise ValueError("words must be a list of words")
        if len({*words, *SPECIAL}) < len(words) + len(SPECIAL):
            raise ValueError("a word is listed twice")
    except (OSError, KeyError, ValueError) as error:
        raise DataError(f"{path}: cannot be read as a vocabulary ({cut(str(error))}); restore the file") from None
    return Vocabulary(words)
