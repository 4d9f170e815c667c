"""`attngraft features` as a user types it: what is computed, kept and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import timm
import torch
from PIL import Image

from attngraft.tasks.captioning import encoder
from attngraft.tasks.captioning.features import FeatureFile
from tests.cli.test_export import run
from tests.tasks.images.datasets import picture

HOST = ["--host", "timm:vit_tiny_patch16_224"]
ARGS = ["img_size=32", "depth=1", "embed_dim=24", "num_heads=3", "num_classes=0"]
HOST += [f"--host-arg={each}" for each in ARGS]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "b c").mkdir(parents=True)
    for number, name in enumerate(("a.png", "b c/1.png", "b c/2.png")):
        picture(number).save(folder / name)
    return folder


def rows(path: Path) -> dict[str, np.ndarray]:
    with h5py.File(path) as file:
        return {name: file[name][()] for name in file}


def test_features_are_rows_of_the_grid(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new/features.h5"
    assert run("features", photos, "--out", out, *HOST, "--device", "cpu") == 0
    shown = capsys.readouterr()
    assert f"{out}  3 images new, 0 kept" in shown.out and "random weights" in shown.err
    found = rows(out)
    assert {name: each.shape for name, each in found.items()} == {
        f"{name}_features": (4, 24) for name in ("a.png", "b%20c%2F1.png", "b%20c%2F2.png")
    }
    file = FeatureFile(out)
    assert file.encoder is not None and (file.encoder.name, file.encoder.trained, file.channels) == (HOST[1], False, 24)
    assert list(out.parent.iterdir()) == [out]


def test_only_missing_images_are_computed(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "features.h5"
    options = ["features", photos, "--out", out, *HOST, "--batch", 1, "--device", "cpu"]
    whole = encoder.grid_features
    calls: list[int] = []

    def interrupted(model: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
        calls.append(len(images))
        if len(calls) == 3:  # the first finds the shape
            raise KeyboardInterrupt
        return whole(model, images)

    monkeypatch.setattr(encoder, "grid_features", interrupted)
    assert run(*options) == 130
    assert f"interrupted: finished images are in {out}; run the same command again" in capsys.readouterr().err
    first = rows(out)
    assert len(first) == 1
    assert run(*options) == 0
    assert "2 images new, 1 kept" in capsys.readouterr().out and calls == [1] * 6
    found = rows(out)
    assert len(found) == 3
    for name, each in first.items():
        np.testing.assert_array_equal(found[name], each)


def test_changed_images_are_computed_again(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "features.h5"
    options = ["features", photos, "--out", out, *HOST, "--device", "cpu"]
    assert run(*options) == 0
    first = rows(out)
    picture(7).save(photos / "a.png")
    assert run(*options) == 0
    assert "1 images new, 2 kept" in capsys.readouterr().out
    changed = {name for name, each in rows(out).items() if not np.array_equal(each, first[name])}
    assert changed == {"a.png_features"}
    large = photos / "large.bmp"  # a BMP begins with its last row
    Image.new("RGB", (160, 160), "red").save(large)
    assert run(*options) == 0
    data = large.read_bytes()
    large.write_bytes(data[: 2**16] + bytes(len(data) - 2**16))
    assert run(*options) == 0
    assert capsys.readouterr().out.count("1 images new, 3 kept") == 2


@pytest.mark.parametrize("damage", ["channels", "rows", "not finite", "zeros", "integers", "group", "link", "broken"])
def test_features_that_training_would_refuse_are_computed_again(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    out = tmp_path / "features.h5"
    options = ["features", photos, "--out", out, *HOST, "--device", "cpu"]
    assert run(*options) == 0
    first, name = rows(out), "a.png_features"
    links = {"link": h5py.SoftLink("/b%20c%2F1.png_features"), "broken": h5py.SoftLink("/nowhere")}
    arrays = {
        "channels": first[name][:, :5],
        "rows": first[name][:3],
        "not finite": first[name] * np.float32("nan"),
        "zeros": first[name] * 0,
        "integers": first[name].astype(int),
    }
    with h5py.File(out, "r+") as file:
        stamp = dict(file[name].attrs)
        del file[name]
        if damage == "group":
            file.create_group(name)
        else:
            file[name] = links[damage] if damage in links else arrays[damage]
        if damage not in links:
            file[name].attrs.update(stamp)
    assert run(*options) == 0
    assert "1 images new, 2 kept" in capsys.readouterr().out
    assert all(np.allclose(each, first[entry], atol=1e-5) for entry, each in rows(out).items())


def test_kept_features_in_huge_chunks_are_refused(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "features.h5"
    options = ["features", photos, "--out", out, *HOST, "--device", "cpu"]
    assert run(*options) == 0
    name, sizes = "a.png_features", {"chunks": (2**10, 2**17), "maxshape": (None, None)}
    shape = rows(out)[name].shape
    with h5py.File(out, "r+") as file:
        del file[name]
        file.create_dataset(name, shape=shape, dtype="f4", compression="gzip", **sizes)
    capsys.readouterr()
    assert run(*options) == 2
    assert "cannot be read as features in HDF5 (unpacks from" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["features.h5", ".features.h5.part"])
def test_nothing_is_written_through_links(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / name).symlink_to(tmp_path / "target")
    assert run("features", photos, "--out", tmp_path / "features.h5", *HOST, "--device", "cpu") == 2
    assert f"{name}: is a link, through which nothing is written; delete it" in capsys.readouterr().err
    assert not (tmp_path / "target").exists()


def test_weights_are_loaded_and_named(photos: Path, tmp_path: Path) -> None:
    torch.manual_seed(1)
    arguments: dict[str, Any] = {"img_size": 32, "depth": 1, "embed_dim": 24, "num_heads": 3, "num_classes": 0}
    model = timm.create_model("vit_tiny_patch16_224", **arguments).eval()
    torch.save(model.state_dict(), tmp_path / "own.pth")
    out = tmp_path / "features.h5"
    options = ["--weights", tmp_path / "own.pth", "--device", "cpu"]
    assert run("features", photos, "--out", out, *HOST, *options) == 0
    file = FeatureFile(out)
    assert file.encoder is not None and file.encoder.weights == str(tmp_path / "own.pth")
    created = encoder.create_encoder(file.encoder)
    assert created.digest() == file.encoder_digest
    torch.testing.assert_close(created.model.state_dict(), model.state_dict())


def test_what_cannot_be_done_is_refused(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "features.h5"
    (tmp_path / "empty").mkdir()
    for arguments, message in (
        ([photos, "--pretrained", "--weights", "x.pth"], "--pretrained and --weights both select"),
        ([tmp_path / "none"], "no such folder; give the folder of the images"),
        ([tmp_path / "empty"], "no images in this folder or below it"),
    ):
        assert run("features", *arguments, "--out", out, *HOST) == 2
        assert message in capsys.readouterr().err
    assert not out.exists()
    out.write_text("no HDF5")
    assert run("features", photos, "--out", out, *HOST) == 2
    assert "cannot be read as features in HDF5" in capsys.readouterr().err
    assert out.read_text() == "no HDF5" and len(list(tmp_path.iterdir())) == 3
    out.unlink()
    (photos / "b c/1.png").write_bytes(b"")
    assert run("features", photos, "--out", out, *HOST, "--batch", 1, "--device", "cpu") == 2
    assert "1.png: cannot be read as an image" in capsys.readouterr().err
    assert rows(out).keys() == {"a.png_features"}
    assert run("features", photos, "--out", out, *HOST[:-1], "--device", "cpu", "--host-arg=img_size=64") == 2
    assert "--host-arg img_size is given twice" in capsys.readouterr().err
    assert run("features", photos, "--out", out, "--host", "resnet18", "--device", "cpu") == 2
    assert "has features with host=timm:vit_tiny_patch16_224, not resnet18; use another" in capsys.readouterr().err
    assert rows(out).keys() == {"a.png_features"}
