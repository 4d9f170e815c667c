from __future__ import annotations

import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from attngraft.errors import ConfigError, DataError
from attngraft.tasks.points import source as source_module
from attngraft.tasks.points.source import CloudSource, load_clouds
from tests.tasks.points.files import CUBE, drawn, write_npy, write_text

SHAPENET = (
    *("Airplane", "Bag", "Cap", "Car", "Chair", "Earphone", "Guitar", "Knife", "Lamp", "Laptop", "Motorbike", "Mug"),
    *("Pistol", "Rocket", "Skateboard", "Table"),
)


def listed(source: CloudSource) -> dict[str, list[tuple[str, int]]]:
    return {
        split: list(zip(clouds.names, clouds.categories.tolist(), strict=True))
        for split, clouds in source.splits.items()
    }


def folder(root: Path, names: tuple[str, ...], *, columns: int = 3) -> Path:
    for seed, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".off"):
            (root / name).write_text(CUBE)
        else:
            write = write_npy if name.endswith(".npy") else write_text
            write(root / name, drawn(10 + seed, columns=columns, seed=seed))
    return root


def arrays(**changed: Any) -> dict[str, Any]:
    """Arrays of an .npz; None removes one."""
    found = {
        "x_train": drawn(40).reshape(4, 10, 3).astype(np.float16),
        "y_train": np.array([0, 1, 1, 0]),
        "x_test": drawn(20, seed=1).reshape(2, 10, 3).astype(np.float16),
        "y_test": np.array([[1], [0]], dtype=np.uint8),
    } | changed
    return {name: value for name, value in found.items() if value is not None}


def npz(path: Path, **changed: Any) -> Path:
    np.savez(path, **arrays(**changed))
    return path


def hdf5(path: Path, *, clouds: int = 3, seed: int = 0, compressed: bool = False, **extra: np.ndarray) -> Path:
    with h5py.File(path, "w") as file:
        options = {"compression": "gzip"} if compressed else {}
        file.create_dataset("data", data=drawn(clouds * 10, seed=seed).reshape(clouds, 10, 3).astype("f4"), **options)
        file.create_dataset("label", data=np.arange(clouds, dtype=np.uint8)[:, None])
        for name, values in extra.items():
            file[name] = values
    return path


def shapenet(root: Path, categories: tuple[str, ...] = ("Lamp", "Table")) -> Path:
    """ShapeNetPart's folder with a cloud of each category per split; parts are 0 and 1 of each category."""
    root.mkdir()
    synsets = {name: f"{number:08d}" for number, name in enumerate(categories)}
    (root / "synsetoffset2category.txt").write_text("".join(f"{name}\t{synset}\n" for name, synset in synsets.items()))
    (root / "train_test_split").mkdir()
    for split in ("train", "val", "test"):
        entries = []
        for number, (name, synset) in enumerate(synsets.items()):
            values = drawn(10, columns=7, seed=number)
            values[:, 6] += {"Lamp": 24, "Table": 47}.get(name, 0)
            (root / synset).mkdir(exist_ok=True)
            write_text(root / synset / f"{split}1.txt", values)
            entries.append(f"shape_data/{synset}/{split}1")
        (root / "train_test_split" / f"shuffled_{split}_file_list.json").write_text(json.dumps(entries))
    return root


def test_folders_of_splits_and_classes(tmp_path: Path) -> None:
    names = ("train/table/a2.txt", "train/table/a10.npy", "train/chair/b.xyz", "val/chair/c.txt", "test/mug/d.txt")
    root = folder(tmp_path, names)
    (root / "train/table/notes.md").write_text("about tables")
    (root / "train/table/.hidden.txt").write_text("x")
    source = load_clouds(root)
    assert source.classes == ("chair", "mug", "table")
    assert listed(source) == {
        "train": [("train/chair/b.xyz", 0), ("train/table/a2.txt", 2), ("train/table/a10.npy", 2)],
        "val": [("val/chair/c.txt", 0)],
        "test": [("test/mug/d.txt", 1)],
    }
    assert not source.has_normals and source.parts is None
    cloud = source.splits["train"].cloud(2)
    assert (cloud.name, cloud.category, cloud.normals, cloud.parts) == ("train/table/a10.npy", 2, None, None)
    assert (cloud.points == drawn(11, seed=1).astype(np.float32)).all()  # clouds of other sizes are fine


