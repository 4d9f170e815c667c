"""Texts and labels from tables, and their split."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from attngraft.cli import main
from attngraft.errors import DataError
from attngraft.tasks.images.sources.splitting import save_split, split_digest
from attngraft.tasks.text.config import TextDataConfig
from attngraft.tasks.text.source import open_texts, read_texts
from tests.tasks.text.toys import sentences, table


def test_a_random_split_takes_a_fifth_of_each_class_and_is_kept_when_rows_move(tmp_path: Path) -> None:
    rows = sentences(30, classes=("good", "bad", "odd"))
    config = TextDataConfig(source=str(table(tmp_path / "a.csv", rows)))
    found = open_texts(config)
    assert found.drawn and found.classes == ("bad", "good", "odd")
    assert found.counts() == {"train": dict.fromkeys(found.classes, 8), "val": dict.fromkeys(found.classes, 2)}
    save_split(tmp_path / "split.csv", {"train": found.train, "val": found.val})
    table(tmp_path / "a.csv", rows[::-1])
    again = open_texts(config, saved_split=tmp_path / "split.csv")
    assert set(again.val.texts) == set(found.val.texts)
    assert split_digest(again.val) == split_digest(found.val)
    given = open_texts(TextDataConfig(source=config.source, split_file=str(tmp_path / "split.csv")))
    assert not given.drawn and set(given.val.names) == set(found.val.names)
    table(tmp_path / "a.csv", [*rows, ("Another one.", "odd")])
    with pytest.raises(DataError, match="does not list 1 of 31 texts"):
        open_texts(config, saved_split=tmp_path / "split.csv")


def test_the_columns_and_the_split_are_found_by_name(tmp_path: Path) -> None:
    rows = [("1", "good", "A warm song.", "train"), ("2", "bad", "A cold song.", "train"), ("3", "bad", "Dull.", "dev")]
    source = table(
        tmp_path / "all.tsv", [*rows, ("4", "", "Nobody knows.", "test")], ("id", "class", "review", "split")
    )
    found = open_texts(TextDataConfig(source=str(source)))
    assert found.column == "review" and not found.drawn
    assert (list(found.train.texts), list(found.val.texts)) == (["A warm song.", "A cold song."], ["Dull."])
    assert np.array_equal(found.train.labels, [1, 0])
    other = open_texts(TextDataConfig(source=str(source), text_column="id"))
    assert list(other.val.texts) == ["3"]


def test_json_lines_are_a_table(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    lines = [{"text": f"A song\u2028{n}", "label": "good" if n % 2 else "bad"} for n in range(10)]
    source.write_text("\n\n".join(json.dumps(line, ensure_ascii=False) for line in lines), encoding="utf-8")
    found = open_texts(TextDataConfig(source=str(source)))
    assert {*found.train.texts, *found.val.texts} == {line["text"] for line in lines}
    lines[3]["text"] = None
    source.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    with pytest.raises(DataError, match="a.jsonl: line 4: column 'text' is empty"):
        open_texts(TextDataConfig(source=str(source)))


def test_a_folder_has_a_table_for_each_split(tmp_path: Path) -> None:
    table(tmp_path / "train.csv", sentences(6))
    table(tmp_path / "valid.csv", sentences(4, seed=1))
    found = open_texts(TextDataConfig(source=str(tmp_path)))
    assert (len(found.train), len(found.val), found.origin) == (6, 4, "train.csv and valid.csv")
    table(tmp_path / "test.csv", [*sentences(2), ("Another one.", "good")])
    found = open_texts(TextDataConfig(source=str(tmp_path)))
    assert found.test is not None and len(found.test) == 3
    assert found.notes == ("2 test texts are also in the training split.",)
    assert "2 of 3 test texts are copies of texts of the other splits" in found.refusal
    assert "--set task.data.test_split=none; to train anyway, use --set task.data.check=off" in found.refusal
    assert not open_texts(TextDataConfig(source=str(tmp_path), check="off")).refusal
    with pytest.raises(SystemExit) as stop:
        main(["data", "check", str(tmp_path), "--task", "text_classification"])
    assert stop.value.code == 2
    table(tmp_path / "test.csv", [("Another one.", "odd")])
    found = open_texts(TextDataConfig(source=str(tmp_path)))
    assert found.test is None and "The split test is not used as a test split" in found.notes[0]
    with pytest.raises(DataError, match="the test split test cannot be used"):
        open_texts(TextDataConfig(source=str(tmp_path), test_split="test"))


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        ([("a", "x"), ("b", "x")], ("text", "label"), "all texts have the label 'x'"),
        ([("a", "x"), ("b", "x"), ("c", "y")], ("text", "label"), "class 'y' has a single text"),
        ([("a", "x"), (" ", "y")], ("text", "label"), "row 3: column 'text' is empty; remove the row"),
        ([("a", "x")], ("words", "label"), "task.data.text_column"),
        ([("a", "x", "train"), ("b", "y", "val")], ("text", "label", "split"), "no training text of class 'y'"),
    ],
)
def test_what_cannot_be_used_is_refused(
    tmp_path: Path, rows: list[tuple[str]], header: tuple[str], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        open_texts(TextDataConfig(source=str(table(tmp_path / "a.csv", rows, header))))


def test_a_split_that_a_table_does_not_have_is_refused(tmp_path: Path) -> None:
    source = str(table(tmp_path / "a.csv", sentences(30)))
    with pytest.raises(DataError, match="no split 'nope', because no column names splits"):
        open_texts(TextDataConfig(source=source, val_split="nope"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.csv: no such file or folder; give a \.csv"):
        open_texts(TextDataConfig(source=str(tmp_path / "none.csv")))


def test_texts_to_predict_are_those_of_a_table_or_lines(tmp_path: Path) -> None:
    source = table(tmp_path / "a.csv", [("A song.", "3"), ("A meal.", "4")], ("comment", "stars"))
    assert read_texts(source, "text") == ["A song.", "A meal."]
    (tmp_path / "b.txt").write_text("A song.\n\nA\u2028meal.\r\n", newline="")
    assert read_texts(tmp_path / "b.txt", "text") == ["A song.", "A\u2028meal."]


def test_a_table_to_predict_without_texts_names_the_column_of_training(tmp_path: Path) -> None:
    source = table(tmp_path / "a.csv", [("1", "3"), ("2", "4")], ("number", "stars"))
    with pytest.raises(DataError, match=r"a\.csv: cannot find the column of texts; call it 'comment', as in training"):
        read_texts(source, "comment")


def test_texts_that_are_lists_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "A song.", "label": "x"}\n{"text": ["A", "meal."], "label": "y"}\n')
    message = r"a\.jsonl: line 2: column 'text' contains \['A', 'meal\.'\]; write a text or a number"
    with pytest.raises(DataError, match=message):
        open_texts(TextDataConfig(source=str(path)))
    with pytest.raises(DataError, match=message):
        read_texts(path, "text")


def test_data_check_reports_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = table(tmp_path / "a.csv", sentences(10))
    with pytest.raises(SystemExit) as stop:
        main(
            ["data", "check", str(source), "--task", "text_classification", "--save-split", str(tmp_path / "split.csv")]
        )
    assert stop.value.code == 0 and "--recipe text" in capsys.readouterr().out
    assert len((tmp_path / "split.csv").read_text().splitlines()) == 11
    table(source, sentences(10, classes=("good",)))
    with pytest.raises(SystemExit) as stop:
        main(["data", "check", str(source), "--task", "text_classification"])
    assert stop.value.code == 2 and "all texts have the label" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (r'{"text": "half \ud83d", "label": "a"}', "line 3: contains half of a character"),
        (r'{"text": "x", "label": "\udc00"}', "line 3: contains half of a character"),
        ('{"text": ' + "[" * 5000, "line 3: not JSON"),
        ('{"text": "x", "label": ' + "1" * 5000 + "}", "line 3: not JSON .an integer has thousands of digits"),
        ('{"text": "x", "label": "a\\r b"}', "'a.r b' contains a control character"),
        ('{"text": "x", "label": "b", "label": "a"}', "line 3: not JSON .the key 'label' occurs twice"),
        (
            json.dumps({"text": "x" * 1_000_001, "label": "a"}),
            "line 3: column 'text' has more than 1,000,000 characters",
        ),
        ('{"text": "x", "label": "b "}', None),
        (r'{"text": "whole \ud83d\ude00 and \\ud83d", "label": "a"}', None),
    ],
)
def test_hostile_lines_are_refused(row: str, message: str | None, tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"number {i}", "label": "ab"[i % 2]}) for i in range(12)]
    (tmp_path / "a.jsonl").write_text("\n".join([*lines[:2], row, *lines[2:]]))
    config = TextDataConfig(source=str(tmp_path / "a.jsonl"), val_fraction=0.3)
    if message is None:
        assert open_texts(config).classes == ("a", "b")
    else:
        with pytest.raises(DataError, match=message):
            open_texts(config)
