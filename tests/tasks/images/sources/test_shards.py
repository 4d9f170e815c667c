"""Many tars, as WebDataset writes them and as class folders."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from attngraft import cache
from attngraft.errors import ConfigError, DataError
from attngraft.tasks.images.config import DataConfig
from attngraft.tasks.images.sources import ImageSource, open_source, tar
from attngraft.tasks.images.sources import table as label_tables
from attngraft.tasks.images.sources.tar import expanded, grouped
from tests.tasks.images.datasets import load, make_tar, picture


def png(number: int) -> bytes:
    data = io.BytesIO()
    picture(number).save(data, "png")
    return data.getvalue()


def make_shard(path: Path, members: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def make_shards(folder: Path, name: str, *, shards: int = 3, each: int = 6) -> None:
    """Samples of `<key>.jpg` (a png inside) and `<key>.cls`; labels go 0, 1, 2, 0, ..."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(shards):
        members: dict[str, bytes] = {}
        for i in range(each):
            number = shard * each + i
            members[f"{number:06d}.jpg"] = png(number)
            members[f"{number:06d}.cls"] = str(number % 3).encode()
        make_shard(folder / f"{name}-{shard:03d}.tar", members)


def parts_of(source: object, **fields: object) -> ImageSource:
    return open_source(DataConfig(source=str(source), **fields))  # type: ignore[arg-type]


def test_patterns() -> None:
    assert expanded("a-{08..11}.tar") == ["a-08.tar", "a-09.tar", "a-10.tar", "a-11.tar"]
    assert expanded("{train,val}-{0..1}.tar") == ["train-0.tar", "train-1.tar", "val-0.tar", "val-1.tar"]
    assert expanded("plain.tar") == ["plain.tar"]
    with pytest.raises(DataError, match="is not a pattern"):
        expanded(f"x-{{0..{5000 * '9'}}}.tar")
    with pytest.raises(DataError, match=r"\{0\.\.999999999\} has more than 1,000,000 shards; correct the pattern"):
        expanded("x-{0..999999999}.tar")
    for wrong in ("{3..1}.tar", "{a..b}.tar", "{}.tar"):
        with pytest.raises(DataError, match=r"must increase|is not a pattern"):
            expanded(wrong)
    named = ["birds-train-000.tar", "birds-train-001.tar", "birds-validation-0.tar", "x_12.tar", "7.tar"]
    groups = {name: [path.name for path in paths] for name, paths in grouped([Path(name) for name in named]).items()}
    assert groups == {"train": named[:2], "validation": named[2:3], "x": named[3:4], "": ["7.tar"]}


def test_labels_beside_the_images(tmp_path: Path) -> None:
    make_shards(tmp_path, "birds")
    data = load(f"{tmp_path}/birds-{{000..002}}.tar")
    assert data.facts["kind"] == "webdataset"
    assert data.facts["classes"] == ["0", "1", "2"]
    assert data.facts["sizes"] == {"train": 15, "val": 3}
    assert data.facts["split"].startswith("0.2 of each class of birds-000.tar to birds-002.tar for validation")
    names = [data.train.name(i) for i in range(15)]
    place = names.index("birds-001.tar/000007.jpg")
    assert data.train[(0, place)][1] == 1
    images = data.train.images  # type: ignore[attr-defined]
    assert np.array_equal(np.asarray(images.open(place)), np.asarray(picture(7)))


def test_a_folder_of_shards_with_parts(tmp_path: Path) -> None:
    make_shards(tmp_path, "birds-train", shards=3)
    make_shards(tmp_path, "birds-val", shards=1)
    for source in (tmp_path, f"{tmp_path}/birds-{{train-000,train-001,train-002,val-000}}.tar"):
        data = load(source)
        assert data.facts["sizes"] == {"train": 18, "val": 6}
    only = parts_of(tmp_path, val_fraction=0.5)
    assert (len(only.train), only.val) == (18, None)
    make_shards(tmp_path, "birds-test", shards=1, each=3)
    assert len(parts_of(tmp_path, val_split="test").val or ()) == 3


