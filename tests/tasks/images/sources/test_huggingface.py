"""Hugging Face data sets on disk, as the library `datasets` writes them and by pyarrow alone."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attngraft import cache, opening
from attngraft.errors import ConfigError, DataError
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources import ImageSource, open_source
from tests.tasks.images.datasets import load, make_folder, picture

pa = pytest.importorskip("pyarrow")

CLASSES = ["zebra", "ant", "cow"]


def png(number: int) -> bytes:
    data = io.BytesIO()
    picture(number).save(data, "png")
    return data.getvalue()


def make_table(first: int, count: int, **columns: Any) -> Any:
    """Rows as `datasets` writes them; labels go zebra, ant, zebra, ... and no cow."""
    numbers = range(first, first + count)
    images = [{"bytes": png(i), "path": f"{i}.png"} for i in numbers]
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": CLASSES}}
    table = pa.table({"image": images, "label": [i % 2 for i in numbers], **columns})
    info = {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    return table.replace_schema_metadata(info)


def write_arrow(path: Path, table: Any, *, kind: str = "stream", compression: str | None = None) -> None:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    writer = {"stream": pa.ipc.new_stream, "file": pa.ipc.new_file}[kind]
    with pa.OSFile(str(path), "wb") as file, writer(file, table.schema, options=options) as opened:
        opened.write_table(table)


def parts_of(source: object, **fields: Any) -> ImageSource:
    return open_source(DataConfig(source=str(source), **fields))


@pytest.fixture(params=["arrow", "parquet"])
def repository(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Two files of a training part and one of a validation part, as in a hub repository's `data` folder."""
    from pyarrow import parquet

    folder = tmp_path / "birds" / "data"
    folder.mkdir(parents=True)
    pieces = {"train-00000-of-00002": (0, 10), "train-00001-of-00002": (10, 6), "validation-00000-of-00001": (16, 4)}
    for name, (first, count) in pieces.items():
        table, path = make_table(first, count), folder / f"{name}.{request.param}"
        if request.param == "parquet":
            parquet.write_table(table, path)
        else:
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
                writer.write_table(table, max_chunksize=3)
    return tmp_path / "birds"


def test_a_repository_with_parts(repository: Path) -> None:
    data = load(f"hf:{repository}")
    assert data.facts["kind"] == "huggingface"
    assert data.facts["classes"] == ["zebra", "ant"], "in the order of the ClassLabel, those that images have"
    assert data.facts["sizes"] == {"train": 16, "val": 4}
    assert data.train.name(12) == "12.png"
    images = pickle.loads(pickle.dumps(data.train.images))  # type: ignore[attr-defined]
    for i in (0, 9, 10, 15):
        assert np.array_equal(np.asarray(images.open(i)), np.asarray(picture(i)))
        assert data.train[(0, i)][1] == i % 2
    assert images.stamp(3)[0] == len(png(3))
    assert parts_of(repository).kind == "huggingface", "told without hf:"
    drawn = parts_of(repository, val_fraction=0.25)
    assert (len(drawn.train), drawn.val) == (16, None)


def test_one_file(repository: Path) -> None:
    path = next((repository / "data").glob("train-00000*"))
    found = parts_of(path)
    assert (len(found.train), found.val, found.classes) == (10, None, ("zebra", "ant"))


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
@pytest.mark.parametrize("kind", ["stream", "file"])
def test_formats_of_arrow(tmp_path: Path, kind: str, compression: str | None) -> None:
    shades = pa.array(["red", "green"] * 5).dictionary_encode()
    write_arrow(tmp_path / "x.arrow", make_table(0, 10, shade=shades), kind=kind, compression=compression)
    found = parts_of(tmp_path / "x.arrow")
    assert (found.train.labels.tolist(), found.train.names[9]) == ([0, 1] * 5, "9.png")
    assert np.array_equal(np.asarray(found.train.open(7)), np.asarray(picture(7)))


@pytest.mark.parametrize("kind", ["stream", "file"])
def test_a_small_file_with_large_columns_is_refused(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "UNPACKED_FREE", 10**6)
    write_arrow(tmp_path / "x.arrow", make_table(0, 4, other=[b"0" * 10**6] * 4), kind=kind, compression="zstd")
    with pytest.raises(DataError, match=r"x\.arrow: cannot be read as \.arrow \(unpacks from .* to 4\.0 MB, more than"):
        parts_of(tmp_path / "x.arrow")


