"""Tables of paths and labels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from attngraft.errors import AttngraftError, ConfigError, DataError
from attngraft.strict import read
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources import ImageSource, open_source
from attngraft.tasks.images.sources import table as label_tables
from tests.tasks.images.datasets import load, make_folder, picture


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder with images/0.png to images/11.png."""
    (tmp_path / "images").mkdir()
    for i in range(12):
        picture(i).save(tmp_path / "images" / f"{i}.png")
    return tmp_path


def table(path: Path, header: str, rows: Sequence[str], *, separator: str = ",") -> Path:
    path.write_text("\n".join([header, *rows]).replace(",", separator) + "\n", encoding="utf-8")
    return path


def parts_of(path: object, **fields: Any) -> ImageSource:
    return open_source(DataConfig(source=str(path), **fields))


@pytest.mark.parametrize(("name", "separator"), [("x.csv", ","), ("x.csv", ";"), ("x.tsv", "\t")])
@pytest.mark.parametrize("inside", ["images/", "", "ABSOLUTE"])
def test_one_label_for_each_image(pictures: Path, name: str, separator: str, inside: str) -> None:
    inside = f"{pictures}/images/" if inside == "ABSOLUTE" else inside
    rows = [f"{inside}{i}.png,{'cat' if i % 2 else 'dog'}" for i in range(12)]
    data = load(table(pictures / name, "file,label", rows, separator=separator))
    assert data.facts["kind"] == "table"
    assert data.facts["classes"] == ["cat", "dog"]
    assert data.facts["sizes"] == {"train": 10, "val": 2}
    note = "Paths are relative to images/, next to the table."
    assert (note in data.facts["notes"]) == (inside == "")
    place = [data.train.name(i) for i in range(10)].index(f"{inside}3.png")
    assert data.train[(0, place)][1] == 0


def test_a_split_that_the_table_does_not_have_is_refused(pictures: Path) -> None:
    path = table(pictures / "x.csv", "file,label", [f"images/{i}.png,{'ab'[i % 2]}" for i in range(12)])
    with pytest.raises(DataError, match="no split 'nope', because no column names splits"):
        parts_of(path, val_split="nope")


def test_a_column_says_the_part(pictures: Path) -> None:
    sides = ["train"] * 7 + ["test"] * 4 + ["extra"]
    rows = [f"images/{i}.png,{'ab'[i % 2]},{side}" for i, side in enumerate(sides)]
    path = table(pictures / "x.csv", "image,class,split", rows)
    data = load(path)
    assert data.facts["sizes"] == {"train": 7, "val": 4}
    assert data.facts["split"] == "the rows with 'split' train and test"
    assert "1 row with other values in column 'split' is not used." in data.facts["notes"]
    drawn = parts_of(path, val_fraction=0.5)
    assert (len(drawn.train), drawn.val) == (7, None)
    assert parts_of(path, val_split="extra").val.names == ["images/11.png"]  # type: ignore[union-attr]
    with pytest.raises(DataError, match=r"no split 'x' \(task\.data\.val_split\); available: extra, test, train"):
        parts_of(path, val_split="x")


def test_what_is_there_twice_is_refused(pictures: Path) -> None:
    rows = [f"images/{i}.png,{'ab'[i % 2]},{'ab'[i % 3 > 0]}" for i in range(12)]
    path = table(pictures / "train.csv", "path,label,Label", rows)
    with pytest.raises(DataError, match=r"train\.csv: has columns 'label' and 'Label'; rename one, or name the column"):
        parts_of(path)
    assert len(parts_of(path, label_column="Label").train) == 12
    (pictures / "train.tsv").write_text(path.read_text())
    with pytest.raises(DataError, match=r"has train\.csv and train\.tsv; remove one, or give a file"):
        parts_of(pictures)


def test_columns_may_be_called_anything(pictures: Path) -> None:
    rows = [f"{i},images/{i}.png,{'ab'[i % 2]},{i % 5}" for i in range(12)]
    path = table(pictures / "x.csv", "nr,where,what,fold", rows)
    with pytest.raises(
        DataError, match=r"cannot find the column of paths .*path_column=NAME; available: nr, where, what, fold"
    ):
        parts_of(path)
    with pytest.raises(DataError, match=r"cannot find the column of labels"):
        parts_of(path, path_column="where")
    found = parts_of(path, path_column="where", label_column="what")
    assert found.classes == ("a", "b")
    assert len(found.train) == 12, "folds that are numbers say nothing of train and val"
    with pytest.raises(ConfigError, match=r"label_column: .*x\.csv has no column 'wat' \(did you mean what\?\)"):
        parts_of(path, path_column="where", label_column="wat")


