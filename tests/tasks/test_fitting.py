from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attngraft.tasks.fitting import fitting_task
from attngraft.tasks.images.sources.table import read_table
from tests.tasks.detection.scenes import WRITERS
from tests.tasks.images.datasets import load, make_folder
from tests.tasks.points.shapes import write_shapes


def table(path: Path, header: str, rows: list[str]) -> Path:
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


@pytest.mark.parametrize(
    ("header", "rows", "data", "task", "reason"),
    [
        ("path,label", ["0.png,a", "1.png,b"], {}, "classification", "one label per image in column 'label' of x.csv"),
        ("path,label", ["0.png,3", "1.png,4"], {}, "classification", "one label per image"),
        ("path,tags", ["0.png,a b", "1.png,b"], {}, "multilabel", "lists of labels in column 'tags'"),
        ("path,cat,dog", ["0.png,0,1", "1.png,1,1"], {}, "multilabel", "2 columns of 0 and 1 in x.csv"),
        ("path,cat,dog", ["0.png,0,1"], {"label_column": "cat"}, "classification", "column 'cat'"),
        ("path,age", ["0.png,31.5", "1.png,4"], {}, "regression", "numbers in column 'age' of x.csv"),
        ("path,w,h,n", ["0.png,3.5,1,0"], {"label_columns": ["w", "h"]}, "regression", "numbers in 2 columns"),
        ("text,label", ["good,1", "bad,0"], {}, "text_classification", "texts in column 'text' of x.csv"),
        ("name,review,stars", ["Ann,good,1"], {}, "text_classification", "texts in column 'review'"),
        ("image,title,label", ["0.png,A rose,a"], {}, "classification", "column 'label'"),
        ("image,title,label", ["0,A rose,a"], {}, "classification", "column 'label'"),
        ("source,target", ["a house,ein Haus"], {}, "translation", "pairs of sentences in x.csv"),
        ("en,de", ["a,b"], {"source_column": "en", "target_column": "de"}, "translation", "pairs of sentences"),
        ("path,source,target", ["0.png,a,b"], {}, "classification", "column 'target'"),
        ("when,what", ["1,2"], {}, "classification", "the default"),
    ],
)
def test_tables(tmp_path: Path, header: str, rows: list[str], data: dict[str, Any], task: str, reason: str) -> None:
    make_folder(tmp_path, {".": 2})
    source = table(tmp_path / "x.csv", header, rows)
    found = fitting_task({"source": str(source), **data})
    assert found[0] == task
    assert reason in found[1]


def test_other_sources(tmp_path: Path) -> None:
    make_folder(tmp_path / "own", {"a": 1, "b": 1})
    table(tmp_path / "own" / "labels.csv", "path,age", ["a/0.png,1.5"])
    assert fitting_task({"source": str(tmp_path / "own")}) == ("classification", f"class folders in {tmp_path / 'own'}")
    make_folder(tmp_path / "listed", {"images": 2})
    table(tmp_path / "listed" / "labels.csv", "file,age", ["0.png,1.5", "1.png,2"])
    assert fitting_task({"source": str(tmp_path / "listed")})[0] == "regression"
    annotations = {"images": [], "annotations": [], "categories": []}
    for name in ("annotations/instances_train2017.json", "annotations/instances_val2017.json"):
        file = tmp_path / "coco" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(annotations))
    make_folder(tmp_path / "coco", {"train2017": 1, "val2017": 1})
    for coco in (tmp_path / "coco", file):
        assert fitting_task({"source": str(coco)}) == ("multilabel", f"COCO annotations in {coco}")
    for source, task in (("digits", "classification"), ("bars", "regression"), ("nowhere", "classification")):
        assert fitting_task({"source": source})[0] == task
    assert fitting_task({}) == ("classification", "the default")


def test_line_aligned_files_of_two_languages_mean_translation(tmp_path: Path) -> None:
    for name in ("train.en", "train.de", "train.txt", "readme.md", "readme.txt"):
        (tmp_path / name).write_text("a\n")
    for source in (tmp_path, tmp_path / "train"):
        expected = ("translation", f"line-aligned files of de and en in {source}")
        assert fitting_task({"source": str(source)}) == expected
    (tmp_path / "train.de").unlink()
    assert fitting_task({"source": str(tmp_path)})[0] == "classification"


def test_columns_of_0_and_1_are_read_without_being_named(tmp_path: Path) -> None:
    from attngraft.tasks.multilabel import MultiLabel
    from tests.tasks.images.datasets import host_config

    make_folder(tmp_path, {".": 8})
    table(tmp_path / "x.csv", "path,cat,dog", [f"{i}.png,{i % 2},{int(i < 4)}" for i in range(8)])
    task = MultiLabel.from_config({"data": {"source": str(tmp_path / "x.csv")}}, seed=0)
    facts = task.load(model_data_config=host_config()).facts
    assert facts["classes"] == ["cat", "dog"]
    assert "Labels are read from the 0/1 columns cat, dog." in facts["notes"]
    make_folder(tmp_path / "c", {"a": 3, "b": 3})
    assert load(tmp_path / "c").refusal == ""