@pytest.mark.parametrize("number", [2**30, -(2**20)])
@pytest.mark.parametrize("column", ["bytes", "path"])
def test_places_outside_of_an_arrow_file_are_refused(tmp_path: Path, column: str, number: int) -> None:
    table, path = make_table(0, 8), tmp_path / "x.arrow"
    write_arrow(path, table)
    images = table.column("image").to_pylist()
    offsets = np.cumsum([0, *(len(image[column]) for image in images)]).astype("<i4")
    damaged = offsets.copy()
    damaged[4] = number
    path.write_bytes(path.read_bytes().replace(offsets.tobytes(), damaged.tobytes()))
    with pytest.raises(DataError, match=r"x\.arrow: cannot be read as \.arrow \(Column 0: .*offset"):
        parts_of(path)


def test_parquet_is_unpacked_once_into_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyarrow import parquet

    monkeypatch.setenv(cache.ENVIRONMENT, str(tmp_path / "cache"))
    parquet.write_table(make_table(0, 10), tmp_path / "x.parquet")
    parts_of(tmp_path / "x.parquet").train.open(3)
    (kept,) = (tmp_path / "cache" / "arrow").iterdir()
    written = kept.stat().st_mtime_ns
    found = parts_of(tmp_path / "x.parquet").train
    assert np.array_equal(np.asarray(found.open(7)), np.asarray(picture(7)))
    assert kept.stat().st_mtime_ns == written
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(cache.ENVIRONMENT, str(tmp_path / "file" / "cache"))
    in_memory = parts_of(tmp_path / "x.parquet").train
    assert np.array_equal(np.asarray(in_memory.open(7)), np.asarray(picture(7)))


def test_what_save_to_disk_writes(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    make_folder(tmp_path / "raw", {"a": 8, "b": 7})
    files = sorted((tmp_path / "raw").glob("*/*.png"))
    columns = {
        "picture": [str(file) for file in files],
        "kind": [int(file.parent.name == "b") for file in files],
        "tags": [[0, 2] if i % 2 else [2] for i in range(15)],
    }
    features = datasets.Features(
        picture=datasets.Image(),
        kind=datasets.ClassLabel(names=["a", "b"]),
        tags=datasets.Sequence(datasets.ClassLabel(names=["x", "y", "w"])),
    )
    whole = datasets.Dataset.from_dict(columns, features=features)
    divided = whole.train_test_split(test_size=5, seed=0, stratify_by_column="kind")
    divided.save_to_disk(tmp_path / "saved", num_shards={"train": 2, "test": 1})
    data = load(f"hf:{tmp_path}/saved", data={"label_column": "kind"})
    assert data.facts["sizes"] == {"train": 10, "val": 5}
    assert data.facts["classes"] == ["a", "b"]
    images = data.train.images  # type: ignore[attr-defined]
    for i in range(10):
        assert np.array_equal(np.asarray(images.open(i)), np.asarray(divided["train"][i]["picture"]))
        assert data.train[(0, i)][1] == divided["train"][i]["kind"]
    several = parts_of(f"hf:{tmp_path}/saved", label_column="tags")
    assert several.multilabel
    assert several.classes == ("x", "w"), "no image has y"
    whole.save_to_disk(tmp_path / "one")
    assert load(tmp_path / "one", data={"label_column": "kind"}).facts["sizes"] == {"train": 12, "val": 3}


def test_images_beside_the_files(tmp_path: Path) -> None:
    from pyarrow import parquet

    make_folder(tmp_path, {"images": 4})
    outside = ["../secret.png", "/etc/passwd", "a\0.png"]
    paths = [f"images/{i}.png" for i in range(4)] + [None, *outside]
    rows = [{"bytes": None, "path": path} for path in paths]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"image": pa.array(rows, kind), "label": ["a", "b"] * 4})
    parquet.write_table(table, tmp_path / "train.parquet")
    found = parts_of(f"hf:{tmp_path}").train
    for row in (5, 6, 7):
        for read in (found.open, found.stamp):
            with pytest.raises(
                DataError, match=rf"train\.parquet: row {row}: .* is not a path below .*correct the cell"
            ):
                read(row)
    assert np.array_equal(np.asarray(found.open(2)), np.asarray(picture(2)))
    with pytest.raises(DataError, match=r"train\.parquet: row 4: column 'image' contains no image"):
        found.open(4)


