"""BLEU, ROUGE-L and CIDEr-D of captions are those of pycocoevalcap 1.2, whose numbers are stored here."""

from __future__ import annotations

import math
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from attngraft.tasks.captioning import metrics
from attngraft.tasks.captioning.cider import Frequencies, cider_d
from attngraft.tasks.captioning.metrics import longest_common_subsequence, measure, meteor, rouge_l, statistics
from tests.tasks.captioning.captions import flickr8k, random_captions, random_references

REFERENCES = [
    ["a dog runs on the grass", "the dog is running"],
    ["two men sit on a bench", "two men on a bench in a park", "men sitting"],
    ["a red car"],
    ["a child plays with a ball on the beach", "a child with a red ball", "a boy plays"],
]
CAPTIONS = ["a dog is running on the grass", "two men two men on a bench", "", "car"]
EXPECTED = {
    "cider": 1.5580509118090555,
    "bleu1": 0.6549846023750545,
    "bleu2": 0.6341861142499333,
    "bleu3": 0.5480853432737771,
    "bleu4": 0.4284561878674572,
    "rouge_l": 0.3900255754475704,
}
HUMAN = {
    "cider": 0.8485611771942856,
    "bleu1": 0.6216981132069607,
    "bleu2": 0.41426390541898855,
    "bleu3": 0.27568619077957396,
    "bleu4": 0.18223125213380656,
    "rouge_l": 0.4672510060819915,
}
ROTATED = {
    "cider": 0.8196557063773753,
    "bleu1": 0.6216981132069607,
    "bleu2": 0.404775687162549,
    "bleu3": 0.2616291196956073,
    "bleu4": 0.1706619827970194,
    "rouge_l": 0.4173864167508444,
}


def percent(values: dict[str, float]) -> dict[str, float]:
    return {name: 100 * value for name, value in values.items()}


def words(captions: list[str]) -> list[list[str]]:
    return [caption.split() for caption in captions]


def test_scores_of_written_captions() -> None:
    measured = measure(statistics(words(CAPTIONS), [words(each) for each in REFERENCES]))
    assert measured.values == pytest.approx(percent(EXPECTED), abs=1e-10)
    assert list(measured.values) == list(measured.statistics)


@pytest.mark.parametrize(("rotated", "expected"), [(False, HUMAN), (True, ROTATED)])
def test_scores_of_the_fifth_caption_of_flickr8k(shared: Path, rotated: bool, expected: dict[str, float]) -> None:
    """As it is, and with the first three words of every second caption at its end."""
    captions = flickr8k(shared, "test")
    fifth = [each[-1][3:] + each[-1][:3] if rotated and index % 2 else each[-1] for index, each in enumerate(captions)]
    measured = measure(statistics(fifth, [each[:-1] for each in captions]))
    assert measured.values == pytest.approx(percent(expected), abs=1e-10)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_resample_has_the_score_of_its_captions(name: str) -> None:
    captions, references = random_captions(30), random_references(30)
    frequencies = Frequencies.of(references)
    statistic = measure(statistics(captions, references, frequencies=frequencies)).statistics[name]
    order = np.random.default_rng(0).integers(30, size=30)
    counts = np.bincount(order, minlength=30)[None].astype(float)
    taken = [captions[i] for i in order], [references[i] for i in order]
    again = measure(statistics(*taken, frequencies=frequencies))
    assert statistic.value(counts)[0] == pytest.approx(again.values[name], abs=1e-10)
    assert statistic.take(order).point == pytest.approx(again.values[name], abs=1e-10)
    assert bool(statistic.held_fixed) == (name == "cider")


def test_captions_equal_to_a_reference_have_the_highest_scores() -> None:
    captions = [[f"{word}{image}" for word in "abcde"] for image in range(3)]
    measured = measure(statistics(captions, [[each] for each in captions]))
    assert measured.values == pytest.approx({"cider": 1000.0, **dict.fromkeys(list(EXPECTED)[1:], 100.0)}, abs=1e-7)


@pytest.mark.parametrize("caption", [[], ["dog"], ["cat"]])
def test_empty_captions_and_those_of_one_word(caption: list[str]) -> None:
    references = [[["a", "dog"], ["dog"]], [["two", "men"]]]
    measured = measure(statistics([caption, ["two", "men"]], references))
    assert all(math.isfinite(value) for value in measured.values.values())
    scores = cider_d([caption, caption], references)
    # the reference of one word alone has the length 0; it and the caption have no longer n-grams
    assert scores[0] == (pytest.approx(10 / 8 * (1 + math.exp(-1 / 72) / math.sqrt(2))) if caption == ["dog"] else 0)
    assert scores[1] == 0