def test_a_table_is_read_once_by_the_two_readers(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("path,label\na.png,x\nb.png,y\n")
    fitting_task({"source": str(path)})
    first = read_table(path)
    assert first.columns["label"] == ["x", "y"]
    assert read_table(path) is not first, "a kept table is returned once"
    fitting_task({"source": str(path)})
    path.write_text("path,label\na.png,x\nb.png,yy\n")
    assert read_table(path).columns["label"] == ["x", "yy"], "the file has changed"


@pytest.mark.parametrize(
    ("shape", "kind", "task"),
    [
        ((4, 64, 3), "f2", "points"),
        ((4, 64, 6), "f4", "points"),
        ((4, 64, 3), "u1", "classification"),  # pixels
        ((4, 28, 28), "f4", "classification"),
        ((4, 6, 6), "f4", "classification"),  # small images without channels
        ((4, 8, 3), "f8", "points"),
        ((4, 32, 32, 3), "f4", "classification"),
        ((4, 64, 4), "f4", "classification"),
    ],
)
def test_arrays_are_clouds_or_images_by_their_shape(
    tmp_path: Path, shape: tuple[int, ...], kind: str, task: str
) -> None:
    path = tmp_path / "arrays" / "x.npz"
    path.parent.mkdir()
    np.savez(path, x_train=np.zeros(shape, dtype=kind), y_train=np.zeros(len(shape), dtype=np.int64))
    assert fitting_task({"source": str(path)})[0] == task
    assert fitting_task({"source": str(path.parent)})[0] == task, "the only archive of a folder"


def test_arrays_with_parts(tmp_path: Path) -> None:
    path = write_shapes(tmp_path / "shapes.npz", train=2)
    assert fitting_task({"source": str(path)}) == ("point_parts", f"point clouds with parts in {path}")
    path.write_bytes(path.read_bytes()[:200])
    assert fitting_task({"source": str(path)})[0] == "classification", "damage is reported when the data are opened"


XYZ = "0.5 1 -2\n1 2 3\n"
MESH = "OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "task"),
    [
        ({"train/a/1.off": MESH, "train/b/2.off": MESH, "test/a/3.off": MESH}, "points"),
        ({"a/train/1.off": MESH, "b/train/2.off": MESH, "a/test/3.off": MESH}, "points"),  # ModelNet
        ({"a/1.off": "damaged", "b/2.off": MESH}, "points"),
        ({"1.off": MESH, "2.off": MESH}, "points"),  # no classes, which the task reports
        ({"a/1.txt": XYZ, "b/2.txt": XYZ}, "points"),
        ({"a/1.xyz": XYZ, "b/2.xyz": XYZ}, "points"),
        ({"a/1.txt": "1 2 3 0\n4 5 6 1\n", "b/2.txt": XYZ}, "point_parts"),
        ({"a/1.txt": "A good film.\n", "b/2.txt": "A bad one.\n"}, "classification"),
        ({"1.txt": XYZ, "2.txt": XYZ}, "classification"),
        ({"a/1.txt": XYZ, "a/1.png": "", "b/2.png": ""}, "classification"),  # boxes beside images
        ({"modelnet40_shape_names.txt": "a\n", "a/a_1.txt": XYZ}, "points"),
        ({"synsetoffset2category.txt": "Mug\t03797390\n", "03797390/1.txt": XYZ}, "point_parts"),
    ],
)
def test_folders_of_point_clouds(tmp_path: Path, files: dict[str, str], task: str) -> None:
    assert fitting_task({"source": str(write(tmp_path, files))})[0] == task


@pytest.mark.parametrize(
    ("names", "task"),
    [(["data", "label"], "points"), (["data", "label", "pid"], "point_parts"), (["images"], "classification")],
)
def test_hdf5(tmp_path: Path, names: list[str], task: str) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "ply_data_train0.h5"
    with h5py.File(path, "w") as file:
        for name in names:
            file[name] = np.zeros((2, 8, 3) if name == "data" else (2, 8))
    for source in (path, tmp_path):
        assert fitting_task({"source": str(source)})[0] == task


def test_objects(tmp_path: Path) -> None:
    """YOLO labels and Pascal VOC annotations mean detection; COCO and folders of masks keep their tasks."""
    found = {name: fitting_task({"source": str(write(tmp_path / name))}) for name, write in WRITERS.items()}
    assert found["yolo"] == ("detection", f"YOLO labels in {tmp_path / 'yolo'}")
    assert found["voc"] == ("detection", f"Pascal VOC annotations in {tmp_path / 'voc'}")
    assert found["coco"][0] == "multilabel"
    assert found["masks"][0] == "segmentation"
    assert fitting_task({"source": str(tmp_path / "yolo/data.yaml")})[0] == "detection"
    (tmp_path / "yolo/data.yaml").write_text("names: [")
    assert fitting_task({"source": str(tmp_path / "yolo")})[0] == "classification"
    for path in (tmp_path / "voc/Annotations").iterdir():
        path.write_text("<annotation/>")
    assert fitting_task({"source": str(tmp_path / "voc")})[0] == "classification"