def test_folders_of_modelnet_and_of_classes_alone(tmp_path: Path) -> None:
    root = folder(tmp_path / "a", ("chair/train/1.off", "chair/test/2.off", "desk/train/3.off", "desk/test/4.off"))
    source = load_clouds(root, samples=7)
    assert listed(source) == {
        "train": [("chair/train/1.off", 0), ("desk/train/3.off", 1)],
        "test": [("chair/test/2.off", 0), ("desk/test/4.off", 1)],
    }
    assert source.has_normals
    assert source.splits["test"].cloud(1).points.shape == (7, 3)
    source = load_clouds(folder(tmp_path / "b", ("chair/1.txt", "desk/2.txt"), columns=6))
    assert listed(source) == {"train": [("chair/1.txt", 0), ("desk/2.txt", 1)]}
    assert source.has_normals


def test_files_are_listed_and_read_later(tmp_path: Path) -> None:
    root = folder(tmp_path, ("train/a/1.txt", "train/a/2.txt", "test/a/3.txt"))
    (root / "train/a/2.txt").write_text("0 0 0\n1 x 1\n")
    (root / "test/a/3.txt").write_text("1 1 1\n1 1 1\n")
    source = load_clouds(root, least=10)
    with pytest.raises(DataError, match="2.txt: line 2: '1 x 1' has an entry that is not a number"):
        source.splits["train"].cloud(1)
    with pytest.raises(DataError, match="3.txt: has 2 points, but 10 are needed"):
        source.splits["test"].cloud(0)
    with pytest.raises(DataError, match="3.txt: all 2 points are equal"):
        load_clouds(root).splits["test"].cloud(0)


def test_normals_are_those_of_all_clouds_or_of_none(tmp_path: Path) -> None:
    root = folder(tmp_path, ("train/a/1.txt", "train/a/2.txt"), columns=6)
    write_text(root / "train/a/2.txt", drawn(5))
    with pytest.raises(DataError, match="2.txt: has no normals, but other clouds have; add them, or remove this cloud"):
        load_clouds(root).splits["train"].cloud(1)
    (root / "train/a/2.txt").rename(root / "train/a/0.txt")
    assert load_clouds(root).splits["train"].cloud(1).normals is None


def test_parts_of_own_clouds_are_those_in_training_clouds(tmp_path: Path) -> None:
    root = folder(tmp_path, ("train/Lamp/1.txt", "train/Table/2.txt", "test/Table/3.txt"), columns=7)
    values = drawn(4, columns=7)
    values[:, 6] = [5, 5, 9, 2]
    write_text(root / "train/Table/2.txt", values)
    source = load_clouds(root)
    assert source.parts == {0: (0, 1), 1: (2, 5, 9)}
    parts = source.splits["train"].cloud(1).parts
    assert parts is not None and parts.dtype == np.int64 and parts.tolist() == [5, 5, 9, 2]
    message = r"3.txt: line 3: the part 0 is none of its category's \(2, 5, 9\)"
    with pytest.raises(DataError, match=message):
        source.splits["test"].cloud(0)


def test_take_and_joined_and_pickle(tmp_path: Path) -> None:
    for source in (
        load_clouds(folder(tmp_path / "a", ("a/1.txt", "b/2.txt", "b/3.txt"))),
        load_clouds(npz(tmp_path / "a.npz")),
    ):
        train = source.splits["train"]
        taken = train.take(np.array([2, 0]))
        assert taken.names == [train.names[2], train.names[0]] and taken.categories.tolist() == [1, 0]
        both = pickle.loads(pickle.dumps(taken.joined(train)))
        assert len(both) == 2 + len(train)
        for index, other in ((0, 2), (1, 0), (2, 0), (4, 2)):
            assert both.names[index] == train.names[other] and both.cloud(index).name == train.names[other]
            assert (both.cloud(index).points == train.cloud(other).points).all()


