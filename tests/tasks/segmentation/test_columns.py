"""Hugging Face data sets with a column of masks."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from attngraft.errors import ConfigError, DataError
from attngraft.tasks.fitting import fitting_task
from attngraft.tasks.segmentation.config import MaskDataConfig
from attngraft.tasks.segmentation.source import MaskSource, count_labels, open_masks
from tests.cli.test_export import run
from tests.tasks.segmentation.drawings import CLASSES, drawing
from tests.tasks.segmentation.test_task import SMALL

pa = pytest.importorskip("pyarrow")


def encoded(image: Image.Image, form: str = "png") -> dict[str, Any]:
    data = io.BytesIO()
    image.save(data, form)
    return {"bytes": data.getvalue(), "path": None}


def write(folder: Path, *, images: str = "image", masks: str = "label", form: str = "png", **sizes: int) -> Path:
    """Write parquet files with `drawing`s as rows, a file for each split."""
    from pyarrow import parquet

    (folder / "data").mkdir(parents=True)
    number = 0
    for split, count in sizes.items():
        pairs = [drawing(number + index) for index in range(count)]
        columns = {
            "id": list(range(count)),
            images: [encoded(image) for image, _ in pairs],
            masks: [encoded(mask, form) for _, mask in pairs],
        }
        features = {name: {"_type": "Image"} for name in (images, masks)}
        table = pa.table(columns).replace_schema_metadata(
            {b"huggingface": json.dumps({"info": {"features": features}}).encode()}
        )
        parquet.write_table(table, folder / "data" / f"{split}-00000-of-00001.parquet")
        number += count
    (folder / "classes.txt").write_text("".join(f"{name}\n" for name in CLASSES))
    return folder


def opened(source: object, **fields: Any) -> MaskSource:
    return open_masks(MaskDataConfig(source=str(source), **fields))


@pytest.mark.parametrize(
    ("images", "masks"), [("image", "label"), ("pixel_values", "annotation"), ("photo", "segmentation")]
)
def test_columns_with_usual_names(tmp_path: Path, images: str, masks: str) -> None:
    folder = write(tmp_path / "set", images=images, masks=masks, train=4, validation=2, test=1)
    for source in (folder, f"hf:{folder}"):
        found = opened(source)
        assert {name: len(part) for name, part in found.parts().items()} == {"train": 4, "val": 2, "test": 1}
    assert found.labels.classes == CLASSES
    part = pickle.loads(pickle.dumps(found.val))
    image, mask = drawing(5)
    assert np.array_equal(np.asarray(part.image(1)), np.asarray(image))
    assert np.array_equal(part.label(1), np.asarray(mask))
    assert count_labels(part)[1] == [drawing(index)[0].size for index in (4, 5)]
    assert fitting_task({"source": str(folder)})[0] == fitting_task({"source": f"hf:{folder}"})[0] == "segmentation"


def test_named_columns_and_splits(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", images="left", masks="right", train=10)
    found = opened(folder, images="left", masks="right")
    assert (len(found.train), len(found.val)) == (8, 2)
    assert set(found.drawn) == {"train", "val"}
    file = next((folder / "data").iterdir())
    (folder / "data" / "classes.txt").write_text((folder / "classes.txt").read_text())
    assert opened(file, images="left", masks="right").val.names == found.val.names
    with pytest.raises(DataError, match="no color for the class 'ground', and masks are in mode RGB"):
        opened(folder, images="right", masks="left")


def test_a_broken_mask_is_located(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", train=3, validation=1)
    found = opened(folder)
    found.train.labels.table[2] = -1
    where = r"train-00000-of-00001\.parquet: row 0, column 'label': contains the label 2"
    with pytest.raises(DataError, match=where):
        count_labels(found.train)


def test_save_to_disk(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    for index in range(6):
        for kind, image in zip(("image", "mask"), drawing(index), strict=True):
            image.save(tmp_path / f"{kind}{index}.png")
    features = datasets.Features(image=datasets.Image(), mask=datasets.Image())
    columns = {kind: [str(tmp_path / f"{kind}{index}.png") for index in range(6)] for kind in features}
    whole = datasets.Dataset.from_dict(columns, features=features)
    datasets.DatasetDict(train=whole.select(range(4)), validation=whole.select([4, 5])).save_to_disk(tmp_path / "saved")
    found = opened(f"hf:{tmp_path}/saved")
    assert (len(found.train), len(found.val), found.labels.classes) == (4, 2, ("class 0", "class 1", "class 2"))
    assert np.array_equal(found.val.label(1), np.asarray(drawing(5)[1]))


@pytest.mark.parametrize(
    ("written", "fields", "message"),
    [
        ({"masks": "target"}, {}, r"no column of masks \(columns: id, image, target; .*task\.data\.masks=COLUMN"),
        ({}, {"masks": "lable"}, r"task\.data\.masks: the column 'lable' of .*does not exist.*label"),
        (
            {},
            {"images": "id"},
            r"task\.data\.images: the column 'id' of .* contains no images; .*of images: image, label",
        ),
        ({"form": "jpeg"}, {}, r"row 0, column 'label': JPEG, lossy WebP and GIF change the values"),
        ({"other": 2}, {}, r"no training split \(found: other, validation\)"),
        ({}, {"source": "hf:nothing"}, r"hf:nothing: no such file or folder; hf: only reads"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, written: dict[str, Any], fields: dict[str, Any], message: str) -> None:
    sizes = {} if "other" in written else {"train": 2}
    folder = write(tmp_path / "set", **{**sizes, "validation": 1, **written})
    with pytest.raises((ConfigError, DataError), match=message):
        opened(**{"source": folder, **fields})


def test_columns_of_each_file_are_checked(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    folder = write(tmp_path / "set", train=2, validation=1)
    table = pyarrow.table({"image": [encoded(drawing(2)[0])], "label": [[1, 2]]})
    parquet.write_table(table, folder / "data" / "validation-00000-of-00001.parquet")
    with pytest.raises(
        DataError, match=r"validation-.*\.parquet: column 'label' is list<element: int64>; encoded images"
    ):
        opened(folder)


def test_missing_files_are_noted(tmp_path: Path) -> None:
    folder = write(tmp_path / "set", train=2, validation=1)
    assert not opened(folder).notes
    first = folder / "data" / "train-00000-of-00001.parquet"
    part = first.rename(first.with_name("train-00000-of-00003.parquet"))
    assert opened(folder).notes == ("2 files are missing, by the names of the other 2.",)
    assert not opened(part, val_fraction=0.5).notes


def test_copies_of_training_images_are_noted(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    folder = write(tmp_path / "set", train=3, validation=2)
    assert not opened(folder).copies()
    train, val = (folder / "data" / f"{split}-00000-of-00001.parquet" for split in ("train", "validation"))
    parquet.write_table(pyarrow.concat_tables([parquet.read_table(val), parquet.read_table(train)[1:2]]), val)
    assert opened(folder).copies() == [
        f"Leak: 1 val image is a copy of images of an earlier split, such as {val}: row 2, column 'image', so the results "
        "are too good."
    ]


def test_a_study_of_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "set", train=8, validation=2)
    assert run("data", "check", f"hf:{folder}", "--json") == 0
    assert json.loads(capsys.readouterr().out)["sizes"] == {"train": 8, "val": 2}
    sizes = ["--set", "schedule.epochs=1", "--set", "schedule.warmup_epochs=0", "--set", "train.batch_size=4"]
    assert (
        run("train", "--data", f"hf:{folder}", *SMALL, *sizes, "--task", "segmentation", "--out", tmp_path / "run") == 0
    )
    data = json.loads((tmp_path / "run" / "data.json").read_text())
    assert data["facts"]["sizes"] == {"train": 8, "val": 2}