def test_fields_in_json_and_further_images_of_a_sample(tmp_path: Path) -> None:
    members: dict[str, bytes] = {}
    for i in range(8):
        members[f"s/{i}.png"] = png(i)
        members[f"s/{i}.mask.png"] = png(100 + i)
        members[f"s/{i}.json"] = json.dumps({"label": "ab"[i % 2], "tags": ["x"] if i % 2 else ["x", "y"]}).encode()
        members[f"s/{i}.txt"] = b"a caption"
    path = make_shard(tmp_path / "x.tar", members)
    found = parts_of(path)
    assert found.classes == ("a", "b")
    assert found.train.names == [f"s/{i}.png" for i in range(8)]
    several = parts_of(path, label_column="tags")
    assert several.multilabel
    assert several.train.labels[:2].tolist() == [[1, 1], [1, 0]]
    with pytest.raises(ConfigError, match=r"label_column: .*x\.tar has no column 'tag' \(did you mean tags\?\)"):
        parts_of(path, label_column="tag")


def test_fields_of_their_own_in_json_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_tables, "_FREE_ENTRIES", 1000)
    for shard in range(2):
        members = {f"{i}.png": png(i) for i in range(100)} | {f"{i}.cls": b"ab" for i in range(100)}
        make_shard(
            tmp_path / f"x-{shard}.tar", members | {"7.json": json.dumps({f"{i}": 0 for i in range(50)}).encode()}
        )
    with pytest.raises(DataError, match=r"x-0\.tar/\d+\.png: the \d+ objects up to here have 51 different fields"):
        parts_of(tmp_path)


def test_class_folders_in_shards(tmp_path: Path) -> None:
    for shard in range(3):
        make_tar(tmp_path / f"x-{shard}.tar", {"a": 2, "b": 3} if shard else {"a": 2}, prefix="all/")
    found = parts_of(tmp_path)
    assert found.kind == "tar"
    assert found.classes == ("a", "b")
    assert np.bincount(found.train.labels).tolist() == [6, 6]
    assert "x-2.tar/all/b/1.png" in found.train.names


def test_refused(tmp_path: Path) -> None:
    make_shards(tmp_path, "birds")
    with pytest.raises(DataError, match=r"2 of 5 shards do not exist \(first: .*birds-003\.tar"):
        load(f"{tmp_path}/birds-{{000..004}}.tar")
    make_shard(tmp_path / "birds-003.tar", {"9.jpg": png(9)})
    with pytest.raises(DataError, match=r"birds-003\.tar/9\.jpg: column 'label' contains no label"):
        load(f"{tmp_path}/birds-{{000..003}}.tar")
    make_shard(tmp_path / "birds-003.tar", {"9.cls": b"1"})
    with pytest.raises(DataError, match=r"birds-003\.tar: contains no images"):
        load(f"{tmp_path}/birds-{{000..003}}.tar")
    make_shard(tmp_path / "bad.tar", {"1.jpg": png(1), "1.json": b"{"})
    with pytest.raises(DataError, match=r"bad\.tar: 1\.jpg: the \.json file cannot be read"):
        load(tmp_path / "bad.tar")
    make_shard(tmp_path / "bad.tar", {"1.jpg": png(1), "1.json": b"[1]"})
    with pytest.raises(DataError, match=r"bad\.tar: 1\.jpg: the \.json file contains no fields"):
        load(tmp_path / "bad.tar")


def test_a_tar_is_indexed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.ENVIRONMENT, str(tmp_path / "cache"))
    make_shards(tmp_path, "birds")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.tar")}
    names = parts_of(f"{tmp_path}/birds-{{000..002}}.tar").train.names
    gone = tar._read_index
    through: list[Path] = []

    def counted(path: Path) -> tar.TarIndex:
        through.append(path)
        return gone(path)

    monkeypatch.setattr(tar, "_read_index", counted)
    assert parts_of(f"{tmp_path}/birds-{{000..002}}.tar").train.names == names
    assert not through
    make_shard(tmp_path / "birds-001.tar", {"x.jpg": png(3), "x.cls": b"2"})
    assert len(parts_of(f"{tmp_path}/birds-{{000..002}}.tar").train) == 13
    assert through == [tmp_path / "birds-001.tar"]
    left = {path for path in tmp_path.iterdir() if path.name != "cache"}
    assert left == set(before), "nothing is written beside the data"


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(cache.ENVIRONMENT, str(tmp_path / "file" / "cache"))
    make_shards(tmp_path, "birds")
    assert len(load(f"{tmp_path}/birds-{{000..002}}.tar").train) == 15


