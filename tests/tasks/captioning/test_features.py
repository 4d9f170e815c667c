"""Features are found by COCO's id or the image's path; what is wrong is named."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from attngraft.errors import ConfigError, DataError
from attngraft.tasks.captioning.config import CaptionDataConfig, CaptioningConfig
from attngraft.tasks.captioning.encoder import EncoderConfig
from attngraft.tasks.captioning.features import FeatureFile, described, key_of, open_features
from tests.tasks.captioning import pictures
from tests.tasks.captioning.pictures import CHANNELS, opened, rows, write_features


def config(folder: Path, **fields: Any) -> CaptioningConfig:
    return CaptioningConfig(data=CaptionDataConfig(source=str(folder)), **fields)


@pytest.mark.parametrize("ids", [False, True])
def test_rows_are_those_of_the_image(tmp_path: Path, ids: bool) -> None:
    pictures.write_coco(tmp_path)
    write_features(tmp_path / "features.h5", ids=ids)
    source = opened(tmp_path)
    found = open_features(config(tmp_path), source)
    assert (len(found), found.channels, found.encoder) == (9, CHANNELS, None)
    for file in (found, pickle.loads(pickle.dumps(found))):
        np.testing.assert_array_equal(file.rows(source.val, 1), rows(6, regions=10))


def test_detectors_are_cut_to_50_regions_and_grids_are_whole(tmp_path: Path) -> None:
    pictures.write_jsonl(tmp_path)
    source = opened(tmp_path)
    encoder = EncoderConfig(name="vit", args={"img_size": 32}, weights="/vit.pth")
    for attributes, count in (({}, 50), (described(encoder), 60)):
        found = FeatureFile(write_features(tmp_path / "x.h5", regions=60, **attributes))
        np.testing.assert_array_equal(found.rows(source.train, 0), rows(0, regions=60)[:count])
        assert found.encoder == (encoder if attributes else None)


def test_features_of_two_images_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures.write_coco(tmp_path)
    write_features(tmp_path / "features.h5", ids=True)
    source, message = opened(tmp_path), "_features of .* may be that of another image; name all features by COCO's ids"
    with h5py.File(tmp_path / "features.h5", "a") as file:
        file[f"{key_of(source.val.names[0])}_features"] = rows(0)
    with pytest.raises(DataError, match=message):
        open_features(config(tmp_path), source)
    write_features(tmp_path / "features.h5", ids=True)
    key = open_features(config(tmp_path), source).key(source.val, 0)
    monkeypatch.setattr(FeatureFile, "key", lambda *_: key)
    with pytest.raises(DataError, match=message):
        open_features(config(tmp_path), source)


def test_paths_below_any_folder_are_keys(tmp_path: Path) -> None:
    pictures.write_coco(tmp_path)
    pictures.write_images(tmp_path / "val2014")
    source = opened(tmp_path)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file[f"{key_of('val2014/5.png')}_features"] = rows(5)
        file["6.png_features"] = rows(6)
    found = FeatureFile(tmp_path / "x.h5")
    assert [found.key(source.val, i) for i in range(2)] == ["val2014%2F5.png", "6.png"]
    assert found.key(source.train, 0) is None and "6.png" in found


def test_images_without_features_are_named(tmp_path: Path) -> None:
    pictures.write_jsonl(tmp_path)
    source, path = opened(tmp_path), write_features(tmp_path / "features.h5")
    with h5py.File(path, "a") as file:
        del file["5.png_features"]
    with pytest.raises(
        DataError,
        match=r"features.h5: has no features of 1 of 2 images \(5.png; .*captions_val.jsonl: line 1\); add them",
    ):
        open_features(config(tmp_path), source)
    with pytest.raises(DataError, match=r"features.h5: has no features of 5.png; add them"):
        FeatureFile(path).rows(source.val, 0)


def test_missing_files_say_how_to_write_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures.write_jsonl(tmp_path)
    source = opened(tmp_path)
    with pytest.raises(
        DataError, match=r"features.h5: no features of the images; compute them with attngraft features"
    ):
        open_features(config(tmp_path), source)
    with pytest.raises(DataError, match=r"x.h5: no such file; write it with attngraft features"):
        open_features(config(tmp_path, features=str(tmp_path / "x.h5")), source)
    write_features(tmp_path / "features.h5")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ConfigError, match=r"requires h5py; run pip install 'attngraft\[captioning\]'"):
        open_features(config(tmp_path), source)


def replaced(value: Any) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        del file["6.png_features"]
        file["6.png_features"] = value

    return change


WRONG: list[tuple[Callable[[h5py.File], Any], str]] = [
    (replaced(np.zeros((4, 7), np.float32)), "6.png_features of 6.png has 7 channels, but other images 6; compute all"),
    (replaced(np.zeros((4,), np.float32)), r"of 6.png must be floats \(regions, channels\), got float32 \(4,\)"),
    (replaced(np.zeros((0, 6), np.float32)), r"must be floats \(regions, channels\), got float32 \(0, 6\)"),
    (replaced(np.zeros((4, 6), np.int64)), r"must be floats \(regions, channels\), got int64"),
    (replaced(np.full((4, 6), np.nan)), r"6.png_features of 6.png contains numbers that are not finite"),
    (replaced(np.full((4, 6), 1e300)), r"6.png_features of 6.png contains numbers that are not finite"),
    (replaced(np.zeros((4, 6), np.float32)), r"6.png_features of 6.png has only zeros; compute it again"),
    (replaced(h5py.SoftLink("/5.png_features")), r"6.png_features is not an array in this file"),
    (replaced(h5py.ExternalLink("/etc/passwd", "/x")), r"6.png_features is not an array in this file"),
    (replaced(h5py.Empty("f4")), r"6.png_features is not an array in this file"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_wrong_entries_are_named(tmp_path: Path, change: Callable[[h5py.File], Any], message: str) -> None:
    pictures.write_jsonl(tmp_path)
    path = write_features(tmp_path / "features.h5")
    with h5py.File(path, "a") as file:
        change(file)
    source = opened(tmp_path)
    with pytest.raises(DataError, match=message) as error:
        open_features(config(tmp_path), source).rows(source.val, 1)
    assert str(path) in str(error.value)


def test_attributes_of_variable_length_are_not_read(tmp_path: Path) -> None:
    """If they are damaged, the HDF5 library ends the process."""
    write_features(tmp_path / "features.h5", **described(EncoderConfig(name="vit")), digest="af12")
    assert FeatureFile(tmp_path / "features.h5").encoder == EncoderConfig(name="vit")
    with h5py.File(tmp_path / "features.h5", "r+") as file:
        assert all(file.attrs.get_id(name).dtype.kind == "S" for name in file.attrs)
        file.attrs["digest"] = "af12"
    with pytest.raises(DataError, match=r"features\.h5: .*attribute digest has a variable length.*write it again"):
        FeatureFile(tmp_path / "features.h5")


def test_files_of_another_layout_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["features"] = rows(0)
    with pytest.raises(DataError, match=r"x.h5: contains no <image>_features; give a file of features"):
        FeatureFile(path)
    path.write_text("text")
    with pytest.raises(DataError, match=r"x.h5: cannot be read as features in HDF5"):
        FeatureFile(path)
    with h5py.File(path, "w") as file:
        file.create_dataset("a_features", shape=(2**20, 2**12), dtype="f4", chunks=(64, 64), compression="gzip")
    with pytest.raises(DataError, match=r"a_features: cannot be read .*unpacks"):
        FeatureFile(path)
    with h5py.File(path, "w") as file:
        file.create_dataset(
            "a_features", (2, 8), "f4", chunks=(2**17, 2**10), maxshape=(None, None), compression="gzip"
        )
    with pytest.raises(DataError, match=r"a_features: cannot be read .*unpacks"):
        FeatureFile(path)
    grid = {"host": "timm:resnet18", "args": "{}", "pretrained": "", "weights": ""}
    write_features(path, **grid)
    with h5py.File(path, "a") as file:
        file.create_dataset("x_features", (2**14 + 1, 6), "f4", fillvalue=1)
    with pytest.raises(
        DataError, match=r"x_features of x has 16385 rows, more than 16384; compute it with smaller images"
    ):
        FeatureFile(path)._read("x", "x")