def test_arrays(tmp_path: Path) -> None:
    source = load_clouds(npz(tmp_path / "a.npz", classes=np.array(["chair", "desk"]), id_test=np.array(["t1", "t2"])))
    assert source.classes == ("chair", "desk")
    assert listed(source) == {
        "train": [("train/0", 0), ("train/1", 1), ("train/2", 1), ("train/3", 0)],
        "test": [("t1", 1), ("t2", 0)],
    }
    cloud = source.splits["train"].cloud(1)
    assert cloud.points.dtype == np.float32 and (cloud.points == arrays()["x_train"][1]).all()
    assert load_clouds(npz(tmp_path / "a.npz")).classes == ("0", "1")


def test_arrays_with_normals_and_parts(tmp_path: Path) -> None:
    x, parts = drawn(40, columns=6).reshape(4, 10, 6), np.tile([[0], [3], [4], [0]], 10)
    path = npz(tmp_path / "a.npz", x_train=x, parts_train=parts, x_test=None, y_test=None)
    source = load_clouds(tmp_path)  # the only file of a folder
    assert source.has_normals and source.parts == {0: (0,), 1: (3, 4)} and source.where == str(path.parent)
    cloud = source.splits["train"].cloud(2)
    assert cloud.normals is not None and cloud.parts is not None
    assert np.array_equal(cloud.normals, x[2, :, 3:].astype(np.float32)) and cloud.parts.tolist() == [4] * 10


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"x_train": None}, "must contain the arrays x_train and y_train.*found: x_test, y_test, y_train"),
        ({"y_train": None}, "has the clouds x_train, but no labels y_train; add them"),
        (
            {"y_train": np.zeros(3, dtype=int)},
            r"x_train: the labels of 4 clouds must be whole numbers \(4,\), got int64 \(3,\)",
        ),
        ({"y_train": np.zeros(4)}, r"x_train: the labels of 4 clouds .*, got float64 \(4,\)"),
        ({"y_train": np.array([0, -1, 0, 0])}, r"x_train\[1\]: the label -1 is not a class from 0"),
        (
            {"y_train": np.array([*"abab"])},
            r"of 4 clouds must be whole numbers \(4,\), got <U1 \(4,\); number the classes",
        ),
        (
            {"y_test": np.array([0, 2]), "classes": np.array(["a", "b"])},
            r"x_test\[1\]: the label 2 is not a class from 0 to 1",
        ),
        ({"y_test": np.array([0, 10**12])}, r"x_test\[1\]: the label 1000000000000 is not a class"),
        ({"classes": np.zeros(30, np.uint8)}, "classes has 30 names; give 20 classes or fewer"),
        ({"classes": np.array(["a", "a"])}, "two classes have the same name"),
        ({"classes": np.array([["a", "b"]])}, r"classes must be a list of names, \(N,\), got \(1, 2\)"),
        ({"x_valid": np.zeros((4, 10, 3))}, "x_valid would not be used; rename it to x_val, and its labels to y_val"),
        ({"x_train": np.zeros((4, 10))}, r"x_train must be \(clouds, points, 3 or 6\) numbers, got float64 \(4, 10\)"),
        ({"x_train": np.zeros((4, 10, 4))}, r"x_train must be \(clouds, points, 3 or 6\)"),
        ({"x_train": np.full((4, 10, 3), "a")}, "the points must be numbers"),
        ({"parts_train": np.zeros((4, 9))}, r"the parts must be numbers \(4, 10\), got float64 \(4, 9\)"),
        (
            {"parts_train": np.full((4, 10), 0.5)},
            r"x_train\[0\]: point 0 \(from 0\): the part 0.5 is not a whole number",
        ),
        ({"parts_train": np.zeros((4, 10))}, r"x_test\[0\]: has no parts, but other clouds have"),
        ({"x_test": np.ones((2, 10, 3))}, r"x_test\[0\]: all 10 points are equal"),
        ({"x_train": np.zeros((4, 0, 3))}, r"x_train\[0\]: has 0 points, but 1 are needed"),
        ({"x_train": np.zeros((0, 10, 3)), "y_train": np.zeros(0, dtype=int)}, "no training clouds; give a folder"),
    ],
)
def test_arrays_that_cannot_be_used(
    tmp_path: Path, changed: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "MAX_CLASSES", 20)
    path = npz(tmp_path / "a.npz", **changed)
    with pytest.raises(DataError, match=f"^{path}:? ?.*{message}"):
        load_clouds(path)


