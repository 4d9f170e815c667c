"""The tokens of a transformers host: those of the tokenizer in its folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from attngraft.errors import ConfigError, DataError
from attngraft.files import refuse_links, write_atomically
from attngraft.opening import read_mapping
from attngraft.suggest import first_line
from attngraft.tasks.captioning.vocabulary import FILE, CaptionTokens, read_vocabulary, words_of
from attngraft.tasks.text.tokenizer import pretrained_tokenizer

SETTINGS = "captioning.json"  #: the special ids, beside the tokenizer's own files
SAVE = "AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER)"


class HostTokens(CaptionTokens):
    """A tokenizer of transformers.

    Args:
        inner: the tokenizer.
        start, end, pad: the host's special ids.
    """

    def __init__(self, inner: Any, *, start: int, end: int, pad: int) -> None:
        self.start, self.end, self.pad = start, end, pad
        self._inner, self._vocabulary = inner, dict[str, int](inner.get_vocab())
        self._words: dict[str, int] = {}  # of references

    def __len__(self) -> int:
        return 1 + max(self._vocabulary.values())

    @cached_property
    def digest(self) -> str:
        contents = json.dumps([self.start, self.end, self.pad, sorted(self._vocabulary.items())])
        return hashlib.sha256(contents.encode()).hexdigest()[:16]

    def encode(self, caption: str, *, max_length: int | None = None) -> np.ndarray:
        """Return the start token and the tokenizer's ids, as transformers trains, and the end token if they have none."""
        ids = [self.start, *self._inner(caption, truncation=False, padding=False, verbose=False)["input_ids"]]
        if len(ids) == 1 or ids[-1] != self.end:
            ids.append(self.end)
        return np.array(ids if max_length is None else ids[: max_length + 1], dtype=np.int64)

    def decode(self, ids: Iterable[int]) -> str:
        row = [int(each) for each in ids]
        row = row[: row.index(self.end)] if self.end in row else row
        text: str = self._inner.decode(row, skip_special_tokens=True)
        return text.strip()

    def save(self, folder: Path) -> None:
        """Write the tokenizer's files, and captioning.json."""
        refuse_links(folder)
        self._inner.save_pretrained(str(folder))
        special = {"start": self.start, "end": self.end, "pad": self.pad}
        write_atomically(folder / SETTINGS, json.dumps(special, indent=2) + "\n")

    def reference_ids(self, captions: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        def ids(caption: str) -> list[int]:
            return [self._words.setdefault(word, len(self._words)) for word in words_of(caption)]

        return [[ids(each) for each in texts] for texts in captions]

    def hypothesis_ids(self, tokens: Tensor) -> list[list[int]]:
        found = []
        for row in tokens.tolist():
            own: dict[str, int] = {}  # other words only count within a caption
            known = len(self._words)
            words = words_of(self.decode(row))
            found.append([self._words.get(word, known + own.setdefault(word, len(own))) for word in words])
        return found


def host_tokens(host: Mapping[str, Any]) -> HostTokens:
    """Return the tokens of a host (`models.host_input`).

    Raises:
        ConfigError: it has no tokenizer, or too few embeddings for it.
    """
    if host.get("tokenizer") is None:
        raise ConfigError(
            f"task captioning: the host's folder has no tokenizer, whose tokens its captions consist of; save it there "
            f"({SAVE})"
        )
    folder, decoder = Path(host["tokenizer"]), host["decoder"]
    try:
        inner = pretrained_tokenizer(folder)
    except Exception as error:  # any error
        raise ConfigError(
            f"task captioning: transformers cannot read a tokenizer in {folder} ({first_line(error)}); save it there "
            f"again ({SAVE})"
        ) from None
    found = HostTokens(inner, start=decoder["start"], end=decoder["end"], pad=host["pad"])
    if len(found) > host["vocab_size"]:
        raise ConfigError(
            f"task captioning: the tokenizer in {folder} has {len(found)} ids, but the host has {host['vocab_size']} "
            "embeddings; save the tokenizer that the host was trained with"
        )
    return found


def read_tokens(folder: Path) -> CaptionTokens | None:
    """Read the files that `CaptionTokens.save` wrote; None: there are none.

    Raises:
        DataError: a file is damaged.
    """
    if (folder / FILE).is_file():
        return read_vocabulary(folder)
    if not (folder / SETTINGS).is_file():
        return None
    try:
        special = {name: int(read_mapping(folder / SETTINGS)[name]) for name in ("start", "end", "pad")}
        return HostTokens(pretrained_tokenizer(folder), **special)
    except Exception as error:  # the packages raise plain exceptions
        raise DataError(f"{folder}: cannot be read as a tokenizer ({first_line(error)}); restore its files") from None
