"""Tokenizers: that of a host, or one trained on the training texts; saved as tokenizer.json."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attngraft.downloads import without_hub
from attngraft.errors import ConfigError, DataError
from attngraft.files import write_atomically
from attngraft.opening import check_folder, read_mapping, read_text
from attngraft.suggest import CONTROL, quoted

FILE = "tokenizer.json"  #: in the format of the `tokenizers` package, with padding and truncation

LONGEST = (
    1_000_000  #: largest number of characters of a text, each of which takes 400 bytes until the tokens are truncated
)
_MOST_GROWTH = 1_000  #: times by which a tokenizer may lengthen a text
_LONGEST_WORD = 10_000  #: characters without a space in training, which takes quadratic time; longer words are divided
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class Tokenizer:
    """A tokenizer of the `tokenizers` package, created from its JSON text.

    Args:
        text: the contents of tokenizer.json.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._tokenizer = bounded(_package().Tokenizer.from_str(text))
        self.pad = int((self._tokenizer.padding or {}).get("pad_id", 0))
        self.max_length: int | None = (self._tokenizer.truncation or {}).get("max_length")
        self.vocab_size = 1 + max(self._tokenizer.get_vocab().values(), default=0)
        self._tokenizer.no_padding()

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def encode(self, texts: Sequence[str]) -> tuple[list[np.ndarray], int]:
        """Return the ids of each text, with special tokens, and the number of texts that were cut.

        Raises:
            DataError: a text is too long, or the tokenizer fails.
        """
        if (longest := max(map(len, texts), default=0)) > LONGEST:
            raise DataError(f"a text has {longest:,} characters, more than {LONGEST:,}; cut or remove it")
        with encoding_errors():
            found = self._tokenizer.encode_batch(list(texts))
        return [np.array(each.ids, dtype=np.int64) for each in found], sum(bool(each.overflowing) for each in found)

    def tokens(self, ids: Sequence[int] | np.ndarray) -> tuple[str, ...]:
        """Return the tokens of ids."""
        return tuple(str(self._tokenizer.id_to_token(int(index))) for index in ids)

    def batch(self, ids: Sequence[np.ndarray]) -> dict[str, Tensor]:
        return pad(ids, value=self.pad)

    def cut_at(self, max_length: int) -> "Tokenizer":
        """Return a tokenizer that truncates texts to this number of tokens."""
        if max_length == self.max_length:
            return self
        inner = _package().Tokenizer.from_str(self.text)
        inner.enable_truncation(max_length, direction=(inner.truncation or {}).get("direction", "right"))
        return Tokenizer(inner.to_str())

    def save(self, path: Path) -> None:
        """Write tokenizer.json.

        Raises:
            StorageError: the file cannot be written.
        """
        write_atomically(path, self.text)


def bounded(inner: Any) -> Any:
    """Return a tokenizer of the `tokenizers` package, checked to not lengthen texts much.

    Raises:
        ValueError: its replacements make a text more than 1,000 times as long.
    """
    steps = (inner.normalizer, inner.pre_tokenizer, inner.post_processor)
    parts, growth = [json.loads(step.__getstate__()) for step in steps if step is not None], 1.0
    while parts:
        part = parts.pop()
        if isinstance(part, list):
            parts += part
        elif isinstance(part, dict):
            parts += part.values()
            inserted = [part[name] for name in ("content", "prepend") if isinstance(part.get(name), str)]
            repeated = sum(isinstance(each, dict) and "Sequence" in each for each in part.get("single") or ())
            replaced = part["pattern"].get("String", "") if isinstance(part.get("pattern"), dict) else ""
            growth *= max(1, sum(map(len, inserted)) / max(1, len(replaced)), repeated)
    if growth > _MOST_GROWTH:
        raise ValueError(f"its replacements make a text up to {growth:,.0f} times as long")
    return inner


@contextmanager
def encoding_errors() -> Iterator[None]:
    """Convert errors of a tokenizer to a DataError."""
    try:
        yield
    except BaseException as error:
        if _is_error(error):
            raise DataError(f"the tokenizer cannot encode a text ({quoted(error)}); restore the tokenizer") from None
        raise


