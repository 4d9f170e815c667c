"""Batches of encoded pairs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attngraft.errors import DataError
from attngraft.tasks.translation.config import TranslationConfig, TranslationDataConfig
from attngraft.tasks.translation.source import Pairs, open_pairs
from attngraft.tasks.translation.split import PairSplit, encode_pairs
from attngraft.tasks.translation.trained import train_bpe
from tests.tasks.translation.pairs import sentences, write_pairs

pytest.importorskip("tokenizers", reason="needs the extra text")
TOKENIZER = train_bpe([text for pair in sentences(40) for text in pair], vocab_size=340)


def split_of(lengths: list[tuple[int, int]], *, batch_tokens: int | None) -> PairSplit:
    names = [str(number) for number in range(len(lengths))]
    ids = [[np.full(sizes[side], 5, dtype=np.int32) for sizes in lengths] for side in range(2)]
    pairs = Pairs(names=names, sources=names, targets=names, places=names)
    return PairSplit(pairs, TOKENIZER, batch_tokens=batch_tokens, ids=ids)


SIZES = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=60)


@settings(max_examples=50, deadline=None)
@given(SIZES, st.integers(20, 90), st.integers(0, 5), st.integers(0, 5))
def test_batches_cover_every_pair_once_within_the_budget(
    lengths: list[tuple[int, int]], budget: int, seed: int, epoch: int
) -> None:
    split = split_of(lengths, batch_tokens=budget)
    batches = split.batches(seed=seed, epoch=epoch)
    assert batches is not None
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    assert all(len(batch) * split.lengths[batch].max() <= budget for batch in batches)
    again = split_of(lengths, batch_tokens=budget).batches(seed=seed, epoch=epoch)
    assert again is not None and all(map(np.array_equal, batches, again))
    assert len(split.batches(seed=seed, epoch=epoch + 1) or ()) == len(batches)


def test_batches_are_full_and_differ_between_epochs() -> None:
    split = split_of([(n % 17 + 1, n % 13 + 1) for n in range(500)], batch_tokens=100)
    batches = [split.batches(seed=seed, epoch=epoch) or () for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    assert len({tuple(np.concatenate(each).tolist()) for each in batches}) == 3
    padded = sum(len(batch) * split.lengths[batch].max() for batch in batches[0])
    assert padded < 1.05 * split.lengths.max(1).sum()
    assert split_of([(1, 1)], batch_tokens=None).batches(seed=0, epoch=0) is None


def test_a_batch_is_padded_and_its_targets_are_shifted() -> None:
    names = ["a", "b"]
    pairs = Pairs(names=names, sources=["red house", "bird"], targets=["rote Haus", "Vogel. Vogel."], places=names)
    split = PairSplit(pairs, TOKENIZER)
    batch = split.collate([split[0, 0], split[0, 1]])
    sources, targets = TOKENIZER.encode_source(pairs.sources), TOKENIZER.encode_target(pairs.targets)
    for row in range(2):
        size, length = len(sources[row]), len(targets[row])
        assert batch["input_ids"][row, :size].tolist() == sources[row].tolist()
        assert batch["attention_mask"][row].sum() == size and (batch["input_ids"][row, size:] == 0).all()
        assert batch["labels"][row, :length].tolist() == targets[row].tolist()
        assert (batch["labels"][row, length:] == -100).all() and (batch["decoder_input_ids"][row, length:] == 0).all()
        assert batch["decoder_input_ids"][row, :length].tolist() == [2, *targets[row][:-1]]
        assert (targets[row][-1], sources[row][0], sources[row][-1]) == (3, 2, 3)
    assert batch["source"] == pairs.sources and batch["reference"] == pairs.targets
    other = PairSplit(split.pairs.take(np.array([1, 0])), TOKENIZER)
    assert split.fingerprint() == PairSplit(pairs, TOKENIZER).fingerprint() != other.fingerprint()


def test_pairs_longer_than_the_positions_are_dropped_cut_or_refused(tmp_path: Path) -> None:
    pairs, long = sentences(9), ("red " * 60, "rote " * 30)
    write_pairs(tmp_path, {"train": [*pairs, long], "val": [("one", "eins"), ("two", "zwei")]})
    section = TranslationConfig(data=TranslationDataConfig(source=str(tmp_path)), source="en", target="de")
    host = {"max_length": 50, "decoder": {"max_length": 40}}
    splits, notes = encode_pairs(open_pairs(section), TOKENIZER, section, host)
    sizes = PairSplit(open_pairs(section).train, TOKENIZER).lengths[-1]
    assert len(splits["train"]) == 9 and splits["train"].pairs.sources == [source for source, _ in pairs]
    assert notes == [
        "1 training pair is not used, because of more than 50 source and 40 target tokens, such as "
        f"{tmp_path}: train.{{en,de}}, line 10 ({sizes[0]} and {sizes[1]} tokens)."
    ]
    cut = TranslationConfig(data=section.data, source="en", target="de", long="cut", batch_tokens=30)
    splits, notes = encode_pairs(open_pairs(cut), TOKENIZER, cut, host)
    assert len(splits["train"]) == 10 and splits["train"].lengths.max() == 30
    assert splits["train"].sources[9][-1] == splits["train"].targets[9][-1] == 3
    assert notes == ["1 training pair is cut to 30 tokens (task.long=cut)."]
    assert len(encode_pairs(open_pairs(section), TOKENIZER, section, {})[0]["train"]) == 10
    write_pairs(tmp_path, {"val": [("one", "eins"), long]})
    with pytest.raises(DataError, match=r"val.\{en,de\}, line 2: the sentences have .*--set task.long=cut"):
        encode_pairs(open_pairs(section), TOKENIZER, section, host)
    with pytest.raises(DataError, match="the host takes 3 tokens"):
        encode_pairs(open_pairs(section), TOKENIZER, section, {"max_length": 3, "decoder": {"max_length": 3}})