LISTS = {
    "labels": ["cat dog", "dog", "", "cat"],
    "tags": ["cat|dog", "dog", "", "cat"],
    "categories": ["cat;dog", "dog", "none", "cat"],
    "label": ['"[""cat"", ""dog""]"', '"[""dog""]"', "[]", '"[""cat""]"'],
    "target": ["\"['cat', 'dog']\"", "['dog']", "nan", "['cat']"],
}


@pytest.mark.parametrize("column", LISTS)
def test_several_labels_for_each_image(pictures: Path, column: str) -> None:
    rows = [f"images/{i}.png,{LISTS[column][i % 4]}" for i in range(12)]
    found = parts_of(table(pictures / "x.csv", f"path,{column}", rows))
    assert found.multilabel
    assert found.classes == ("cat", "dog")
    assert found.train.labels[:4].tolist() == [[1, 1], [0, 1], [0, 0], [1, 0]]
    assert found.train.labels.dtype == np.uint8
    assert any(repr(column) in note for note in found.notes), "how labels were read is said"


def test_separators_are_told_and_can_be_said(pictures: Path) -> None:
    rows = [f"images/{i}.png,{'red fox' if i % 2 else 'grey wolf'}" for i in range(12)]
    assert parts_of(table(pictures / "a.csv", "path,label", rows)).classes == ("grey wolf", "red fox")
    path = table(pictures / "b.csv", "path,labels", rows)
    assert parts_of(path).classes == ("fox", "grey", "red", "wolf")
    assert parts_of(path, label_separator="none").classes == ("grey wolf", "red fox")
    assert not parts_of(path, label_separator="none").multilabel
    told = table(pictures / "c.csv", "path,label", [row.replace(" ", "|") for row in rows])
    assert parts_of(told).classes == ("grey|wolf", "red|fox")
    assert parts_of(told, label_separator="bar").classes == ("fox", "grey", "red", "wolf")
    with pytest.raises(ConfigError, match=r"label_separator: .*bar"):
        load(path, data={"label_separator": "/"})


def test_a_column_for_each_class(pictures: Path) -> None:
    rows = [f"images/{i}.png,{i % 2},{'yes' if i % 3 else ''},{i}" for i in range(12)]
    path = table(pictures / "x.csv", "path,cat,dog,age", rows)
    text = {"source": str(path), "label_columns": "cat,dog"}  # as in --set task.data.label_columns=cat,dog
    found = open_source(read(DataConfig, text, where="task.data"))
    assert found.multilabel
    assert found.train.labels[:4].tolist() == [[0, 0], [1, 1], [0, 1], [1, 0]]
    with pytest.raises(DataError, match=r"x\.csv: row 4: column 'age' contains '2'; label_columns must be 0 or 1"):
        parts_of(path, label_columns=("cat", "age"))


