"""Words of captions, their ids, and the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from attngraft.errors import DataError
from attngraft.tasks.captioning.vocabulary import BOS, EOS, FILE, PAD, UNK, build_vocabulary, read_vocabulary, words_of

CAPTIONS = ["A dog runs .", "The dog's t-shirt, a red one!", "a Dog"]


def test_words_are_lower_case_without_punctuation() -> None:
    assert words_of("A dog\u2019s T-shirt -- (cafe\u0301) 'n' 2 ...") == [
        "a",
        "dog's",
        "t-shirt",
        "caf\u00e9",
        "n",
        "2",
    ]
    assert words_of(" . ") == []


def test_words_are_ordered_by_count_and_name() -> None:
    found = build_vocabulary(CAPTIONS, min_count=1)
    assert found.words[4:] == ("a", "dog", "dog's", "one", "red", "runs", "t-shirt", "the")
    assert build_vocabulary(CAPTIONS, min_count=2).words == ("<unk>", "<pad>", "<bos>", "<eos>", "a", "dog")
    with pytest.raises(DataError, match=r"no word occurs 5 times in the captions.*min_count=1"):
        build_vocabulary(CAPTIONS, min_count=5)
    with pytest.raises(DataError, match=r"the captions have no words, which are letters and digits; add captions"):
        build_vocabulary(["!", "..."], min_count=1)


def test_ids_are_those_of_the_words() -> None:
    found = build_vocabulary(CAPTIONS, min_count=2)
    assert found.encode("A big dog.").tolist() == [BOS, 4, UNK, 5, EOS]
    assert found.encode("A big dog.", max_length=3).tolist() == [BOS, 4, UNK, 5]  # does not end there
    assert found.encode("A big dog.", max_length=4).tolist() == [BOS, 4, UNK, 5, EOS]
    assert found.decode([BOS, 4, UNK, 5, EOS, 4, PAD]) == "a <unk> dog" and found.decode([BOS, 4, PAD]) == "a"


def test_the_file_is_the_same_vocabulary(tmp_path: Path) -> None:
    found = build_vocabulary(CAPTIONS, min_count=1)
    found.save(tmp_path)
    again = read_vocabulary(tmp_path)
    assert (again.words, again.digest) == (found.words, found.digest)
    for content in (
        {},
        {"words": "a"},
        {"words": ["a", "a"]},
        {"words": ["<pad>"]},
        {"words": ["a b"]},
        {"words": [1]},
    ):
        (tmp_path / FILE).write_text(json.dumps(content))
        with pytest.raises(DataError, match=r"vocabulary.json: cannot be read as a vocabulary \(.*restore the file"):
            read_vocabulary(tmp_path)