def _is_error(error: BaseException) -> bool:
    """Return whether a tokenizer failed; a panic of its Rust code is not an `Exception`."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def pad(ids: Sequence[np.ndarray], *, value: int) -> dict[str, Tensor]:
    """Return `input_ids`, padded to the longest, and `attention_mask`, 1 for tokens; (B, L) int64 each."""
    shape = len(ids), max(map(len, ids))
    tokens, mask = torch.full(shape, value), torch.zeros(shape, dtype=torch.int64)
    for row, each in enumerate(ids):
        tokens[row, : len(each)] = torch.from_numpy(each)
        mask[row, : len(each)] = 1
    return {"input_ids": tokens, "attention_mask": mask}


def read_tokenizer(path: Path, *, of_model: Mapping[str, Any] | None = None) -> Tokenizer:
    """Read a tokenizer.json that `Tokenizer.save` wrote.

    Args:
        path: the file.
        of_model: `vocab_size` and `max_length` that an exported model states; None: unknown.

    Raises:
        DataError: the file is missing or damaged, has more tokens, or cuts texts at another length.
    """
    try:
        found = Tokenizer(read_text(path))
        given = of_model or {}
        if found.vocab_size > given.get("vocab_size", found.vocab_size):
            raise ValueError(f"it has {found.vocab_size:,} tokens, but the model has {given['vocab_size']:,}")
        if found.max_length != given.get("max_length", found.max_length):
            raise ValueError(f"it cuts texts at {found.max_length} tokens, but the model at {given['max_length']}")
        return found
    except ConfigError:
        raise
    except BaseException as error:  # the package raises plain exceptions
        if not _is_error(error):
            raise
        raise DataError(f"{path}: cannot be read as a tokenizer ({error}); restore the file") from None


def pretrained_tokenizer(folder: Path) -> Any:
    """Return the transformers tokenizer of a folder; nothing is downloaded, and no code of the folder runs.

    Raises:
        ConfigError: transformers is missing.
        ValueError: its vocabulary is empty, it would lengthen texts by much, or a key of a file has a control character.
            Other errors are those of transformers, of any class.
    """
    try:
        import transformers  # optional and slow to import
    except ImportError:
        raise ConfigError("the host's tokenizer requires transformers; run pip install 'attngraft[hf]'") from None
    check_folder(folder)
    for name in (FILE, "tokenizer_config.json", "special_tokens_map.json"):
        if (folder / name).is_file():  # tokenizers prints unknown keys
            _refuse_control_characters(read_mapping(folder / name), where=name)
    with without_hub():
        found = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    if len(found) <= len(found.added_tokens_decoder):
        raise ValueError("its vocabulary is empty")
    if hasattr(found, "backend_tokenizer"):
        bounded(found.backend_tokenizer)
    return found


def _refuse_control_characters(value: Any, *, where: str) -> None:
    """Raise ValueError if a key of nested mappings, except of a vocabulary, has a control character."""
    if isinstance(value, dict):
        for key, each in value.items():
            if CONTROL.search(key):
                raise ValueError(f"{where}: the key {quoted(key)} has a control character")
            if key != "vocab":
                _refuse_control_characters(each, where=where)
    elif isinstance(value, list):
        for each in value:
            _refuse_control_characters(each, where=where)


def folder_tokenizer(folder: Path, *, pad: int | None, max_length: int | None) -> Tokenizer:
    """Return the tokenizer of a transformers folder.

    Args:
        folder: the folder.
        pad: id of the padding token if the tokenizer has none.
        max_length: longer texts are cut.

    Raises:
        ConfigError: transformers cannot read it.
    """
    try:
        found = pretrained_tokenizer(folder)
        text = found.backend_tokenizer.to_str()
    except ConfigError:
        raise
    except BaseException as error:  # any error; tokenizers written in Python have no backend_tokenizer
        if not _is_error(error):
            raise
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"task.tokenizer: transformers cannot read a tokenizer in {folder} ({reason}); save one there "
            "(AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER)), or use --set task.tokenizer.source=train"
        ) from None
    inner = _package().Tokenizer.from_str(text)
    own = found.pad_token_id
    pad = own if own is not None else pad or 0
    return _with_limits(inner, pad=pad, name=found.pad_token, max_length=max_length, direction=found.truncation_side)


def train_tokenizer(
    texts: Sequence[str], *, vocab_size: int, lower_case: bool = True, pad: int | None, max_length: int | None
) -> Tokenizer:
    """Train byte pair encoding of words, with BERT's special tokens; the result is deterministic.

    Of the trainers in `tokenizers`, only this one is deterministic, and only with a given alphabet.

    Args:
        texts: the training texts; words of more than 10,000 characters are divided.
        vocab_size: largest number of tokens; at most half of them are characters, the most frequent ones.
        lower_case: convert letters to lower case and remove accents.
        pad: id of the host's padding token; ignored unless it is 0 to 4.
        max_length: longer texts are cut.
    """
    package, special = _package(), list(_SPECIAL)
    if pad is not None and pad < len(special):
        special.insert(pad, special.pop(0))
    inner = package.Tokenizer(package.models.BPE(unk_token="[UNK]"))
    inner.normalizer = package.normalizers.BertNormalizer(lowercase=lower_case)
    split = package.pre_tokenizers
    inner.pre_tokenizer = split.Sequence([split.BertPreTokenizer(), split.Metaspace()])
    inner.decoder = package.decoders.Metaspace()
    long = re.compile(rf"(\S{{{_LONGEST_WORD}}})(?=\S)")
    texts = [long.sub(r"\1 ", text) for text in texts]
    counts = Counter(char for text in texts for char in inner.normalizer.normalize_str(text) if not char.isspace())
    some = sorted(counts, key=lambda char: (-counts[char], char))[: vocab_size // 2]
    alphabet = [*some, "\N{LOWER ONE EIGHTH BLOCK}"]  # marks the start of a word in Metaspace
    inner.train_from_iterator(
        texts,
        package.trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=special,
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            show_progress=False,
        ),
    )
    inner.post_processor = package.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(name, inner.token_to_id(name)) for name in ("[CLS]", "[SEP]")],
    )
    return _with_limits(inner, pad=inner.token_to_id("[PAD]"), name="[PAD]", max_length=max_length)


def _with_limits(
    inner: Any, *, pad: int, name: str | None, max_length: int | None, direction: str = "right"
) -> Tokenizer:
    inner.enable_padding(pad_id=pad, pad_token=name or "[PAD]")
    inner.no_truncation()
    if max_length is not None:
        inner.enable_truncation(max_length, direction=direction)
    return Tokenizer(inner.to_str())


def _package() -> Any:
    try:
        import tokenizers  # optional; transformers requires it
    except ImportError:
        raise ConfigError("task text_classification: requires tokenizers; run pip install 'attngraft[hf]'") from None
    return tokenizers