def test_parquet_holds_what_it_holds(pictures: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    paths = [f"images/{i}.png" for i in range(12)]
    columns = {
        "path": paths,
        "label": [i % 2 for i in range(12)],
        "labels": [["x"] if i % 3 else [] for i in range(12)],
    }
    parquet.write_table(pa.table(columns), pictures / "x.parquet")
    assert parts_of(pictures / "x.parquet").classes == ("0", "1")
    parquet.write_table(pa.table({"id": range(12), "label": columns["label"]}), pictures / "ids.parquet")
    assert parts_of(pictures / "ids.parquet").train.names[3] == "3.png"
    several = parts_of(pictures / "x.parquet", label_column="labels")
    assert several.multilabel
    assert several.train.labels[:3].ravel().tolist() == [0, 1, 1]
    (pictures / "bad.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"bad\.parquet: cannot be read as \.parquet"):
        parts_of(pictures / "bad.parquet")
    parquet.write_table(pa.Table.from_arrays([pa.array(["a"])] * 2, ["path", "path"]), pictures / "twice.parquet")
    with pytest.raises(DataError, match=r"twice\.parquet: has two columns 'path'; rename one"):
        parts_of(pictures / "twice.parquet")


def test_a_text_that_parquet_stores_once_is_unpacked_within_limits(
    pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    monkeypatch.setattr("attngraft.opening.UNPACKED_FREE", 2**21)
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 50_000, pa.int32()), ["x" * 2000])
    parquet.write_table(pa.table({"path": text, "label": text}), pictures / "bomb.parquet")
    with pytest.raises(AttngraftError, match=r"bomb\.parquet: .*unpacks from .* to .*, more than"):
        parts_of(pictures / "bomb.parquet")


def test_a_table_for_each_part_and_one_alone_in_a_folder(pictures: Path) -> None:
    rows = [f"images/{i}.png,{'ab'[i % 2]}" for i in range(12)]
    table(pictures / "train.csv", "path,label", rows[:8])
    with pytest.raises(DataError, match="a training split 'train' but no validation split"):
        parts_of(pictures)
    table(pictures / "test.csv", "path,label", rows[8:])
    found = parts_of(pictures)
    assert found.val is not None
    assert (len(found.train), len(found.val), found.origin) == (8, 4, "train.csv and test.csv")
    table(pictures / "test.csv", "path,name", rows[8:])
    with pytest.raises(DataError, match=r"test\.csv: has no column 'label', which train\.csv has; .*val_fraction"):
        parts_of(pictures)
    (pictures / "train.csv").rename(pictures / "labels.csv")
    assert len(parts_of(pictures).train) == 8


def test_a_column_of_ids(pictures: Path) -> None:
    (pictures / "images").rename(pictures / "train")
    path = table(pictures / "x.csv", "image_id,label", [f"{i},{'ab'[i % 2]}" for i in range(12)])
    found = parts_of(path)
    assert found.train.names[3] == "3.png"
    assert found.notes == ("Paths are relative to train/, next to the table.", ".png is added to the paths.")
    assert np.array_equal(np.asarray(found.train.open(3)), np.asarray(picture(3)))


@pytest.mark.parametrize("folder", ["train_images", "test_images"])
def test_each_id_is_the_image_of_that_name_whatever_its_extension(pictures: Path, folder: str) -> None:
    images = (pictures / "images").rename(pictures / folder)
    (images / "3.png").rename(images / "3.JPEG")
    (images / "4.txt").write_text("no image")
    table(pictures / "train.csv", "id_code,diagnosis", [f"{i},{i % 2}" for i in range(12)])
    found = parts_of(pictures / "train.csv")
    assert found.train.names[2:5] == ["2.png", "3.JPEG", "4.png"]
    assert found.notes[-1] == ".JPEG or .png is added to the paths."
    assert parts_of(pictures, val_fraction=0.5).kind == "table"
    assert parts_of(pictures / "train.csv", root=str(images)).train.names[3] == "3.JPEG"


def test_an_id_without_an_image_and_an_id_of_two(pictures: Path) -> None:
    rows = [f"images/{i}{'.png' if i % 3 else ''},{'ab'[i % 2]}" for i in range(12)]
    assert parts_of(table(pictures / "mixed.csv", "id,label", rows)).train.names[2:4] == [
        "images/2.png",
        "images/3.png",
    ]
    (pictures / "images" / "0.png").unlink()
    path = table(pictures / "x.csv", "id,label", [f"{i},{'ab'[i % 2]}" for i in range(12)])
    assert parts_of(path).train.names[:2] == ["0", "1.png"]
    with pytest.raises(DataError, match=r"(?s)1 image cannot be read.*  0: cannot be opened \(No such file"):
        load(path)
    picture(99).save(pictures / "images" / "5.webp")
    with pytest.raises(
        DataError, match=r"x\.csv: row 7: 5 may be 5\.png or 5\.webp in .*images; add the extensions to"
    ):
        parts_of(path)


def test_class_folders_outweigh_a_table_beside_them(tmp_path: Path) -> None:
    """`labels.csv` beside class folders tells what their names mean."""
    make_folder(tmp_path, {"n01": 3, "n02": 3})
    table(tmp_path / "labels.csv", "class,name", ["n01,tench", "n02,goldfish"])
    assert parts_of(tmp_path).kind == "folder"
    make_folder(tmp_path / "parts", {"train": {"a": 2, "b": 2}, "val": {"a": 1, "b": 1}})
    table(tmp_path / "parts" / "train.csv", "path,label", ["a/0.png,a"])
    assert parts_of(tmp_path / "parts").kind == "folder"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty; the first line must name the columns"),
        ("path,label\n", "has no rows below its header"),
        ("path,path\na,b\n", "must name every column once"),
        ("path,label\nimages/0.png,a,b\n", "row 2 has 3 entries, the header 2"),
        ("path,label\nimages/0.png,\n", "row 2: column 'label' contains no label"),
        ("path,label\n,a\n", "row 2: column 'path' contains nothing"),
        ("path,label\nhttp://x/0.png,a\n", "is a URL; download the images"),
        ("path,label\nelsewhere/0.png,a\n", r"none of the first 1 images of the table exists .*task\.data\.root"),
        ('path,labels\nimages/0.png,"[""a"", 1 2]"\n', "row 2: column 'labels' does not contain a JSON list"),
    ],
)
def test_refused(pictures: Path, content: str, message: str) -> None:
    (pictures / "x.csv").write_text(content)
    with pytest.raises(DataError, match=message):
        parts_of(pictures / "x.csv")


