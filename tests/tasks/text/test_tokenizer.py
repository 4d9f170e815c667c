"""Tokenizers: trained on the training texts, or of a host's folder; padding and saving."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from attngraft.errors import ConfigError, DataError
from attngraft.tasks.text import tokenizer
from attngraft.tasks.text.tokenizer import FILE, Tokenizer, folder_tokenizer, read_tokenizer, train_tokenizer
from tests.tasks.text.toys import sentences

package = pytest.importorskip("tokenizers", reason="needs the extra hf")
TEXTS = [text for text, _ in sentences(30)]


@pytest.mark.parametrize("size", [40, 90, 300])
def test_training_is_repeatable_and_the_file_says_everything(tmp_path: Path, size: int) -> None:
    made = train_tokenizer(TEXTS, vocab_size=size, pad=1, max_length=9)
    assert all(train_tokenizer(TEXTS, vocab_size=size, pad=1, max_length=9).text == made.text for _ in range(5))
    upper = [text.upper() for text in TEXTS]
    assert train_tokenizer(upper, vocab_size=size, pad=1, max_length=9).digest == made.digest
    assert train_tokenizer(upper, vocab_size=size, pad=1, max_length=9, lower_case=False).digest != made.digest
    assert made.vocab_size <= size and made.pad == 1
    made.save(tmp_path / FILE)
    again = read_tokenizer(tmp_path / FILE)
    ids, cut = again.encode([" ".join(TEXTS[:4]), "Dull."])
    assert (again.digest, again.pad, again.max_length) == (made.digest, 1, 9)
    assert cut == 1 and len(ids[0]) == 9 and len(ids[1]) < 9
    assert again.cut_at(9) is again and len(again.cut_at(4).encode(["Dull and noisy."])[0][0]) == 4
    batch = again.batch(ids)
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (2, 9)
    assert np.array_equal(batch["input_ids"][1, : len(ids[1])], ids[1])
    assert (batch["input_ids"][1, len(ids[1]) :] == 1).all()
    assert batch["attention_mask"].sum(1).tolist() == [9, len(ids[1])]


def test_long_words_are_divided_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take quadratic time."""
    expected = train_tokenizer(["abc abc abc a", "abc"], vocab_size=40, pad=0, max_length=None)
    monkeypatch.setattr(tokenizer, "_LONGEST_WORD", 3)
    assert train_tokenizer(["abcabcabca", "abc"], vocab_size=40, pad=0, max_length=None).digest == expected.digest