def test_one_image_has_no_rare_ngrams() -> None:
    assert cider_d([["a", "dog"]], [[["a", "dog"]]]).tolist() == [0.0]


def test_document_frequencies_can_be_those_of_other_captions() -> None:
    frequencies = Frequencies.of([[["a", "dog"], ["a", "cat"]], [["a", "man"]], [["dogs"]]])
    assert frequencies.documents == 3
    assert frequencies.counts["a",] == 2
    (vectors, norms) = frequencies.weighted(["a", "bird", "a"])
    assert vectors[0] == pytest.approx({("a",): 2 * math.log(3 / 2), ("bird",): math.log(3)})
    assert norms[0] == pytest.approx(math.hypot(2 * math.log(3 / 2), math.log(3)))
    assert cider_d([["a", "dog"]], [[["a", "dog"]]], frequencies=frequencies)[0] == pytest.approx(5)


def test_common_subsequences_are_the_longest() -> None:
    def table(first: list[int], second: list[int]) -> int:
        lengths = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
        for i, one in enumerate(first):
            for j, other in enumerate(second):
                longest = max(lengths[i][j + 1], lengths[i + 1][j])
                lengths[i + 1][j + 1] = lengths[i][j] + 1 if one == other else longest
        return lengths[-1][-1]

    random = np.random.default_rng(0)
    for kinds in (1, 2, 5, 30):
        for _ in range(100):
            first, second = (random.integers(kinds, size=random.integers(100)).tolist() for _ in range(2))
            assert longest_common_subsequence(first, second) == table(first, second)


def test_long_captions_of_signs_are_compared_quickly() -> None:
    start = time.process_time()
    assert longest_common_subsequence("$" * 5000 + ".", "$.$" * 1666) == 3332
    assert time.process_time() - start < 1  # 4 s in a table


def test_precision_and_recall_of_rouge_are_of_different_references() -> None:
    references = [["a", "b", "c", "d"], ["a"]]  # precision 1/2 from the first, recall 1 from the second
    expected = 2.44 * 0.5 / (1 + 1.44 * 0.5)
    assert rouge_l([["a", "x", "b", "y"]], [references]) == pytest.approx([expected])
    assert rouge_l([["x"], [], []], [[["a"]], [["a"]], [[]]]).tolist() == [0, 0, 0]


def test_meteor_says_why_it_was_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert meteor([], []) == "METEOR: not computed (no Java)"

    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/java")
    monkeypatch.setattr(metrics.importlib, "import_module", missing)
    assert meteor([], []) == "METEOR: not computed (run pip install 'attngraft[caption-java]')"


class Program:
    """The program of METEOR as a package, with an answer of Java; without one, it answers once it is ended."""

    def __init__(self, answer: str | None) -> None:
        self.answer, self.ended, self.lock = answer, threading.Event(), threading.Lock()
        self.Meteor, self.meteor_p, self.kill = (lambda: self), self, self.ended.set

    def compute_score(self, truth: object, found: object) -> tuple[float, list[float]]:
        self.lock.acquire()  # and never released after an error
        if self.answer is None:
            assert self.ended.wait(10)
        return float(self.answer or ""), []


@pytest.mark.parametrize("answer", [None, "hello", "nan"])
def test_meteor_survives_its_program(monkeypatch: pytest.MonkeyPatch, answer: str | None) -> None:
    program = Program(answer)
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/bin/java")
    monkeypatch.setattr(metrics.importlib, "import_module", lambda name: program)
    monkeypatch.setattr(metrics, "_PATIENCE", 0.01)
    found = meteor([["a"]], [[["a"]]])
    assert isinstance(found, str) and found.startswith("METEOR: not computed (its Java program failed: ")
    assert not program.lock.locked()


@pytest.mark.slow
def test_meteor_of_the_fifth_caption_of_flickr8k(shared: Path) -> None:
    pytest.importorskip("pycocoevalcap", reason="needs the extra caption-java")
    if shutil.which("java") is None:
        pytest.skip("needs Java")
    captions = flickr8k(shared, "test")
    found = meteor([each[-1] for each in captions], [each[:-1] for each in captions])
    assert found == pytest.approx(25.132340070968634, abs=1e-4)
