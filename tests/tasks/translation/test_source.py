"""Pairs of sentences from files and tables, and data that are refused."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attngraft.cli import main
from attngraft.errors import AttngraftError, ConfigError, DataError
from attngraft.tasks.images.sources.splitting import save_split
from attngraft.tasks.images.sources.table import LabelTable, read_groups
from attngraft.tasks.translation import source as translation_source
from attngraft.tasks.translation.config import TranslationConfig, TranslationDataConfig
from attngraft.tasks.translation.files import read_lines
from attngraft.tasks.translation.source import PairSource, open_pairs
from tests.tasks.translation.pairs import sentences, write_pairs


def opened(
    source: Path, *, languages: tuple[str | None, str | None] = ("en", "de"), saved: Path | None = None, **data: Any
) -> PairSource:
    section = TranslationDataConfig(source=str(source), **data)
    return open_pairs(TranslationConfig(data=section, source=languages[0], target=languages[1]), saved_split=saved)


def listed(source: PairSource) -> list[tuple[str, str]]:
    return [pair for part in source.parts().values() for pair in zip(part.sources, part.targets, strict=True)]


def test_a_folder_has_a_pair_of_files_for_each_split(tmp_path: Path) -> None:
    pairs = sentences(12)
    write_pairs(tmp_path, {"train": pairs[:6], "val": pairs[6:9], "test_2016_flickr": pairs[9:]})
    (tmp_path / "README.md").write_text("no pair")
    found = opened(tmp_path)
    assert listed(found) == pairs and not found.drawn and not found.notes and not found.refusal
    assert {name: len(part) for name, part in found.parts().items()} == {"train": 6, "val": 3, "test": 3}
    assert found.columns == ("en", "de") and found.origin == "train.{en,de} and val.{en,de}"
    assert found.val.places[1] == f"{tmp_path}: val.{{en,de}}, line 2"
    back = opened(tmp_path, languages=("de", "en"))
    assert listed(back) == [(target, source) for source, target in pairs]
    named = opened(tmp_path, languages=("eng_Latn", "deu_Latn"), source_column="en", target_column="de")
    assert listed(named) == pairs
    write_pairs(tmp_path, {"test_2017": pairs[9:]})
    several = opened(tmp_path)
    assert several.test is None and "task.data.test_split=test_2016_flickr" in several.notes[0]
    assert len(opened(tmp_path, test_split="test_2017").parts()["test"]) == 3


def test_a_prefix_of_two_files_is_split_at_random_and_the_split_is_kept(tmp_path: Path) -> None:
    pairs = sentences(30)
    write_pairs(tmp_path, {"europarl": pairs})
    for language in ("en", "de"):
        plain = tmp_path / f"europarl.{language}"
        (tmp_path / f"europarl.{language}.gz").write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()
    for source in (tmp_path / "europarl", tmp_path):
        found = opened(source)
        assert sorted(listed(found)) == sorted(pairs)
        assert set(found.drawn) == {"train", "val"} and len(found.val) == 6
    save_split(tmp_path / "split.csv", found.drawn)
    write_pairs(tmp_path / "more", {"europarl": pairs[::-1]})
    again = opened(tmp_path / "more", saved=tmp_path / "split.csv")
    assert set(again.val.names) == set(found.val.names)
    given = opened(tmp_path / "more", split_file=str(tmp_path / "split.csv"))
    assert set(given.val.sources) == set(found.val.sources) and not given.drawn
    folds = [opened(tmp_path, folds=3, fold=fold).val.names for fold in range(3)]
    assert sorted(name for fold in folds for name in fold) == sorted([*found.train.names, *found.val.names])


TABLES: dict[str, Callable[[list[tuple[str, str]]], str]] = {
    "x.csv": lambda pairs: "en,de\n" + "".join(f'"{a}","{b}"\n' for a, b in pairs),
    "x.tsv": lambda pairs: "id\tSource\tTarget\n" + "".join(f"{i}\t{a}\t{b}\n" for i, (a, b) in enumerate(pairs)),
    "x.jsonl": lambda pairs: "".join(json.dumps({"src": a, "tgt": b}) + "\n" for a, b in pairs),
    "y.jsonl": lambda pairs: "".join(json.dumps({"translation": {"de": b, "en": a}}) + "\r\n" for a, b in pairs),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables(tmp_path: Path, name: str) -> None:
    pairs = sentences(10)
    (tmp_path / name).write_text(TABLES[name](pairs))
    found = opened(tmp_path / name)
    assert sorted(listed(found)) == sorted(pairs) and len(found.val) == 2


def test_parquet_with_a_column_of_splits(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow", reason="needs the extra data")
    import pyarrow.parquet

    pairs, split = sentences(6), ["train"] * 3 + ["val"] * 2 + ["test"]
    rows = [{"de": target, "en": source} for source, target in pairs]
    pyarrow.parquet.write_table(pa.table({"translation": rows, "split": split}), tmp_path / "x.parquet")
    found = opened(tmp_path / "x.parquet")
    assert listed(found) == pairs and (len(found.train), len(found.val)) == (3, 2)


def test_a_folder_has_a_table_for_each_split(tmp_path: Path) -> None:
    pairs = sentences(6)
    for name, rows in {"train.jsonl": pairs[:3], "val.csv": pairs[3:5], "test.tsv": pairs[5:]}.items():
        kind = "x.jsonl" if name.endswith("jsonl") else "x.csv"
        text = TABLES[kind](rows).replace("en,de", "src,tgt")
        (tmp_path / name).write_text(text.replace(",", "\t") if name.endswith("tsv") else text)
    assert listed(opened(tmp_path)) == pairs


def test_lines_end_with_a_newline_only_and_empty_pairs_are_dropped(tmp_path: Path) -> None:
    english = ["\ufeffWord", "", "a\u2028b", "  cafe\u0301 ", "x", "日本 语", "one", " \t", "last"]
    german = ["Wort", "fehlt", "a b", "Café", "", "Ελληνικά", "eins", "leer", "zuletzt"]
    (tmp_path / "train.en").write_bytes("\r\n".join(english).encode())
    (tmp_path / "train.de").write_text("".join(f"{line}\n" for line in german), newline="\n")
    write_pairs(tmp_path, {"val": [("a", "b")]})
    found = opened(tmp_path)
    kept = [("Word", "Wort"), ("a\u2028b", "a b"), ("café", "Café"), ("日本 语", "Ελληνικά"), ("one", "eins")]
    assert listed(found)[:-1] == [*kept, ("last", "zuletzt")]
    assert found.notes == (
        f"3 pairs with an empty sentence are not used ({tmp_path}: train.{{en,de}}, line 2, train.{{en,de}}, line 5, "
        "train.{en,de}, line 8).",
    )


def test_long_training_pairs_are_dropped_and_copies_are_refused(tmp_path: Path) -> None:
    pairs = sentences(20)
    write_pairs(tmp_path, {"train": [*pairs, ("word " * 1000, "Wort")], "val": pairs[:3]})
    found = opened(tmp_path, max_length=100)
    assert len(found.train) == 20
    assert found.notes[0] == "1 training pair of more than 100 words is not used (task.data.max_length)."
    assert found.notes[1] == "3 validation pairs are also in an earlier split."
    assert "3 of 3 validation pairs are copies of training pairs" in found.refusal
    assert not opened(tmp_path, check="off").refusal


def test_files_of_different_lengths_are_named(tmp_path: Path) -> None:
    write_pairs(tmp_path, {"train": sentences(4), "val": sentences(2)})
    (tmp_path / "val.de").write_text("eins\n")
    with pytest.raises(DataError) as error:
        opened(tmp_path)
    assert f"{tmp_path / 'val.en'} has 2 lines, but {tmp_path / 'val.de'} has 1;" in str(error.value)


def test_files_of_one_split_and_language(tmp_path: Path) -> None:
    write_pairs(tmp_path, {"train": sentences(4), "val": sentences(2), "test": sentences(1)})
    (tmp_path / "train.de.gz").write_bytes(gzip.compress(b"eins\n"))
    with pytest.raises(DataError, match=r"train\.de\.gz: train\.de has the same name; keep one of them"):
        opened(tmp_path)
    (tmp_path / "train.de.gz").unlink()
    (tmp_path / "train.de").unlink()
    with pytest.raises(DataError, match=r"train\.en: there is no train\.de; add it, or rename or remove the file"):
        opened(tmp_path)
    (tmp_path / "train.de").symlink_to("nowhere")
    with pytest.raises(DataError, match=r"train\.de: is not a regular file; remove it, or replace it"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("x.en", b"good\nGr\xfc\xdfe\n", "x.en: line 2: not UTF-8 text"),
        ("x.en", b"good\n\x89PNG\x00\x01", "x.en: line 2 has a zero byte"),
        ("x.en.gz", gzip.compress(b"one\ntwo\nthree\n" * 9000, mtime=0)[:-40], r"x.en.gz: damaged at line \d+"),
        ("x.en.gz", b"one\ntwo\n", "x.en.gz: damaged at line 1"),
        ("x.en.gz", gzip.compress(b"\n" * 2**24), "x.en.gz: 16,777,216 lines of 1 bytes on average are no sentences"),
        ("x.en.gz", gzip.compress(b"\n" * (2**24 + 1)), "x.en.gz: cannot be opened .*unpacks from"),
    ],
)
def test_damaged_files_are_named_with_their_line(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=message):
        read_lines(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a " * 60_000, "a sentence has 120,000 characters, more than 100,000; divide or remove it"),
        ("a " + "e\u0301\u0327" * 4000, "a word has 12,000 characters, more than 10,000; divide or remove it"),
    ],
)
def test_sentences_and_words_that_are_too_long_are_named_with_their_line(
    tmp_path: Path, text: str, message: str
) -> None:
    pairs = sentences(12)
    write_pairs(tmp_path, {"train": pairs, "val": [*sentences(2, seed=2), (text, "lang")]})
    with pytest.raises(DataError, match=rf"val\.{{en,de}}, line 3, en: {message}$"):
        opened(tmp_path)


def test_a_long_sentence_without_spaces_is_read(tmp_path: Path) -> None:
    write_pairs(tmp_path, {"train": [*sentences(12), ("\u4e2d" * 9_000, "lang")], "val": sentences(4, seed=2)})
    assert len(opened(tmp_path).train) == 13


@pytest.mark.parametrize(
    ("languages", "data", "kind", "message"),
    [
        ((None, None), {}, ConfigError, "use --set task.source=en --set task.target=de, or the other way around"),
        (("en", None), {}, ConfigError, "use --set task.source=en --set task.target=de, or the other way around"),
        (("en", "dee"), {}, DataError, r"no files that end in .en and .dee \(did you mean de\?\); available: de, en"),
        (("en", "de"), {"test_split": "x"}, DataError, "no split 'x'"),
        (("en", "de"), {"train_split": "test"}, DataError, "available: train, val"),
    ],
)
def test_the_direction_must_be_set(
    tmp_path: Path, languages: Any, data: dict[str, Any], kind: type[AttngraftError], message: str
) -> None:
    write_pairs(tmp_path, {"train": sentences(4), "val": sentences(2)})
    with pytest.raises(kind, match=message):
        opened(tmp_path, languages=languages, **data)


@pytest.mark.parametrize(
    ("name", "text", "languages", "message"),
    [
        ("x.csv", "en,de\na,b\n", (None, None), "use --set task.source=en --set task.target=de"),
        (
            "x.csv",
            "en,fr,note\na,b,c\n",
            ("en", "de"),
            "cannot find the column of target sentences .*available: en, fr",
        ),
        ("x.csv", "en,de\n,b\n", ("en", "de"), "no pairs for training"),
        ("x.csv", "en,de\na,b\n", ("en", "de"), "no pairs for validation"),
        ("x.jsonl", '{"en": "a", "de": "b"}\nnothing\n', ("en", "de"), "line 2: not JSON"),
        ("x.jsonl", '{"en": "a", "de": "b"}\n[1]\n', ("en", "de"), "line 2: not a JSON object"),
        ("x.tsv", 'en\tde\n"a" b\tc\n', ("en", "de"), "line 2: cannot be read as a table"),
        ("x.txt", "a\n", ("en", "de"), "not a table; give a folder with train.en and train.de"),
        ("train.en", "a\n", ("en", "de"), "not a table; give a folder with train.en and train.de"),
    ],
)
def test_unusable_tables(tmp_path: Path, name: str, text: str, languages: Any, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(AttngraftError, match=message):
        opened(tmp_path / name, languages=languages)


def test_missing_sources(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nope: no such file, folder or prefix of two files; give"):
        opened(tmp_path / "nope")
    with pytest.raises(DataError, match="no pair of files; give"):
        opened(tmp_path)
    write_pairs(tmp_path, {"one": sentences(2), "two": sentences(2)})
    with pytest.raises(DataError, match="no train.en and train.de; name the training files .* available: one, two"):
        opened(tmp_path)
    write_pairs(tmp_path, {"train": sentences(2)})
    with pytest.raises(DataError, match="no validation split .*task.data.val_fraction=0.2"):
        opened(tmp_path)


def test_data_check_reports_pairs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_pairs(tmp_path / "own", {"train": [*sentences(9), ("one", "")]})
    direction = ["--set", "task.source=en", "--set", "task.target=de"]

    def check(*options: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as stop:
            main(["data", "check", str(tmp_path / "own"), *options])
        return int(stop.value.code or 0), *capsys.readouterr()

    code, out, _ = check(*direction, "--save-split", str(tmp_path / "split.csv"))
    assert code == 0 and "7 train pairs, 2 val pairs" in out and "1 pair with an empty sentence is not used" in out
    assert "--recipe tiny-translation --set task.source=en --set task.target=de --host" in out
    assert len((tmp_path / "split.csv").read_text().splitlines()) == 10
    details = json.loads(check(*direction, "--json")[1])
    assert details["columns"] == ["en", "de"] and details["sizes"] == {"train": 7, "val": 2}
    assert details["words"]["train"]["source"]["longest"] <= 8
    code, _, err = check()
    assert code == 2 and "use --set task.source=en --set task.target=de" in err
    write_pairs(tmp_path / "own", {"train": sentences(20), "val": sentences(20)})
    code, out, _ = check(*direction)
    assert code == 2 and "Training would be refused: " in out and "20 of 20 validation pairs are copies" in out


def test_pairs_of_equal_sentences_are_noted(tmp_path: Path) -> None:
    pairs = sentences(12)
    write_pairs(tmp_path, {"train": [(f"my {source}", f"my {source}") for source, _ in pairs[:4]], "val": pairs[4:]})
    assert "4 of 12 pairs have the same sentence in en and de" in opened(tmp_path).notes[0]
    with pytest.raises(ConfigError, match="task.data.max_length: every training pair has more than 1"):
        opened(tmp_path, max_length=1)


def test_groups_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(table: LabelTable, column: str) -> list[str]:
        calls.append(column)
        return read_groups(table, column)

    monkeypatch.setattr(translation_source, "read_groups", counted)
    rows = [f"{number} one,{number} eins,{number // 5}" for number in range(40)]
    (tmp_path / "x.csv").write_text("\n".join(["en,de,document", *rows]))
    found = opened(tmp_path / "x.csv", group_column="document")
    assert calls == ["document"]
    train, val = ({int(sentence.split()[0]) // 5 for sentence in part.sources} for part in (found.train, found.val))
    assert train and val and not train & val
