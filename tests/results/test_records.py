"""Records: collected in any order and by any number of processes, written, and read column by column."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

from attngraft.errors import TrainingError
from attngraft.results.records import Column, RecordCollector, Records, RecordTable, open_records, write_records
from attngraft.tasks.classification.evaluator import measure as measure_classes
from attngraft.tasks.multilabel.evaluator import measure as measure_labels

NAMES = [f"image {index}" for index in range(7)]


def boxes(index: int) -> np.ndarray:
    """As many boxes as the index says."""
    return np.arange(4 * index, dtype=np.float32).reshape(index, 4) + index


def batch(*indices: int) -> Records:
    return Records(
        statistics={"hit": np.array(indices) % 2 == 0, "boxes": [boxes(index) for index in indices]},
        outputs={"caption": [np.array(f"{index} of them") for index in indices]},
    )


def collected(*batches: tuple[int, ...]) -> RecordCollector:
    collector = RecordCollector(NAMES)
    for indices in batches:
        collector.add(np.array(indices, dtype=np.int64), batch(*indices))
    return collector


def assert_equal(found: Column, expected: Column) -> None:
    assert isinstance(found, list) == isinstance(expected, list)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
        assert np.asarray(one).shape == np.asarray(other).shape


def assert_whole(table: RecordTable) -> None:
    assert table.names.tolist() == NAMES
    assert set(table) == {"hit", "boxes", "caption"}
    assert table.outputs == {"caption"}
    assert_equal(table["hit"], np.array([True, False] * 3 + [True]))
    assert_equal(table["boxes"], [boxes(index) for index in range(7)])
    assert [str(each) for each in table["caption"]] == [f"{index} of them" for index in range(7)]


def test_batches_in_any_order_with_repeated_examples() -> None:
    assert_whole(collected((6, 0, 6), (3, 2), (0, 3), (1, 5, 4)).table())


def test_files_of_processes_are_merged(tmp_path: Path) -> None:
    """The last ones repeat examples to fill their batches, or have none."""
    parts = [collected((5, 2), (0,)), collected((1, 3), (4, 6)), collected((6, 0), (1, 5)), collected()]
    files = [tmp_path / f"part{number}" for number in range(len(parts))]
    for part, file in zip(parts, files, strict=True):
        part.write_part(file)
    for merged in (RecordCollector(NAMES), collected((3, 0))):
        for file in files:
            merged.add_part(file)
        assert_whole(merged.table())


def test_statistics_of_other_processes_without_their_outputs(tmp_path: Path) -> None:
    collected((5, 2, 0), (1, 3, 4, 6)).write_part(tmp_path / "part")
    merged = RecordCollector(NAMES)
    merged.add_part(tmp_path / "part", outputs=False)
    assert set(merged.table()) == {"hit", "boxes"}
    assert not merged.table().outputs


def test_a_column_may_be_ragged_in_some_batches() -> None:
    collector = RecordCollector(NAMES[:3])
    collector.add(np.array([2, 0]), Records(statistics={"mask": np.ones((2, 3, 3))}))
    collector.add(np.array([1]), Records(statistics={"mask": [np.zeros((2, 5))]}))
    assert_equal(collector.table()["mask"], [np.ones((3, 3)), np.zeros((2, 5)), np.ones((3, 3))])


def test_missing_examples_and_rows_are_named() -> None:
    with pytest.raises(TrainingError, match=r"2 of 7 examples are missing \(image 3, image 5"):
        collected((6, 0), (1, 2, 4)).table()
    with pytest.raises(TrainingError, match="indices 5 to 7 are out of range for 7 examples"):
        collected((5, 7))
    collector = collected((0, 1, 2, 3), (4, 5))
    collector.add(np.array([6]), Records(statistics={"hit": np.array([True])}))
    with pytest.raises(TrainingError, match="column boxes has 6 rows for 7 examples"):
        collector.table()


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "predictions.npz"
    table = collected((6, 0, 6), (3, 2), (1, 5, 4)).table()
    write_records(path, table)
    with open_records(path) as found:
        assert_whole(found)
        assert (found.score, found.binary) == (None, False)
        assert "name" not in found and "boxes.offsets" not in found
        with pytest.raises(KeyError):
            found["name"]
        with pytest.raises(TrainingError, match="the rows of boxes have different shapes"):
            found.array("boxes")
    score = np.linspace(0, 1, 7)
    write_records(path, RecordTable(names=table.names, columns={}, score=score, binary=True))
    with open_records(path) as found:
        assert (len(found), found.binary, found.outputs) == (0, True, frozenset())
        np.testing.assert_array_equal(found.score, score)


def test_ragged_columns_without_any_value(tmp_path: Path) -> None:
    path = tmp_path / "predictions.npz"
    columns: dict[str, Column] = {"boxes": [boxes(0), boxes(0)], "nothing": []}
    write_records(path, RecordTable(names=np.array(["a", "b"]), columns=columns))
    with open_records(path) as found:
        assert_equal(found["boxes"], columns["boxes"])
        assert_equal(found["nothing"], [])


def member(path: Path, name: str) -> int:
    """Return where in the file the values of a column begin."""
    with zipfile.ZipFile(path) as file:
        entry = file.getinfo(f"{name}.npy")
    return entry.header_offset + 30 + len(entry.filename) + 20  # behind the local header, in the compressed data


def test_a_column_is_read_without_the_others(tmp_path: Path) -> None:
    """Damage to one is found when it is read, and the others are there."""
    path = tmp_path / "predictions.npz"
    write_records(path, collected((6, 0), (3, 2), (1, 5, 4)).table())
    content = bytearray(path.read_bytes())
    place = member(path, "boxes")
    content[place : place + 16] = b"\xff" * 16
    path.write_bytes(content)
    with open_records(path) as found:
        assert_equal(found["hit"], np.array([True, False] * 3 + [True]))
        assert len(found["caption"]) == 7
        with pytest.raises(TrainingError, match=r"predictions\.npz: .*cannot be read.*delete this run's folder"):
            found["boxes"]


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "text", "no names", "offsets"])
def test_damaged_files_are_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "predictions.npz"
    write_records(path, collected((6, 0), (3, 2), (1, 5, 4)).table())
    if damage == "missing":
        path.unlink()
    elif damage == "no names":
        np.savez(path, hit=np.ones(7))
    elif damage == "offsets":
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        np.savez(path, **arrays | {"boxes.offsets": arrays["boxes.offsets"][:-2]})
    else:
        content = path.read_bytes()
        path.write_bytes({"empty": b"", "cut": content[: len(content) // 2], "text": b"name,score\n"}[damage])
    with (
        pytest.raises(TrainingError, match=r"predictions\.npz: the run's predictions cannot be read"),
        open_records(path) as found,
    ):
        found["boxes"]


def test_files_of_earlier_versions(tmp_path: Path) -> None:
    """Without the columns that later versions added: metrics that need them are left out, or come from the logits."""
    path = tmp_path / "predictions.npz"
    logits = np.random.default_rng(0).normal(size=(7, 6)).astype(np.float32)
    target = np.arange(7) % 6
    hit = logits.argmax(1) == target
    old = {"name": NAMES, "score": hit.astype(float), "binary": np.array(True)}
    np.savez_compressed(path, **old, target=target, predicted=logits.argmax(1), confidence=np.ones(7), logits=logits)
    with open_records(path) as table:
        assert (table.binary, list(table)) == (True, ["target", "predicted", "confidence", "logits"])
        found = measure_classes(table, classes=6)
    assert list(found.statistics) == ["top1", "top5", "balanced_accuracy", "macro_f1"]
    assert found.values["top5"] == np.mean(logits[np.arange(7), target] > logits.min(axis=1))
    np.savez_compressed(path, **old, target=np.eye(6, dtype=bool)[target], logits=logits)
    with open_records(path) as table:
        assert list(measure_labels(table, threshold=0.5).statistics) == ["image_ap", "map", "macro_f1", "micro_f1"]