def test_a_mistake_in_an_array_has_its_cloud_and_point(tmp_path: Path) -> None:
    x = arrays()["x_test"]
    x[1, 7, 2] = np.inf
    with pytest.raises(DataError, match=r"x_test\[1\]: point 7 \(from 0\): .*not finite"):
        load_clouds(npz(tmp_path / "a.npz", x_test=x))
    parts = {"parts_train": np.zeros((4, 10)), "parts_test": np.zeros((2, 10))}
    parts["parts_test"][1, 4] = 7
    with pytest.raises(DataError, match=r"x_test\[1\]: point 4 \(from 0\): the part 7 is none of its category's \(0\)"):
        load_clouds(npz(tmp_path / "a.npz", **parts))
    with pytest.raises(DataError, match=r"x_train\[0\]: has 10 points, but 11 are needed"):
        load_clouds(npz(tmp_path / "a.npz"), least=11)


def test_many_clouds_have_some_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "_MANY", 3)
    with pytest.raises(DataError, match=r"x_train: has 4 clouds of 10 points; use 3 or fewer, or larger ones"):
        load_clouds(npz(tmp_path / "a.npz"))
    monkeypatch.setattr(source_module, "_POINTS", 10)
    load_clouds(npz(tmp_path / "a.npz"))


def test_names_of_other_clouds_are_not_used(tmp_path: Path) -> None:
    for names, used in ((["a", b"\xff", "c", "d"], True), ([*"abcde"], False), ([*"aabc"], False)):
        found = load_clouds(npz(tmp_path / "a.npz", id_train=np.array(names, dtype="S"))).splits["train"].names
        assert (found == ["a", "\ufffd", "c", "d"]) == used


def test_clouds_of_different_sizes_are_no_array(tmp_path: Path) -> None:
    x = np.empty(4, dtype=object)
    x[:] = [drawn(count) for count in (3, 4, 5, 6)]
    with pytest.raises(DataError, match="different numbers of points cannot be in one array: save a file for each"):
        load_clouds(npz(tmp_path / "a.npz", x_train=x))