def test_the_tokenizer_of_a_folder_gives_the_ids_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the extra hf")
    trained = train_tokenizer(TEXTS, vocab_size=90, pad=0, max_length=None)
    trained.save(tmp_path / "raw.json")
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "raw.json"), pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]"
    )
    theirs.save_pretrained(tmp_path / "host")
    ours = folder_tokenizer(tmp_path / "host", pad=None, max_length=12)
    expected = theirs(TEXTS[:3], truncation=True, max_length=12, padding=True)
    batch = ours.batch(ours.encode(TEXTS[:3])[0])
    assert batch["input_ids"].tolist() == expected["input_ids"]
    assert batch["attention_mask"].tolist() == expected["attention_mask"]
    settings = json.loads((tmp_path / "host" / "tokenizer_config.json").read_text())
    (tmp_path / "host" / "tokenizer_config.json").write_text(json.dumps({**settings, "truncation_side": "left"}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "host")
    left = folder_tokenizer(tmp_path / "host", pad=None, max_length=12)
    for each in (left, folder_tokenizer(tmp_path / "host", pad=None, max_length=14).cut_at(12)):
        expected = theirs([TEXTS[0] * 3], truncation=True, max_length=12)["input_ids"]
        assert [ids.tolist() for ids in each.encode([TEXTS[0] * 3])[0]] == expected
    with pytest.raises(ConfigError, match="cannot read a tokenizer in .*none"):
        folder_tokenizer(tmp_path / "none", pad=None, max_length=None)


@pytest.mark.parametrize("kind", ["replacements", "templates", "prefix"])
def test_a_tokenizer_that_multiplies_texts_is_refused(tmp_path: Path, kind: str) -> None:
    normalizers, templates = package.normalizers, package.processors
    honest = [normalizers.Prepend("_"), normalizers.Replace(" ", "_"), normalizers.Replace("...", ". . .")]
    text = train_tokenizer(["some words"], vocab_size=40, pad=0, max_length=8).text
    inner = package.Tokenizer.from_str(text)
    inner.normalizer = normalizers.Sequence(honest)
    assert Tokenizer(inner.to_str()).encode(["some words"])[0][0].any()
    if kind == "templates":
        many = templates.TemplateProcessing(single="$A " * 40 + "[SEP]", pair="$A $B", special_tokens=[("[SEP]", 3)])
        inner.post_processor = templates.Sequence([many, many])
    elif kind == "prefix":
        inner.normalizer = normalizers.Prepend("x" * 2000)
    else:
        inner.normalizer = normalizers.Sequence(
            [normalizers.Replace("a", "b" * 100), normalizers.Replace("b", "c" * 20)]
        )
    (tmp_path / "tokenizer.json").write_text(inner.to_str())
    with pytest.raises(DataError, match=r"tokenizer\.json: .*\(its replacements make a text up to .* times as long\)"):
        read_tokenizer(tmp_path / "tokenizer.json")


def test_odd_files_of_a_folder_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'attngraft[hf]'")
    train_tokenizer(TEXTS, vocab_size=40, pad=0, max_length=8).save(tmp_path / FILE)
    transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / FILE), pad_token="[PAD]").save_pretrained(
        tmp_path
    )
    assert folder_tokenizer(tmp_path, pad=0, max_length=8).vocab_size
    settings = json.loads((tmp_path / FILE).read_text())
    settings["added_tokens"][0]["\x1b[31m"] = 1
    (tmp_path / FILE).write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match=r"tokenizer\.json: the key '\\x1b\[31m' has a control character"):
        folder_tokenizer(tmp_path, pad=0, max_length=8)
    assert "\x1b" not in "".join(capfd.readouterr())
    del settings["added_tokens"][0]["\x1b[31m"]
    settings["model"] |= {"vocab": {}, "merges": []}
    (tmp_path / FILE).write_text(json.dumps(settings))
    with pytest.raises(ConfigError, match="its vocabulary is empty"):
        folder_tokenizer(tmp_path, pad=0, max_length=8)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{")
    with pytest.raises(DataError, match=r"tokenizer\.json: cannot be read as a tokenizer"):
        read_tokenizer(tmp_path / FILE)


def test_more_tokens_than_the_model_has_are_refused(tmp_path: Path) -> None:
    train_tokenizer(TEXTS, vocab_size=40, pad=0, max_length=9).save(tmp_path / FILE)
    assert read_tokenizer(tmp_path / FILE, of_model={"vocab_size": 40, "max_length": 9}).vocab_size == 40
    with pytest.raises(
        DataError, match=r"tokenizer\.json: .*\(it has 40 tokens, but the model has 39\); restore the file"
    ):
        read_tokenizer(tmp_path / FILE, of_model={"vocab_size": 39})
    with pytest.raises(DataError, match="it cuts texts at 9 tokens, but the model at 24"):
        read_tokenizer(tmp_path / FILE, of_model={"max_length": 24})


def test_a_panic_of_the_package_is_an_error_of_the_tokenizer(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = json.loads(train_tokenizer(TEXTS, vocab_size=40, pad=0, max_length=9).text)
    endless = {"type": "Replace", "pattern": {"Regex": "(a|a|aa)+$"}, "content": ""}
    (tmp_path / FILE).write_text(
        json.dumps(made | {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}})
    )
    with pytest.raises(DataError, match=r"tokenizer\.json: cannot be read as a tokenizer"):
        read_tokenizer(tmp_path / FILE)
    (tmp_path / FILE).write_text(json.dumps(made | {"normalizer": endless}))
    with pytest.raises(DataError, match="the tokenizer cannot encode a text .*restore the tokenizer"):
        read_tokenizer(tmp_path / FILE).encode([f"{'a' * 60}!"])