def test_shards_one_behind_the_other(tmp_path: Path) -> None:
    make_shards(tmp_path, "birds", shards=6, each=30)
    source = f"{tmp_path}/birds-{{000..005}}.tar"
    split = load(source, data={"order": "shards", "shuffle_buffer": 10}, augment={"crop": "resized"}).train
    orders = [split.order(seed=0, epoch=epoch) for epoch in range(3)]
    again = load(source, data={"order": "shards", "shuffle_buffer": 10}).train.order(seed=0, epoch=1)
    shards = split.images.shard_index[:, 0]  # type: ignore[attr-defined]
    for order in orders:
        assert order is not None
        assert sorted(order) == list(range(len(split)))
        visited = shards[order]
        middles = [np.flatnonzero(visited == shard).mean() for shard in range(6)]
        spans = [np.ptp(np.flatnonzero(visited == shard)) for shard in range(6)]
        assert max(spans) < 24 + 2 * 10, "a shard is read within its turn and the buffer"
        assert sorted(middles) != middles, "shards come in another order"
    assert np.array_equal(orders[1], again)  # type: ignore[arg-type]
    assert not np.array_equal(orders[0], orders[1])  # type: ignore[arg-type]
    assert not np.array_equal(orders[0], split.order(seed=1, epoch=0))  # type: ignore[arg-type]
    assert load(source).train.order(seed=0, epoch=0) is None, "unasked, the engine shuffles"


def test_an_order_of_shards_depends_on_their_list_and_not_on_where_they_lie(tmp_path: Path) -> None:
    make_shards(tmp_path / "here", "birds", shards=6, each=30)
    shutil.copytree(tmp_path / "here", tmp_path / "there" / "and deeper")

    def taken(folder: Path, shards: str) -> list[str]:
        """Names of the training images in the order of an epoch; what is for validation is drawn apart."""
        data = {"order": "shards", "shuffle_buffer": 10, "split_file": str(tmp_path / "split.csv")}
        split = load(f"{folder}/birds-{{{shards}}}.tar", data=data).train
        order = split.order(seed=0, epoch=3)
        assert order is not None
        return [split.name(int(index)) for index in order]

    names = [f"birds-{number // 30:03d}.tar/{number:06d}.jpg" for number in range(180)]
    rows = [f"{name},{'val' if number % 10 < 3 else 'train'}" for number, name in enumerate(names)]
    (tmp_path / "split.csv").write_text("\n".join(["name,part", *rows]), encoding="utf-8")
    everything = taken(tmp_path / "here", "000..005")
    assert taken(tmp_path / "there" / "and deeper", "000..005") == everything
    assert taken(tmp_path / "here", "000,001,002,003,004,005") == everything, "the same list, written otherwise"
    fewer = taken(tmp_path / "here", "000..004")
    assert fewer != [name for name in everything if not name.startswith("birds-005.tar")]
    turned = taken(tmp_path / "here", "001,000,002,003,004,005")
    assert sorted(turned) == sorted(everything)
    assert turned != everything


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"augment": {"repeats": 2}}, r"task\.augment\.repeats: cannot be combined with task"),
        ({"sampling": "balanced"}, r"task\.sampling: cannot be combined with task"),
    ],
)
def test_an_order_of_shards_goes_with_no_other(tmp_path: Path, sections: dict[str, object], message: str) -> None:
    make_shards(tmp_path, "birds")
    with pytest.raises(ConfigError, match=message):
        load(f"{tmp_path}/birds-{{000..002}}.tar", data={"order": "shards"}, **sections)
    with pytest.raises(ConfigError, match=r"task\.data\.order=shards is only for tars"):
        load("digits", size=8, data={"order": "shards"})