def test_a_damaged_npz(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(DataError, match="a.npz: cannot be read .*; download or save it again"):
        load_clouds(path)


def test_hdf5_of_pointnet(tmp_path: Path) -> None:
    for number, name in enumerate(("train1", "train0", "test0")):
        hdf5(tmp_path / f"ply_data_{name}.h5", seed=number, normal=drawn(30, seed=9).reshape(3, 10, 3))
    (tmp_path / "shape_names.txt").write_text("airplane\nbathtub\nbed\n")
    source = load_clouds(tmp_path)
    assert source.classes == ("airplane", "bathtub", "bed") and source.has_normals and source.parts is None
    assert {split: len(clouds) for split, clouds in source.splits.items()} == {"train": 6, "test": 3}
    assert source.splits["train"].names == [f"train/{number}" for number in range(6)]
    assert source.splits["train"].categories.tolist() == [0, 1, 2, 0, 1, 2]
    first = source.splits["train"].cloud(0)  # of train0
    assert (first.points == drawn(30, seed=1)[:10].astype(np.float32)).all()
    assert first.normals is not None and (first.normals == drawn(30, seed=9)[:10].astype(np.float32)).all()


def test_hdf5_of_shapenetpart(tmp_path: Path) -> None:
    pid = np.tile(np.array([[0], [5], [7]], dtype=np.uint8), 10)
    for name in ("ply_data_train0.h5", "ply_data_val0.h5"):
        hdf5(tmp_path / name, pid=pid)
    source = load_clouds(tmp_path)
    assert source.classes == ("0", "1", "2") and source.parts == {0: (0,), 1: (5,), 2: (7,)}
    (tmp_path / "all_object_categories.txt").write_text("".join(f"{name}\t0{i}\n" for i, name in enumerate(SHAPENET)))
    source = load_clouds(tmp_path)
    assert source.classes == SHAPENET and set(source.splits) == {"train", "val"}
    assert source.parts is not None and source.parts[1] == (4, 5) and source.parts[15] == (47, 48, 49)
    assert sorted(part for parts in source.parts.values() for part in parts) == list(range(50))
    hdf5(tmp_path / "ply_data_val0.h5", pid=pid + 1)
    with pytest.raises(
        DataError, match=r"val0.h5: data\[1\]: point 0 .*: the part 6 is none of its category's \(4, 5\)"
    ):
        load_clouds(tmp_path)


@pytest.mark.parametrize(
    ("name", "splits"),
    [
        ("training_objectdataset_augmentedrot_scale75", ["train"]),  # ScanObjectNN
        ("test_objectdataset", ["test"]),
        ("ply_data_val0", ["val"]),  # ShapeNetPart
        ("Points-Valid", ["val"]),
        ("constrained_test0", ["test"]),
        ("constrained0", []),
        ("latest0", []),
        ("train_of_test", ["train", "test"]),
    ],
)
def test_words_of_a_name_tell_the_split_of_hdf5(tmp_path: Path, name: str, splits: list[str]) -> None:
    hdf5(tmp_path / "a_train.h5")
    hdf5(tmp_path / f"{name}.h5")
    if len(splits) == 1:
        expected = {"train": 6} if splits == ["train"] else {"train": 3, splits[0]: 3}
        assert {split: len(clouds) for split, clouds in load_clouds(tmp_path).splits.items()} == expected
    else:
        with pytest.raises(DataError, match=f"{name}.h5: the name (tells no split|contains train and test); rename it"):
            load_clouds(tmp_path)


def test_hdf5_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ply_data_train0.h5"
    assert len(load_clouds(hdf5(path)).splits["train"]) == 3
    path.write_bytes(path.read_bytes()[:-300])
    with pytest.raises(DataError, match="train0.h5: cannot be read"):
        load_clouds(tmp_path)
    with h5py.File(path, "w") as file:
        file["data"] = drawn(10).reshape(1, 10, 3)
    with pytest.raises(DataError, match=r"has no data and label \(found: data\)"):
        load_clouds(tmp_path)
    with h5py.File(path, "w") as file:
        file.create_dataset("data", shape=(10**8, 1000, 3), dtype="f4", chunks=(1, 1000, 3))
        file["label"] = np.zeros((1, 1), dtype=int)
    with pytest.raises(DataError, match="train0.h5: cannot be read .unpacks from .* to 1.2 TB"):
        load_clouds(tmp_path)
    with h5py.File(path, "w") as file:
        sizes = {"chunks": (1, 1000, 10**5), "maxshape": (None, None, None)}
        file.create_dataset("data", shape=(1, 1000, 3), dtype="f8", compression="gzip", **sizes)
        file["label"] = np.zeros((1, 1), dtype=int)
    with pytest.raises(DataError, match="train0.h5: cannot be read .unpacks from .* to 800.0 MB"):
        load_clouds(tmp_path)
    hdf5(path)
    hdf5(tmp_path / "other.h5")
    with pytest.raises(DataError, match="other.h5: the name tells no split; rename it"):
        load_clouds(tmp_path)
    (tmp_path / "other.h5").unlink()
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ConfigError, match=r"requires h5py; run pip install 'attngraft\[points\]'"):
        load_clouds(tmp_path)


def test_hdf5_links_to_other_files_are_not_followed(tmp_path: Path) -> None:
    path, other = tmp_path / "data" / "train0.h5", hdf5(tmp_path / "other.h5")
    path.parent.mkdir()
    os.mkfifo(tmp_path / "fifo.h5")
    (tmp_path / "raw").write_bytes(bytes(120))
    layout = h5py.VirtualLayout(shape=(1, 10, 3), dtype="f4")
    layout[:] = h5py.VirtualSource(str(other), "data", shape=(1, 10, 3))
    made: list[Callable[[h5py.File], Any]] = [
        lambda file: file.update(data=h5py.ExternalLink(str(other), "/data")),
        lambda file: file.update(data=h5py.ExternalLink(str(tmp_path / "fifo.h5"), "/data")),
        lambda file: file.update(data=h5py.SoftLink("/data")),
        lambda file: file.update(data=h5py.Empty("f4")),
        lambda file: file.create_group("data"),
        lambda file: file.create_virtual_dataset("data", layout),
        lambda file: file.create_dataset("data", (1, 10, 3), "f4", external=[(str(tmp_path / "raw"), 0, 120)]),
    ]
    for make in made:
        with h5py.File(path, "w") as file:
            make(file)
            file["label"] = np.zeros(1, dtype=int)
        with pytest.raises(DataError, match="train0.h5: data is not an array in this file; write the array itself"):
            load_clouds(path.parent)