def test_plain_bytes_and_columns_of_other_names(tmp_path: Path) -> None:
    from pyarrow import parquet

    table = pa.table({"jpg": [png(i) for i in range(6)], "species": ["a", "b"] * 3, "weight": [1.5] * 6})
    parquet.write_table(table, tmp_path / "x.parquet")
    found = parts_of(tmp_path / "x.parquet")
    assert found.classes == ("a", "b")
    assert found.train.names[5] == "train/5"
    with pytest.raises(ConfigError, match=r"path_column: .* has no column 'jpeg' \(did you mean jpg\?\)"):
        parts_of(tmp_path / "x.parquet", path_column="jpeg")


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (
            pa.array([[1, 2]] * 2, pa.list_(pa.uint8())),
            r"column 'image' is list<element: uint8>; encoded images are binary",
        ),
        (
            pa.array([{"bytes": b"x"}] * 2, pa.struct([("bytes", pa.binary())])),
            r"column 'image' is struct<bytes: binary>",
        ),
        (pa.array([{"bytes": "x", "path": "y"}] * 2), r"column 'image' is struct<bytes: string, path: string>"),
        (pa.array([{"bytes": b"x", "path": 7}] * 2), r"column 'image' is struct<bytes: binary, path: int64>"),
        (pa.array([b"x"] * 2).dictionary_encode(), r"column 'image' is dictionary"),
        (None, r"has two columns 'image'; rename one"),
    ],
)
def test_columns_of_each_file_are_checked(tmp_path: Path, image: Any, message: str) -> None:
    from pyarrow import parquet

    parquet.write_table(make_table(0, 4), tmp_path / "train.parquet")
    other, label = make_table(4, 2), pa.array(["a", "b"])
    columns = [other["image"]] * 2 if image is None else [image, pa.array([0, 1])]
    names = ["image", "image" if image is None else "label"]
    parquet.write_table(pa.Table.from_arrays([*columns, label], [*names, "other"]), tmp_path / "val.parquet")
    with pytest.raises(DataError, match=rf"val\.parquet: {message}"):
        parts_of(f"hf:{tmp_path}")


def test_a_label_that_one_file_lacks_is_refused(tmp_path: Path) -> None:
    from pyarrow import parquet

    parquet.write_table(make_table(0, 4), tmp_path / "train.parquet")
    parquet.write_table(make_table(4, 2).drop_columns("label"), tmp_path / "val.parquet")
    with pytest.raises(DataError, match=r"val\.parquet: has no column 'label', which train\.parquet has; add it"):
        parts_of(f"hf:{tmp_path}")


