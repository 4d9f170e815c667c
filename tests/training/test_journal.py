from __future__ import annotations

import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from attngraft.errors import FolderError, StorageError
from attngraft.training.journal import Journal
from attngraft.training.run_folder import RunFolder

ROWS = [{"epoch": epoch, "train/loss": 1.0 / epoch, "lr": 0.1, "seconds": 2.0} for epoch in (1, 2, 3)]


def events(folder: Path) -> list[tuple[int, float]]:
    """What TensorBoard reads."""
    found = EventAccumulator(str(folder))
    found.Reload()
    return [(each.step, each.value) for each in found.Scalars("train/loss")]


def test_both_files_hold_every_epoch(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    journal = Journal(run, [])
    assert run.metrics.read_text() == ""
    for row in ROWS:
        journal.add(row)
    assert [json.loads(line) for line in run.metrics.read_text().splitlines()] == ROWS
    assert events(run.tensorboard) == [(1, 1.0), (2, 0.5), (3, pytest.approx(1 / 3))]


def test_a_resumed_run_holds_what_its_checkpoint_knows(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    first = Journal(run, [])
    for row in ROWS:
        first.add(row)
    with next(run.tensorboard.iterdir()).open("ab") as file:
        file.write(b"half a record")
    again = Journal(run, ROWS[:1])
    assert len(run.metrics.read_text().splitlines()) == 1
    assert events(run.tensorboard) == [(1, 1.0)]
    again.add(ROWS[1] | {"train/loss": 0.25})
    assert events(run.tensorboard) == [(1, 1.0), (2, 0.25)]
    assert [path.name for path in run.tensorboard.iterdir()] == ["events.out.tfevents.0000000002.attngraft"]


def test_files_of_other_writers_give_way(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.tensorboard.mkdir()
    (run.tensorboard / "events.out.tfevents.1700000000.host.12.0").write_bytes(b"")
    Journal(run, ROWS)
    assert len(events(run.tensorboard)) == 3
    assert len(list(run.tensorboard.iterdir())) == 1


def test_an_event_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    journal = Journal(run, [])
    for path in run.tensorboard.iterdir():
        path.unlink()
        path.mkdir()
    with pytest.raises(StorageError, match=r"tfevents\..*: cannot be written: Is a directory"):
        journal.add(ROWS[0])


def test_events_are_not_written_through_a_link(tmp_path: Path) -> None:
    run, elsewhere = RunFolder(tmp_path / "run"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "events.out.tfevents.1.theirs").write_bytes(b"theirs")
    run.path.mkdir()
    run.tensorboard.symlink_to(elsewhere)
    with pytest.raises(FolderError, match=r"tensorboard: is a link, through which nothing is written; delete it"):
        Journal(run, [])
    assert [path.read_bytes() for path in elsewhere.iterdir()] == [b"theirs"]
