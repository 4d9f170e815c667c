"""Tokenizers of sentence pairs: trained, and of tiny hosts of transformers."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attngraft.errors import ConfigError, DataError
from attngraft.strict import FieldError
from attngraft.tasks.text.config import TokenizerConfig
from attngraft.tasks.translation.config import TranslationConfig, TranslationDataConfig
from attngraft.tasks.translation.source import Pairs, open_pairs
from attngraft.tasks.translation.tokenizer import new_tokenizer, read_tokenizer
from attngraft.tasks.translation.trained import train_bpe, train_words
from tests.tasks.translation.pairs import sentences

pytest.importorskip("tokenizers", reason="needs the extra text")
PAIRS = sentences(60)
TEXTS = [text for pair in PAIRS for text in pair]
TRAINED = train_bpe(TEXTS, vocab_size=340)
TRAIN = Pairs(
    names=[source for source, _ in PAIRS],
    sources=[source for source, _ in PAIRS],
    targets=[target for _, target in PAIRS],
    places=[source for source, _ in PAIRS],
)


def config(**fields: Any) -> TranslationConfig:
    return TranslationConfig(data=TranslationDataConfig(source="x"), **{"source": "en", "target": "de", **fields})


@pytest.mark.parametrize("size", [300, 340, 600])
def test_training_is_repeatable_and_the_files_say_everything(tmp_path: Path, size: int) -> None:
    made = train_bpe(TEXTS, vocab_size=size)
    assert all(train_bpe(TEXTS, vocab_size=size).digest == made.digest for _ in range(5))
    assert made.vocab_size <= size and (made.pad, made.start, made.end, made.unknown) == (0, 2, 3, None)
    made.save(tmp_path)
    again = read_tokenizer(tmp_path)
    assert again.digest == made.digest and again.ids == made.ids
    assert all(map(np.array_equal, again.encode_source(TEXTS), made.encode_source(TEXTS)))
    assert made.encode_source(["one"])[0][[0, -1]].tolist() == [2, 3]
    assert made.encode_target(["one"])[0].tolist() == made.encode_source(["one"])[0][1:].tolist()


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(exclude_characters="▁", exclude_categories=["Cs"]), min_size=1))
def test_all_text_is_encoded_without_loss(text: str) -> None:
    text = unicodedata.normalize("NFC", text).strip()
    assert TRAINED.decode(TRAINED.encode_target([text])[0]) == text


@pytest.mark.parametrize("text", ["<s> </s> <pad> <unk>", "<0x41>", "T-Shirt, (1.5)  ...", "日本語 🎉", "a\tb\u2028c"])
def test_special_tokens_and_marks_in_a_text_are_text(text: str) -> None:
    ids = TRAINED.encode_source([text])[0]
    assert TRAINED.decode([2, *ids, 0, 0]) == text and not {*ids[1:-1].tolist()} & {0, 1, 2, 3}


def test_words_in_fewer_than_three_places_are_unknown() -> None:
    names = ["x"] * 4
    words = ["The T-shirt", "the shirt.", "THE shirt .", "t rare"]
    made = train_words(Pairs(names=names, sources=words, targets=["Das é"] * 4, places=names))
    assert made.vocab_size == 4 + len({"the", "shirt", "das", "é"})
    assert made.decode(made.encode_target(["The rare shirt, das e\u0301!"])[0]) == "the <unk> shirt <unk> das é <unk>"
    assert made.unknown == 1 and made.ids.kind == "words"


def test_the_specials_have_the_ids_of_the_host() -> None:
    host = {"vocab_size": 500, "tokenizer": None, "pad": 1, "decoder": {"start": 2, "end": 2}}
    made = new_tokenizer(config(), TRAIN, host)
    assert (made.pad, made.start, made.end) == (1, 2, 2) and made.vocab_size <= 500
    assert made.encode_target(["one"])[0][-1] == 2
    assert made.decode([2, *made.encode_source(["One two."])[0], 1]) == "One two."
    shared_start = new_tokenizer(config(), TRAIN, {**host, "pad": 0, "decoder": {"start": 0, "end": 1}})
    assert (shared_start.pad, shared_start.start, shared_start.end) == (0, 0, 1)
    assert shared_start.encode_source(["one"])[0][0] not in (0, 1)
    any_size = {"vocab_size": None, "pad": 0, "decoder": {"start": 2, "end": 3}}
    assert new_tokenizer(config(vocab_size=400), TRAIN, any_size).vocab_size <= 400


@pytest.mark.parametrize(
    ("fields", "host", "message"),
    [
        ({"tokens": "host"}, {"vocab_size": 500, "tokenizer": None}, "host's folder has no tokenizer.*task.tokens=bpe"),
        ({"tokens": "bpe"}, {"vocab_size": 200}, "the host has 200 embeddings, but at least 300"),
        ({"tokens": "words"}, {"vocab_size": 20}, r"has \d+ ids, but the host has 20 embeddings"),
        ({"tokens": "host"}, {"vocab_size": 500, "tokenizer": "/nowhere"}, "cannot read a tokenizer in /nowhere"),
    ],
)
def test_hosts_that_do_not_fit_are_refused(fields: dict[str, Any], host: dict[str, Any], message: str) -> None:
    if host.get("tokenizer"):
        pytest.importorskip("transformers", reason="needs the extra hf")
    with pytest.raises(ConfigError, match=message):
        new_tokenizer(config(**fields), TRAIN, host)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    TRAINED.save(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read as a tokenizer"):
        read_tokenizer(tmp_path)


def test_special_ids_are_those_of_the_special_tokens(tmp_path: Path) -> None:
    TRAINED.save(tmp_path)
    file = tmp_path / "translation.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"end": TRAINED.pad}))
    with pytest.raises(DataError, match="the ids of padding and end are not those of <pad> and </s>"):
        read_tokenizer(tmp_path)


def _unigram() -> list[tuple[str, float]]:
    chars = sorted({char for text in TEXTS for char in text if char != " "})
    return [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0), *((char, -3.0) for char in chars)]


def host_tokenizer(family: str) -> Any:
    """A tiny tokenizer of a family of models."""
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    chars = sorted({char for text in TEXTS for char in text if char != " "})
    if family == "t5":
        return transformers.T5Tokenizer(vocab=_unigram(), extra_ids=0)
    if family == "bart":
        names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
        byte_level = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 512))]
        return transformers.BartTokenizer(vocab={name: i for i, name in enumerate([*names, *byte_level])}, merges=[])
    names = ["<s>", "<pad>", "</s>", "<unk>", "▁", *chars]
    return transformers.NllbTokenizer(
        vocab={name: i for i, name in enumerate(names)},
        merges=[],
        extra_special_tokens=["eng_Latn", "deu_Latn", "fra_Latn"],
    )


HOSTS: dict[str, dict[str, Any]] = {
    "t5": {"start": 0, "end": 1, "forced": None},
    "bart": {"start": 2, "end": 2, "forced": 0},
    "nllb": {"start": 2, "end": 2, "forced": None},
}


@pytest.mark.parametrize("family", HOSTS)
def test_the_tokenizer_of_a_host_gives_the_ids_of_transformers(tmp_path: Path, family: str) -> None:
    theirs = host_tokenizer(family)
    theirs.save_pretrained(tmp_path / "host")
    prefix = "translate English to German: "
    (tmp_path / "host" / "config.json").write_text(
        json.dumps({"model_type": "t5", "task_specific_params": {"translation_en_to_de": {"prefix": prefix}}})
        if family == "t5"
        else json.dumps({"model_type": {"nllb": "m2m_100"}.get(family, family)})
    )
    host = {"vocab_size": len(theirs), "tokenizer": str(tmp_path / "host"), "pad": None, "decoder": HOSTS[family]}
    languages = {"source": "eng_Latn", "target": "deu_Latn"} if family == "nllb" else {}
    ours = new_tokenizer(config(**languages), TRAIN, host)
    if family == "nllb":
        theirs.src_lang, theirs.tgt_lang = "eng_Latn", "deu_Latn"
        assert ours.forced == theirs.convert_tokens_to_ids("deu_Latn") == ours.encode_target(["Haus"])[0][0]
        assert ours.encode_source(["house"])[0][0] == theirs.convert_tokens_to_ids("eng_Latn")
    sources = [f"{prefix if family == 't5' else ''}{text}" for text in TRAIN.sources]
    assert [ids.tolist() for ids in ours.encode_source(TRAIN.sources)] == theirs(sources)["input_ids"]
    expected = theirs(text_target=list(TRAIN.targets))["input_ids"]
    assert [ids.tolist() for ids in ours.encode_target(TRAIN.targets)] == expected
    assert ours.decode([ours.start, *expected[0], ours.pad]) == TRAIN.targets[0]
    assert (ours.pad, ours.start, ours.end) == (theirs.pad_token_id, HOSTS[family]["start"], theirs.eos_token_id)
    (tmp_path / "saved").mkdir()
    ours.save(tmp_path / "saved")
    again = read_tokenizer(tmp_path / "saved")
    assert again.digest == ours.digest and again.ids == ours.ids
    assert all(map(np.array_equal, again.encode_target(TRAIN.targets), ours.encode_target(TRAIN.targets)))
    with pytest.raises(ConfigError, match=rf"has {len(theirs)} ids, but the host has {len(theirs) - 1} embeddings"):
        new_tokenizer(config(**languages), TRAIN, {**host, "vocab_size": len(theirs) - 1})


@pytest.mark.parametrize(
    ("languages", "message"),
    [
        ({"target": "de"}, r"no token for 'de' \(did you mean deu_Latn\?\); use .* deu_Latn, eng_Latn, fra_Latn"),
        ({"target": "fra_Latm"}, r"did you mean fra_Latn\?"),
        ({"target": None}, "task.target: the language is not set, but .*task.data.target_column"),
    ],
)
def test_a_language_without_a_token_is_refused(tmp_path: Path, languages: dict[str, Any], message: str) -> None:
    host_tokenizer("nllb").save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "m2m_100"}))
    host = {"vocab_size": 500, "tokenizer": str(tmp_path), "decoder": HOSTS["nllb"]}
    with pytest.raises(ConfigError, match=message):
        new_tokenizer(config(**{"source": "eng_Latn", **languages}), TRAIN, host)


@pytest.mark.slow
def test_multi30k_is_encoded_without_loss_and_has_the_words_of_the_paper(shared: Path) -> None:
    data = TranslationDataConfig(source=str(shared / "data/multi30k"))
    train = open_pairs(TranslationConfig(data=data, source="en", target="de")).train
    texts = [*train.sources, *train.targets]
    made = train_bpe(texts, vocab_size=8000)
    assert len(texts) == 58_000 and made.vocab_size == 8000
    some = texts[::10]
    assert [made.decode(ids) for ids in made.encode_target(some)] == some
    assert train_words(train).vocab_size == 9483


@pytest.mark.parametrize("size", [299, 10**12])
def test_a_vocabulary_that_cannot_be_trained(size: int) -> None:
    with pytest.raises(FieldError, match="vocab_size must be from 300 to 1,000,000"):
        config(vocab_size=size)
    with pytest.raises(FieldError, match="vocab_size must be from 32 to 1,000,000"):
        TokenizerConfig(vocab_size=10**12)