@pytest.mark.parametrize("names", [7, {"a": 1}, ["a", None], ["a", ["b"]]])
def test_descriptions_that_do_not_fit_their_columns_are_ignored(tmp_path: Path, names: object) -> None:
    from pyarrow import parquet

    features = {"number": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": names}}
    table = make_table(0, 4, number=[0, 1, 0, 1]).replace_schema_metadata(
        {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
    )
    parquet.write_table(table, tmp_path / "train.parquet")
    found = parts_of(f"hf:{tmp_path}", label_column="label")
    assert (found.classes, found.train.names[1]) == (("0", "1"), "1.png")


def test_refused(tmp_path: Path) -> None:
    from pyarrow import parquet

    with pytest.raises(DataError, match=r"contains no \.arrow or \.parquet files"):
        parts_of(f"hf:{tmp_path}")
    with pytest.raises(DataError, match=r"hf:.*nowhere: no such file or folder; hf: only reads data sets on the local"):
        parts_of(f"hf:{tmp_path}/nowhere")
    parquet.write_table(pa.table({"label": ["a"], "text": ["b"]}), tmp_path / "train.parquet")
    with pytest.raises(DataError, match=r"train\.parquet: no column of images .*available: label, text"):
        parts_of(f"hf:{tmp_path}")
    (tmp_path / "saved").mkdir()
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
    (tmp_path / "saved" / "state.json").write_text(json.dumps(state))
    with pytest.raises(DataError, match=r"data-00000-of-00001\.arrow: missing, but listed in .*state\.json"):
        parts_of(tmp_path / "saved")
    (tmp_path / "saved" / "data-00000-of-00001.arrow").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"cannot be read as \.arrow"):
        parts_of(tmp_path / "saved")


def test_missing_files_are_noted(repository: Path) -> None:
    assert not parts_of(repository).notes
    next((repository / "data").glob("train-00001*")).unlink()
    assert parts_of(repository).notes == ("1 file is missing, by the names of the other 2.",)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"_data_files": [{"filename": "../a.arrow"}]}, r"'\.\./a\.arrow' is not the name of a file in this folder"),
        (
            {"_data_files": [], "_indices_data_files": [{"filename": "i.arrow"}]},
            r"selects some of the rows; call flatten_i",
        ),
    ],
)
def test_files_of_other_folders_and_selections_are_refused(tmp_path: Path, state: dict[str, Any], message: str) -> None:
    (tmp_path / "state.json").write_text(json.dumps(state))
    with pytest.raises(DataError, match=rf"state\.json: cannot be read \(.*{message}"):
        parts_of(f"hf:{tmp_path}")


def with_names(table: Any, names: list[str]) -> Any:
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": names}}
    return table.replace_schema_metadata({b"huggingface": json.dumps({"info": {"features": features}}).encode()})


def test_class_names_are_those_of_each_file(tmp_path: Path) -> None:
    write_arrow(tmp_path / "train.arrow", make_table(0, 4))
    write_arrow(tmp_path / "test.arrow", with_names(make_table(4, 4), ["ant", "zebra"]))
    found = parts_of(tmp_path)
    assert found.classes == ("zebra", "ant")
    assert found.train.labels.tolist() == [0, 1, 0, 1]
    assert found.val is not None
    assert found.val.labels.tolist() == [1, 0, 1, 0]
    write_arrow(tmp_path / "test.arrow", make_table(4, 4).replace_schema_metadata(None))
    with pytest.raises(DataError, match=r"test\.arrow: column 'label' has no names of classes"):
        parts_of(tmp_path)


@pytest.mark.parametrize("several", [False, True])
def test_numbers_without_a_name_are_refused(tmp_path: Path, several: bool) -> None:
    label = [[0, 1], [5], [0], [1]] if several else [0, 1, 5, 0]
    table = make_table(0, 4)
    table = table.set_column(table.column_names.index("label"), "label", pa.array(label))
    write_arrow(tmp_path / "train.arrow", table)
    with pytest.raises(DataError, match=rf"train\.arrow, row {1 if several else 2}: there is no name of class 5"):
        parts_of(tmp_path)


@pytest.mark.parametrize("kind", ["stream", "file"])
def test_streams_cut_between_batches_are_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "train.arrow"
    new = {"stream": pa.ipc.new_stream, "file": pa.ipc.new_file}[kind]
    with pa.OSFile(str(path), "wb") as file, new(file, make_table(0, 8).schema) as writer:
        writer.write_table(make_table(0, 8), max_chunksize=4)
        size = file.tell()
    assert len(parts_of(path).train) == 8
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DataError, match=r"train\.arrow: .*ends between two batches"):
        parts_of(path)


@pytest.mark.parametrize("splits", [["train", "test"], ["train", "../val"], "train", [1]])
def test_splits_that_are_listed_must_be_there(tmp_path: Path, splits: object) -> None:
    (tmp_path / "train").mkdir()
    write_arrow(tmp_path / "train" / "data.arrow", make_table(0, 8))
    (tmp_path / "train" / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    listed = tmp_path / "dataset_dict.json"
    listed.write_text('{"splits": ["train"]}')
    assert parts_of(tmp_path).train is not None
    listed.write_text(json.dumps({"splits": splits}))
    with pytest.raises(DataError, match=r"(dataset_dict|test.state)\.json.*: cannot be read"):
        parts_of(tmp_path)
