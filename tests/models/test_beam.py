"""Beam search: against all sequences, by hand, and against transformers."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from attngraft.models.beam import beam_search

END, PAD = 2, 9


class Tree:
    """A language model of the tokens 0, 1 and END, with random logits after each prefix; sentences differ by their seed."""

    def __init__(self, *seeds: int) -> None:
        self.seeds = torch.tensor(seeds)

    def log_probs(self, sentence: int, prefix: tuple[int, ...]) -> list[float]:
        generator = torch.Generator().manual_seed(int(self.seeds[sentence]) * 1000 + hash(prefix) % 997)
        return (2 * torch.randn(3, generator=generator)).log_softmax(0).tolist()

    def step(self, tokens: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Any]:
        if state is None:
            rows = len(tokens) // len(self.seeds)
            state = (torch.arange(len(self.seeds)).repeat_interleave(rows), tokens[:, 1:])
            written = state[1]
        else:
            written = torch.cat([state[1], tokens], dim=1)
        logits = [
            self.log_probs(int(sentence), tuple(row)) for sentence, row in zip(state[0], written.tolist(), strict=True)
        ]
        return torch.tensor(logits), (state[0], written)

    def search(self, **options: Any) -> tuple[Tensor, Tensor]:
        start = torch.zeros(len(self.seeds), 1, dtype=torch.long)
        select = lambda state, rows, sentences: (state[0][rows], state[1][rows])  # noqa: E731
        return beam_search(self.step, select, None, start=start, end=END, pad=PAD, **options)

    def total(self, sentence: int, tokens: tuple[int, ...]) -> float:
        return sum(self.log_probs(sentence, tokens[:i])[token] for i, token in enumerate(tokens))

    def all_sequences(self, limit: int) -> list[tuple[int, ...]]:
        """All complete sequences: those that end, and those of the largest length."""
        found = [(*each, END) for n in range(limit) for each in itertools.product((0, 1), repeat=n)]
        return found + list(itertools.product((0, 1), repeat=limit))


def tokens_of(row: Tensor) -> tuple[int, ...]:
    return tuple(token for token in row[1:].tolist() if token != PAD)


@pytest.mark.parametrize("early_stopping", [False, True])
@pytest.mark.parametrize("penalty", [0.0, 0.7, 1.5, -1.0])
def test_a_wide_beam_finds_the_best_of_all_sequences(penalty: float, early_stopping: bool) -> None:
    """A beam of 5 holds every prefix of up to two tokens."""
    tree = Tree(*range(30))
    found, scores = tree.search(num_beams=5, max_new_tokens=3, length_penalty=penalty, early_stopping=early_stopping)
    for sentence, (row, score) in enumerate(zip(found, scores.tolist(), strict=True)):
        ranked = {each: tree.total(sentence, each) / len(each) ** penalty for each in tree.all_sequences(3)}
        best = max(ranked, key=ranked.__getitem__)
        assert score == pytest.approx(ranked[tokens_of(row)], abs=1e-5)
        if not early_stopping:  # which may stop before a longer sequence with a better score
            assert tokens_of(row) == best


def test_one_beam_is_greedy() -> None:
    tree = Tree(*range(20))
    found, scores = tree.search(max_new_tokens=6)
    for sentence, (row, score) in enumerate(zip(found, scores.tolist(), strict=True)):
        expected: list[int] = []
        while len(expected) < 6 and END not in expected:
            values = tree.log_probs(sentence, tuple(expected))
            expected.append(values.index(max(values)))
        assert tokens_of(row) == tuple(expected)
        assert score == pytest.approx(tree.total(sentence, tuple(expected)) / len(expected), abs=1e-5)


@pytest.mark.parametrize("beams", [1, 2, 4])
def test_a_batch_is_one_sentence_at_a_time(beams: int) -> None:
    options: dict[str, Any] = {"num_beams": beams, "max_new_tokens": 7, "early_stopping": True}
    together, scores = Tree(*range(12)).search(**options)
    for index in range(12):
        alone, score = Tree(index).search(**options)
        assert tokens_of(alone[0]) == tokens_of(together[index])
        assert score[0] == scores[index]


def by_hand(probabilities: dict[tuple[int, ...], list[float]], **options: Any) -> tuple[tuple[int, ...], float]:
    """Search with these probabilities of 0, 1 and END after each prefix; END follows all other prefixes."""

    class Written(Tree):
        def log_probs(self, sentence: int, prefix: tuple[int, ...]) -> list[float]:
            return [math.log(each) if each else -1e9 for each in probabilities.get(prefix, [0, 0, 1])]

    found, score = Written(0).search(**options)
    return tokens_of(found[0]), float(score[0])


def test_scores_by_hand() -> None:
    """Of (0, END) with 0.6 x 0.5 and (1, 1, END) with 0.4 x 0.9, the length penalty decides."""
    model = {(): [0.6, 0.4, 0.0], (0,): [0.25, 0.25, 0.5], (1,): [0.1, 0.9, 0.0]}
    for penalty, expected in ((0.0, (1, 1, END)), (-2.0, (0, END))):
        found, score = by_hand(model, num_beams=2, max_new_tokens=4, length_penalty=penalty)
        assert found == expected
        total = math.log(0.36) if len(expected) == 3 else math.log(0.3)
        assert score == pytest.approx(total / len(expected) ** penalty, abs=1e-6)
    assert by_hand(model, num_beams=1, max_new_tokens=4)[0] == (0, END)


def test_complete_sequences_are_frozen() -> None:
    """After END nothing is added, whatever the model would write next; the score is that of the tokens up to END."""
    model = {(): [0.3, 0.0, 0.7], (END,): [1.0, 0.0, 0.0], (0,): [0.5, 0.5, 0.0]}
    for early_stopping in (False, True):
        found, score = by_hand(model, num_beams=2, max_new_tokens=5, early_stopping=early_stopping)
        assert found == (END,)
        assert score == pytest.approx(math.log(0.7), abs=1e-6)


def test_without_an_end_the_best_sequence_is_scored_at_the_limit() -> None:
    model = {(): [0.4, 0.6, 0.0], (0,): [1.0, 0.0, 0.0], (1,): [0.5, 0.5, 0.0], (0, 0): [0.5, 0.5, 0.0]}
    found, score = by_hand(model, num_beams=2, max_new_tokens=2, length_penalty=0.7)
    assert found == (0, 0)
    assert score == pytest.approx(math.log(0.4) / 2**0.7, abs=1e-6)


@pytest.mark.parametrize(("beams", "penalty"), [(1, 1.0), (3, 1.0), (5, 0.7), (4, -0.5)])
def test_it_finds_what_transformers_finds(beams: int, penalty: float) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 9, "d_model": 8, "max_position_embeddings": 16, "pad_token_id": 8, "eos_token_id": 1}
    sides = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in SIDE.items()}
    config = transformers.MarianConfig(
        **sizes, **sides, decoder_start_token_id=8, forced_eos_token_id=None, init_std=0.7
    )
    model = transformers.MarianMTModel(config).eval()
    source = torch.randint(2, 8, (16, 5))

    def step(tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        sources, written = (source, tokens) if state is None else (state[0], torch.cat([state[1], tokens], dim=1))
        repeated = sources.repeat_interleave(beams, dim=0)
        return model(input_ids=repeated, decoder_input_ids=written).logits[:, -1], (sources, written)

    for early, theirs in ((True, True), (False, "never")):
        options: dict[str, Any] = {"num_beams": beams, "max_new_tokens": 8, "length_penalty": penalty}
        with torch.no_grad():
            expected = model.generate(source, **options, early_stopping=theirs, do_sample=False)
        found, _ = beam_search(
            step,
            lambda state, rows, sentences: (state[0][sentences], state[1][rows]),
            None,
            start=torch.full((len(source), 1), 8),
            end=1,
            pad=8,
            early_stopping=early,
            **options,
        )
        assert found.tolist() == expected.tolist()
        assert (found == 1).any()


SIDE = {"layers": 1, "attention_heads": 2, "ffn_dim": 16}
