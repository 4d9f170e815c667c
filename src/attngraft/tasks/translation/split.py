"""Encoded pairs, and batches of pairs of similar length."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from attngraft.errors import ConfigError, DataError
from attngraft.tasks.seeding import generator
from attngraft.tasks.task import Batch, Split
from attngraft.tasks.text.tokenizer import pad
from attngraft.tasks.translation.config import TranslationConfig
from attngraft.tasks.translation.source import Pairs, PairSource
from attngraft.tasks.translation.tokenizer import PairTokenizer

IGNORED = -100  #: label of padding
_WIDTH = 4  #: pairs of a batch differ by less than this many tokens in their shorter sentence, where possible


class PairSplit(Split):
    """Pairs, encoded once.

    Args:
        pairs: the pairs.
        tokenizer: their tokenizer.
        batch_tokens: largest number of padded tokens of the longer side in a batch; None: batches of `train.batch_size` pairs.
        sources, targets: ids of the pairs; None: they are encoded.
    """

    def __init__(
        self,
        pairs: Pairs,
        tokenizer: PairTokenizer,
        *,
        batch_tokens: int | None = None,
        sources: Sequence[np.ndarray] | None = None,
        targets: Sequence[np.ndarray] | None = None,
    ) -> None:
        self.pairs, self.pad, self.start, self.batch_tokens = pairs, tokenizer.pad, tokenizer.start, batch_tokens
        self.sources = tokenizer.encode_source(pairs.sources) if sources is None else sources
        self.targets = tokenizer.encode_target(pairs.targets) if targets is None else targets
        self._digest = tokenizer.digest

    @property
    def lengths(self) -> np.ndarray:
        """Numbers of tokens of sources and targets, (N, 2)."""
        return np.array([[*map(len, self.sources)], [*map(len, self.targets)]], dtype=np.int64).T

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, key: tuple[int, int]) -> int:
        return key[1]

    def collate(self, examples: list[int]) -> Batch:
        """Return a batch of B pairs with Ns source and Nt target tokens, padded to the longest.

        `input_ids` and `attention_mask` (B, Ns), `decoder_input_ids` (B, Nt): the start token and the target without its last
        token, `labels` (B, Nt): the target, -100 at padding, and the texts `source` and `reference`.
        """
        targets = [self.targets[i] for i in examples]
        first = np.array([self.start], dtype=np.int32)
        return {
            **pad([self.sources[i] for i in examples], value=self.pad),
            "decoder_input_ids": pad([np.concatenate([first, each[:-1]]) for each in targets], value=self.pad)["input_ids"],
            "labels": pad(targets, value=IGNORED)["input_ids"],
            "source": [self.pairs.sources[i] for i in examples],
            "reference": [self.pairs.targets[i] for i in examples],
        }

    def name(self, index: int) -> str:
        return self.pairs.names[index]

    def fingerprint(self) -> bytes:
        found = hashlib.sha256(self._digest.encode())
        for text in (*self.pairs.sources, *self.pairs.targets):
            found.update(text.encode("utf-8", "surrogateescape") + b"\n")
        return found.digest()

    def batches(self, *, seed: int, epoch: int) -> Sequence[np.ndarray] | None:
        """Return batches of pairs of similar lengths, in random order; their number is the same in all epochs."""
        if self.batch_tokens is None:
            return None
        lengths, random = self.lengths, generator(seed, epoch, -1)
        shuffled = random.permutation(len(self))
        longer, shorter = lengths.max(1)[shuffled], lengths.min(1)[shuffled]
        indices = shuffled[np.lexsort((shorter // _WIDTH, longer))]
        batches = np.split(indices, self._ends(np.sort(longer)))
        return [batches[number] for number in random.permutation(len(batches))]

    def _ends(self, longer: np.ndarray) -> list[int]:
        """Return where batches end, except for the last, if pairs are in the order of their longer sentence."""
        ends, begin, limit = list[int](), 0, self.batch_tokens or 0
        while True:
            most = limit // longer[begin : begin + limit]  # the last pair is the longest: most pairs of a batch that ends there
            size = int(np.searchsorted(np.arange(1, len(most) + 1) - most, 0, side="right"))
            begin += max(size, 1)
            if begin >= len(longer):
                return ends
            ends.append(begin)


def encode_pairs(
    source: PairSource, tokenizer: PairTokenizer, config: TranslationConfig, host: Mapping[str, Any]
) -> tuple[dict[str, PairSplit], list[str]]:
    """Return the encoded splits by name, and notes on pairs that are too long for the host or for a batch.

    Raises:
        DataError: a validation or test pair is too long, or all training pairs are.
        ConfigError: `task.batch_tokens` is more than ... the longest training pair needs.
    """
    raise NotImplementedError