def test_cells_that_look_like_rows_are_noted(tmp_path: Path) -> None:
    def note(text: str) -> str:
        (tmp_path / "x.csv").write_text(text)
        return label_tables.read_table(tmp_path / "x.csv").note

    rows = [f"{i}.png,A dog" for i in range(6)]
    swallowed = [*rows[:1], rows[1].replace(",", ',"'), *rows[2:4], rows[4] + '"', *rows[5:]]
    found = "x.csv: row 3: a cell spans 4 lines that look like rows; check the quotation marks."
    assert note("\n".join(["path,caption", *swallowed])) == found
    assert note("\r\n".join(["path,caption", *swallowed])) == found
    many = note("\n".join(["path,caption", *swallowed * 2]))
    assert many == (
        "x.csv: row 3: the first of 2 cells that span rows has 4 lines that look like rows; check the quotation marks."
    )
    assert not note("path,caption\n" + "\n".join(rows))
    assert not note('text,label\n"Nice, but\nslow, and\nloud,\nand dear",1\n"Two\n\nlines",0')
    assert not note('text\n"one\ntwo"')


def test_text_that_is_not_utf8_is_refused_and_a_mark_is_not(pictures: Path) -> None:
    (pictures / "x.csv").write_bytes("path,label\nimages/0.png,gr\xfcn\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"not UTF-8 text \(byte 26\)"):
        parts_of(pictures / "x.csv")
    (pictures / "x.csv").write_bytes("\ufeffpath,label\r\nimages/0.png,grün\r\n".encode())
    assert parts_of(pictures / "x.csv").classes == ("grün",)


def test_paths_begin_where_root_says(pictures: Path) -> None:
    (pictures / "elsewhere").mkdir()
    path = table(pictures / "elsewhere" / "x.csv", "path,label", [f"{i}.png,{'ab'[i % 2]}" for i in range(12)])
    assert len(load(path, data={"root": str(pictures / "images")}).train) == 10
    with pytest.raises(DataError, match=r"task\.data\.root: .* is not a folder"):
        parts_of(path, root=str(pictures / "nowhere"))


def test_a_row_without_its_image_is_left_out_and_named(pictures: Path) -> None:
    rows = [f"images/{i}.png,{'ab'[i % 2]}" for i in range(13)]
    path = table(pictures / "x.csv", "path,label", rows)
    with pytest.raises(DataError, match=r"(?s)1 image cannot be read.*images/12\.png: cannot be opened \(No such file"):
        load(path)
    data = load(path, data={"max_corrupt": 1, "val_fraction": 0.4})
    assert sum(data.facts["sizes"].values()) == 12


@pytest.mark.parametrize("column", ["label", "labels"])
@pytest.mark.parametrize("label", [{"a": 1}, [["cat"], ["dog"]], ["cat", {"a": 1}], '["cat", ["dog"]]'])
def test_labels_that_are_no_texts_or_numbers_are_refused(tmp_path: Path, column: str, label: object) -> None:
    rows = [{"path": f"{index}.png", column: label} for index in range(4)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(
        DataError, match=r"a\.jsonl: line 1: column 'labels?' contains .*; write a (text|list of texts)"
    ):
        open_source(DataConfig(source=str(tmp_path / "a.jsonl")))


def test_missing_labels_of_a_list_are_no_class(tmp_path: Path) -> None:
    rows = [{"path": f"{index}.png", "labels": ["cat", None, ""] if index else [None, "dog"]} for index in range(4)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for index in range(4):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{index}.png")
    assert open_source(DataConfig(source=str(tmp_path / "a.jsonl"))).classes == ("cat", "dog")


def test_words_for_no_label_may_be_labels_of_a_list(tmp_path: Path) -> None:
    rows = [{"path": f"{index}.png", "labels": ["US", "NA"] if index else ["NA"]} for index in range(4)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for index in range(4):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{index}.png")
    assert open_source(DataConfig(source=str(tmp_path / "a.jsonl"))).classes == ("NA", "US")
    path = table(tmp_path / "b.csv", "path,labels", ["0.png,US|NA", "1.png,US", "2.png,NA", "3.png,"])
    with pytest.raises(
        DataError, match=r"b\.csv: column 'labels' contains 'NA' alone, which means no label, and among"
    ):
        open_source(DataConfig(source=str(path)))


@pytest.mark.parametrize("text", [False, True])
def test_vectors_of_zero_and_one_are_no_labels(tmp_path: Path, text: bool) -> None:
    rows = [[0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 0]]
    labels = [json.dumps(row) if text else row for row in rows]
    lines = [json.dumps({"path": f"{index}.png", "labels": each}) + "\n" for index, each in enumerate(labels)]
    (tmp_path / "a.jsonl").write_text("".join(lines))
    with pytest.raises(DataError, match=r"a\.jsonl: column 'labels' has vectors of 0 and 1; write lists"):
        open_source(DataConfig(source=str(tmp_path / "a.jsonl")))


def test_parquet_files_whose_number_of_rows_is_wrong_are_refused(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet as pq

    path = tmp_path / "x.parquet"
    pq.write_table(
        pa.table({"path": [f"{i}.png" for i in range(24)], "label": ["a", "b"] * 12}), path, store_schema=False
    )
    content = path.read_bytes()
    footer = content.rindex(b"\x16\x30\x19\x1c")  # 24 rows, before the list of row groups
    path.write_bytes(content[: footer + 1] + b"\x20" + content[footer + 2 :])
    with pytest.raises(DataError, match=r"x\.parquet: cannot be read .*declares 16 rows, but has 24"):
        open_source(DataConfig(source=str(path)))


def test_labels_that_are_maps_are_refused(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet as pq

    labels = pa.array([[("cat", 1), ("dog", 0)]] * 4, pa.map_(pa.string(), pa.int64()))
    pq.write_table(pa.table({"path": [f"{index}.png" for index in range(4)], "labels": labels}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet: row 0: column 'labels' contains .*; write a list of texts"):
        open_source(DataConfig(source=str(tmp_path / "a.parquet")))


def test_rows_of_json_with_fields_of_their_own_are_refused(
    tmp_path: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_tables, "_FREE_ENTRIES", 1000)
    rows = [{"path": f"images/{i}.png", "label": "ab"[i % 2]} for i in range(12)] * 10
    for name, lines in {"same": rows, "own": [row | {f"x{i}": 1} for i, row in enumerate(rows)]}.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    assert parts_of(tmp_path / "same.jsonl").classes == ("a", "b")
    message = (
        r"own\.jsonl: line 95: the 95 objects up to here have 97 different fields, and most lack most of them; give"
    )
    with pytest.raises(DataError, match=message):
        parts_of(tmp_path / "own.jsonl")


def test_fields_of_objects_become_columns_of_one_length() -> None:
    columns = label_tables.FieldColumns("here")
    for number, fields in enumerate([{"a": 1}, {}, {"b": 2}, {"a": 3, "b": None}, {}]):
        columns.add(fields, number)
    assert columns.columns() == {"a": [1, None, None, 3, None], "b": [None, None, 2, None, None]}