def test_names_that_are_not_unicode(tmp_path: Path) -> None:
    names = np.array([f"\ud800{number}" for number in range(4)])
    source = load_clouds(npz(tmp_path / "a.npz", classes=np.array(["\udc80a", "b"]), id_train=names))
    assert source.classes == ("\ufffda", "b")
    assert source.splits["train"].names == [f"\ufffd{number}" for number in range(4)]
    assert len(source.fingerprint()) == 32


def test_an_unknown_home_folder_is_a_missing_path() -> None:
    with pytest.raises(DataError, match="~nobody-of-this-name/clouds: no such file or folder"):
        load_clouds("~nobody-of-this-name/clouds")


def test_modelnet40_resampled(tmp_path: Path) -> None:
    names = ("chair/chair_0001.txt", "chair/chair_0002.txt", "flower_pot/flower_pot_0001.txt")
    root = folder(tmp_path, names, columns=6)
    (root / "modelnet40_shape_names.txt").write_text("flower_pot\nchair\n")
    (root / "modelnet40_train.txt").write_text("chair_0001\r\n\r\nflower_pot_0001\r\n")
    (root / "modelnet40_test.txt").write_text("chair_0002\n")
    source = load_clouds(root)
    assert source.classes == ("flower_pot", "chair") and source.has_normals
    assert listed(source) == {
        "train": [("chair/chair_0001.txt", 1), ("flower_pot/flower_pot_0001.txt", 0)],
        "test": [("chair/chair_0002.txt", 1)],
    }
    for line, message in (
        ("chiar_0001", r"modelnet40_test.txt: line 2: 'chiar_0001' is not CLASS_NUMBER.*did you mean chair"),
        ("chair_../../0001", "line 2: 'chair_../../0001' is not CLASS_NUMBER"),
        ("chair_0001", "line 2: lists the cloud 'chair/chair_0001.txt' a second time; remove this entry"),
        ("chair_0003", "modelnet40_test.txt: line 2: there is no file .*chair_0003.txt; download"),
    ):
        (root / "modelnet40_test.txt").write_text(f"chair_0002\n{line}\n")
        with pytest.raises(DataError, match=message):
            load_clouds(root)


def test_shapenetpart(tmp_path: Path) -> None:
    source = load_clouds(shapenet(tmp_path / "two"))
    assert source.classes == ("Lamp", "Table") and source.has_normals
    assert source.parts == {0: (24, 25), 1: (47, 48)}
    assert listed(source)["val"] == [("00000000/val1.txt", 0), ("00000001/val1.txt", 1)]
    parts = source.splits["test"].cloud(1).parts
    assert parts is not None and parts.tolist() == [47, 48] * 5
    root = shapenet(tmp_path / "all", SHAPENET)
    source = load_clouds(root)
    assert source.parts is not None and source.parts[8] == (24, 25, 26, 27)
    assert source.splits["train"].cloud(8).category == 8
    with pytest.raises(DataError, match=r"00000001/train1.txt: line 3: the part 0 is none of its category's \(4, 5\)"):
        source.splits["train"].cloud(1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('["shape_data/00000000/gone"]', "'shape_data/00000000/gone': there is no file .*gone.txt; download"),
        ('["shape_data/00000000/../../x"]', "is not shape_data/SYNSET/NAME"),
        ('["shape_data/00000009/train1"]', "is not shape_data/SYNSET/NAME of a listed category"),
        (
            '["shape_data/00000000/train1", "shape_data/00000000/train1"]',
            "train1.txt' a second time; remove this entry",
        ),
        ('["00000000/train1", 7]', "is not shape_data/SYNSET/NAME"),
        ('{"a": 1}', "is not shape_data/SYNSET/NAME"),
        ("[", "cannot be read"),
    ],
)
def test_shapenetpart_with_a_wrong_list(tmp_path: Path, text: str, message: str) -> None:
    root = shapenet(tmp_path / "a")
    (root / "train_test_split/shuffled_train_file_list.json").write_text(text)
    with pytest.raises(DataError, match=f"shuffled_train_file_list.json: .*{message}"):
        load_clouds(root)


