"""What a run writes down after each epoch: metrics.jsonl and TensorBoard events.

Both hold what the checkpoint knows. A resumed run writes them anew, so that nothing has to be taken back from a file,
and nothing is put in order by a clock, which may have been set back in the meantime.
"""

from __future__ import annotations

import re
import time
from io import BytesIO
from pathlib import Path
from typing import IO

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from attngraft.files import write_atomically, writing
from attngraft.training.run_folder import Metrics, RunFolder


class Journal:
    """Both files, from the epochs that are finished on."""

    def __init__(self, run: RunFolder, rows: list[Metrics]) -> None:
        self._run, self._rows = run, list(rows)
        run.write_metrics(self._rows)
        self._events = EventFile(run.tensorboard, rows)

    def add(self, row: Metrics) -> None:
        """Write down a finished epoch."""
        self._rows.append(row)
        self._run.write_metrics(self._rows)
        self._events.add(row)


class EventFile:
    """TensorBoard's events in one file, written by the caller's own thread.

    TensorBoard reads the files of a folder by name; it names them by time, this class by a number that only grows. Each
    start takes the next number, begins with the rows so far and deletes the files before, which a viewer that is open
    understands as a restart.
    """

    def __init__(self, folder: Path, rows: list[Metrics]) -> None:
        before = sorted(folder.glob("events.out.tfevents.*"))
        numbers = [int(match[1]) for path in before if (match := re.search(r"tfevents\.(\d+)\.attngraft$", path.name))]
        self._path = folder / f"events.out.tfevents.{max(numbers, default=0) + 1:010d}.attngraft"
        content = BytesIO()
        start = Event(session_log=SessionLog(status=SessionLog.START), step=0, wall_time=time.time())
        _write(content, [Event(file_version="brain.Event:2", wall_time=time.time()), start])
        for row in rows:
            _write(content, [_event(row)])
        write_atomically(self._path, content.getvalue())
        for path in before:
            path.unlink(missing_ok=True)

    def add(self, row: Metrics) -> None:
        """Append an epoch. A record that a fault cuts short is made again when the run goes on.

        Raises:
            StorageError: it cannot be written.
        """
        with writing(self._path), self._path.open("ab") as file:
            _write(file, [_event(row)])


def _event(row: Metrics) -> Event:
    values = [Summary.Value(tag=name, simple_value=value) for name, value in row.items() if name != "epoch"]
    return Event(summary=Summary(value=values), step=int(row["epoch"]), wall_time=time.time())


def _write(file: IO[bytes], events: list[Event]) -> None:
    writer = RecordWriter(file)
    for event in events:
        writer.write(event.SerializeToString())
