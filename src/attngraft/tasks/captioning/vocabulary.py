"""Words of captions and their ids."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

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


class Vocabulary:
    """Words and their ids: the special tokens, then words in the order of `words`.

    Args:
        words: the words, without special tokens.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.words = (*SPECIAL, *words)
        self._ids = {word: number for number, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.words).encode()).hexdigest()[:16]

    def encode(self, caption: str, *, max_length: int | None = None) -> np.ndarray:
        """Return the ids of <bos>, the words and <eos>, int64.

        At most `max_length` ids follow <bos>; a caption that is cut has no <eos>, as it does not end there.
        """
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
        """Write vocabulary.json.

        Raises:
            StorageError: the file cannot be written.
        """
        write_atomically(folder / FILE, json.dumps({"words": self.words[len(SPECIAL) :]}, ensure_ascii=False))


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