def test_shapenetpart_without_a_list_or_with_a_wrong_table(tmp_path: Path) -> None:
    root = shapenet(tmp_path / "a")
    (root / "train_test_split/shuffled_val_file_list.json").unlink()
    assert set(load_clouds(root).splits) == {"train", "test"}
    (root / "train_test_split/shuffled_train_file_list.json").unlink()
    with pytest.raises(DataError, match="shuffled_train_file_list.json: cannot be read"):
        load_clouds(root)
    (root / "synsetoffset2category.txt").write_text("Lamp\t00000000\nTable\n")
    with pytest.raises(DataError, match="synsetoffset2category.txt: line 2: expected a category"):
        load_clouds(root)


def test_data_that_are_no_clouds(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="gone: no such file or folder; give a folder"):
        load_clouds(tmp_path / "gone")
    (tmp_path / "a.zip").write_bytes(b"PK")
    with pytest.raises(DataError, match="a.zip: not a data set of point clouds"):
        load_clouds(tmp_path / "a.zip")
    with pytest.raises(DataError, match=r"no point clouds .* in the folders of classes \(no folders\)"):
        load_clouds(tmp_path)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/a.jpg").write_bytes(b"")
    with pytest.raises(DataError, match=r"no point clouds \(.txt, .*.pcd\) in the folders of classes \(photos\)"):
        load_clouds(tmp_path)
    shutil.rmtree(tmp_path / "photos")
    folder(tmp_path, ("train/a/1.txt", "val/a/2.txt"))
    (tmp_path / "train/a/1.txt").unlink()
    with pytest.raises(DataError, match="no training clouds"):
        load_clouds(tmp_path)
    folder(tmp_path, ("train/a/1.txt", "training/a/3.txt"))
    with pytest.raises(DataError, match="the folders train and training are both the part train; join or rename them"):
        load_clouds(tmp_path)


def test_the_fingerprint_changes_with_the_data(tmp_path: Path) -> None:
    root = folder(tmp_path / "a", ("train/a/1.txt", "train/b/2.txt", "test/a/3.txt"))
    first = load_clouds(root)
    assert load_clouds(root).fingerprint() == first.fingerprint()
    assert first.splits["train"].fingerprint() != first.splits["test"].fingerprint()
    whole, train = first.fingerprint(), first.splits["train"].fingerprint()
    os.utime(root / "test/a/3.txt", ns=(1, 1))
    assert load_clouds(root).fingerprint() != whole
    assert load_clouds(root).splits["train"].fingerprint() == train
    found = {load_clouds(npz(tmp_path / "a.npz")).fingerprint() for _ in range(2)}
    changed = arrays()["x_test"]
    changed[0, 0, 0] += 1
    for change in ({"x_test": changed}, {"y_test": np.array([1, 1])}, {"classes": np.array(["a", "b"])}):
        found.add(load_clouds(npz(tmp_path / "a.npz", **change)).fingerprint())
    assert len(found) == 4


def test_modelnet10(shared: Path) -> None:
    source = load_clouds(shared / "data" / "modelnet10", least=1024)
    assert len(source.classes) == 10 and source.classes[1] == "bed" and not source.has_normals
    assert {split: len(clouds) for split, clouds in source.splits.items()} == {"train": 1906, "test": 454}
    cloud = source.splits["train"].cloud(0)
    assert cloud.name == "bed_0298" and cloud.category == 1
    assert np.linalg.norm(cloud.points, axis=1).max() == pytest.approx(1, abs=1e-3)
