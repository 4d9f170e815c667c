"""Encoded pairs, and batches of pairs of similar length."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from attngraft.errors import DataError
from attngraft.tasks.seeding import generator
from attngraft.tasks.task import Batch, Split
from attngraft.tasks.text.tokenizer import pad
from attngraft.tasks.translation.config import TranslationConfig
from attngraft.tasks.translation.source import Pairs, PairSource
from attngraft.tasks.translation.trained import PairTokenizer

IGNORED = -100  #: label of padding
_NO_LIMIT = 2**31
_NOUNS = {"train": "training", "val": "validation", "test": "test"}


class PairSplit(Split):
    """Pairs, encoded once.

    Args:
        pairs: the pairs.
        tokenizer: their tokenizer.
        batch_tokens: largest number of padded tokens of the longer side in a batch; None: `train.batch_size` pairs.
        ids: the ids of all sources, and of all targets; None: the pairs are encoded.
    """

    def __init__(
        self,
        pairs: Pairs,
        tokenizer: PairTokenizer,
        *,
        batch_tokens: int | None = None,
        ids: Iterable[list[np.ndarray]] | None = None,
    ) -> None:
        self.pairs, self.batch_tokens, self._tokenizer = pairs, batch_tokens, tokenizer
        self._pad, self._first = tokenizer.pad, np.array([tokenizer.start], dtype=np.int32)
        if ids is None:
            ids = [tokenizer.encode_source(pairs.sources), tokenizer.encode_target(pairs.targets)]
        self.sources, self.targets = ids

    @cached_property
    def lengths(self) -> np.ndarray:
        """Numbers of tokens of sources and targets, (N, 2)."""
        return np.array([[*map(len, self.sources)], [*map(len, self.targets)]], dtype=np.int64).T

    @cached_property
    def _ends(self) -> list[int]:
        """Where batches end, except for the last, if pairs are in the order of their longer sentence."""
        ends, begin, limit = list[int](), 0, self.batch_tokens or 0
        for number, length in enumerate(np.sort(self.lengths.max(1)).tolist()):
            if number > begin and (number - begin + 1) * length > limit:
                ends.append(number)
                begin = number
        return ends

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, key: tuple[int, int]) -> int:
        return key[1]

    def take(self, indices: np.ndarray, ids: Sequence[list[np.ndarray]] | None = None) -> PairSplit:
        """Return the split of these pairs, with other `ids` if given."""
        ids = [[side[i] for i in indices] for side in ((self.sources, self.targets) if ids is None else ids)]
        return PairSplit(self.pairs.take(indices), self._tokenizer, batch_tokens=self.batch_tokens, ids=ids)

    def collate(self, examples: list[int]) -> Batch:
        """Return a batch of B pairs with Ns source and Nt target tokens, padded to the longest.

        `input_ids` and `attention_mask` (B, Ns), `decoder_input_ids` (B, Nt): the start token and the target without its
        last token, `labels` (B, Nt): the target, -100 at padding, and the texts `source` and `reference`.
        """
        sources, targets = ([side[i] for i in examples] for side in (self.sources, self.targets))
        inputs = [np.concatenate([self._first, each[:-1]]) for each in targets]
        return {
            **pad(sources, value=self._pad),
            "decoder_input_ids": pad(inputs, value=self._pad)["input_ids"],
            "labels": pad(targets, value=IGNORED)["input_ids"],
            "source": [self.pairs.sources[i] for i in examples],
            "reference": [self.pairs.targets[i] for i in examples],
        }

    def name(self, index: int) -> str:
        return self.pairs.names[index]

    def fingerprint(self) -> bytes:
        found = hashlib.sha256(self._tokenizer.digest.encode())
        for text in (*self.pairs.sources, *self.pairs.targets):
            found.update(text.encode("utf-8", "surrogateescape") + b"\n")
        return found.digest()

    def batches(self, *, seed: int, epoch: int) -> Sequence[np.ndarray] | None:
        """Return batches of pairs of similar lengths, in random order; their number is the same in all epochs."""
        if self.batch_tokens is None:
            return None
        random = generator(seed, epoch, -1)
        shuffled = random.permutation(len(self))
        by_length = np.argsort(self.lengths.max(1)[shuffled], kind="stable")
        batches = np.split(shuffled[by_length], self._ends)
        return [batches[number] for number in random.permutation(len(batches))]


def encode_pairs(
    source: PairSource, tokenizer: PairTokenizer, config: TranslationConfig, host: Mapping[str, Any]
) -> tuple[dict[str, PairSplit], list[str]]:
    """Return the encoded splits by name, and notes on pairs that are longer than the host's positions, or than a batch.

    `task.long` determines what becomes of long pairs.

    Args:
        source: the pairs.
        tokenizer: their tokenizer.
        config: the recipe's task section.
        host: the host's input (`models.host_input`).

    Raises:
        DataError: a validation or test pair is too long, or all training pairs are; the message names file and line.
    """
    positions = [host.get("max_length"), (host.get("decoder") or {}).get("max_length")]
    splits, notes = dict[str, PairSplit](), list[str]()
    for name, pairs in source.parts().items():
        budget = config.batch_tokens if name == "train" else None
        limits = [
            min([limit for limit in (each, budget) if limit is not None], default=_NO_LIMIT) for each in positions
        ]
        split = PairSplit(pairs, tokenizer, batch_tokens=budget)
        long = np.flatnonzero((split.lengths > limits).any(1))
        if len(long):
            several = f"{len(long)} {_NOUNS[name]} {'pair is' if len(long) == 1 else 'pairs are'}"
            sizes = "{} and {} tokens".format(*split.lengths[long[0]])
            first, most = pairs.places[long[0]], _described(limits)
        if len(long) and config.long == "cut":
            notes.append(f"{several} cut to {most} (task.long=cut).")
            sides = zip((split.sources, split.targets), limits, strict=True)
            split = split.take(np.arange(len(pairs)), [[_cut(each, limit) for each in side] for side, limit in sides])
        elif len(long):
            if name != "train" or len(long) == len(pairs):
                raise DataError(
                    f"{first}: the sentences have {sizes}, but the host takes {most}; shorten them, or cut long pairs with "
                    "--set task.long=cut"
                )
            notes.append(f"{several} not used, because of more than {most}, such as {first} ({sizes}).")
            split = split.take(np.setdiff1d(np.arange(len(pairs)), long))
        splits[name] = split
    return splits, notes


def _cut(ids: np.ndarray, limit: int) -> np.ndarray:
    """Return the first tokens and the last, which ends the sentence."""
    return ids if len(ids) <= limit else np.concatenate([ids[: limit - 1], ids[-1:]])


def _described(limits: Sequence[int]) -> str:
    source, target = ("any number of" if limit == _NO_LIMIT else str(limit) for limit in limits)
    return f"{source} tokens" if source == target else f"{source} source and {target} target tokens"
