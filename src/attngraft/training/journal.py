"""Records of a run besides checkpoints: metrics.jsonl, TensorBoard events, metrics before training.

Metrics and events have the same content as the checkpoint. A resumed run rewrites both from the checkpoint instead of
editing them. Event files are ordered by number, not by time, because the clock may have been set back.
"""

import hashlib
import logging
import os
import re
import time
from collections.abc import Callable
from io import BufferedWriter, BytesIO
from pathlib import Path
from typing import IO, Any

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from attngraft.errors import FolderError
from attngraft.files import open_in_place, write_atomically, writing
from attngraft.opening import open_regular
from attngraft.tasks.task import Evaluation
from attngraft.training.run_folder import Metrics, RunFolder, write_json
from attngraft.training.setup import RunContext

log = logging.getLogger(__name__)


class Journal:
    """metrics.jsonl and TensorBoard events of a run, rewritten from `rows` when training starts.

    TensorBoard reads the event files of a folder in the order of their names. Names contain a number instead of the
    time: each start uses the next number, writes all rows so far, and deletes older files. An open viewer shows a restart.
    torch's SummaryWriter is not used: it writes from a thread, where a full disk raises no error in the run.
    """

    def __init__(self, run: RunFolder, rows: list[Metrics]) -> None:
        self._run, self._rows = run, list(rows)
        run.write_metrics(self._rows)
        for folder in (run.tensorboard, run.checkpoints):
            if folder.is_symlink():
                raise FolderError(f"{folder}: is a link, through which nothing is written; delete it, or move the run")
        before = sorted(run.tensorboard.glob("events.out.tfevents.*"))
        numbers = [int(match[1]) for path in before if (match := re.search(r"tfevents\.(\d+)\.attngraft$", path.name))]
        self._events = run.tensorboard / f"events.out.tfevents.{max(numbers, default=0) + 1:010d}.attngraft"
        content = BytesIO()
        start = Event(session_log=SessionLog(status=SessionLog.START), step=0, wall_time=time.time())
        _write(content, [Event(file_version="brain.Event:2", wall_time=time.time()), start, *map(_event, rows)])
        write_atomically(self._events, content.getvalue())
        for path in before:
            path.unlink(missing_ok=True)

    def add(self, row: Metrics) -> None:
        """Append the metrics of an evaluation.

        A record truncated by a crash is rewritten when the run resumes.

        Raises:
            StorageError: a file cannot be written.
        """
        self._rows.append(row)
        self._run.write_metrics(self._rows)
        with writing(self._events), BufferedWriter(open_in_place(self._events, os.O_WRONLY | os.O_APPEND)) as file:
            _write(file, [_event(row)])


def _event(row: Metrics) -> Event:
    values = [
        Summary.Value(tag=name, simple_value=value) for name, value in row.items() if name not in ("epoch", "step")
    ]
    return Event(summary=Summary(value=values), step=int(row.get("step", row["epoch"])), wall_time=time.time())


def _write(file: IO[bytes], events: list[Event]) -> None:
    writer = RecordWriter(file)
    for event in events:
        writer.write(event.SerializeToString())


def record_start(run: RunContext, evaluate: Callable[[], Evaluation | None]) -> None:
    """Write start.json: the initial weights, and their validation metrics if the head is not new.

    With grafts that start as the identity, these are the host's metrics; with other grafts they are lower, and training
    must first recover the difference. Writes nothing for random initial values, or if the run resumes from a checkpoint.
    `evaluate` returns the same metrics in all processes, or None if stopped.
    """
    start, counters = run.start, run.state.counters
    if not start.origin:
        if run.accelerator.is_main_process and not counters.moved:
            run.folder.start.unlink(missing_ok=True)  # left by an attempt with another recipe that saved nothing
        return
    facts: dict[str, Any] = {"from": start.origin}
    if start.path is not None:
        facts |= {"file": str(start.path), "sha256": _sha256(start.path)}
    evaluation = evaluate() if start.whole and run.recipe.schedule.trains else None
    if evaluation is not None:
        facts["metrics"] = _metrics(evaluation)
    if not run.accelerator.is_main_process:
        return
    if evaluation is not None:
        primary = run.task.primary
        log.info("before training: val/%s %.4g", primary, evaluation.metrics[primary])
    write_json(run.folder.start, facts)


def record_teacher_metrics(run: RunContext, evaluate: Callable[[], Evaluation | None]) -> None:
    """Add the validation metrics of the teacher, if any, to teacher.json before the first update.

    These metrics expose a teacher that was trained on other classes, or on the same classes in another order.
    """
    if run.teacher is None or run.state.counters.moved:
        return
    evaluation = evaluate()
    if evaluation is None or not run.accelerator.is_main_process:
        return
    metrics = _metrics(evaluation)
    primary = f"val/{run.task.primary}"
    log.info("the teacher, %s: %s %.4g", run.teacher.facts["name"], primary, metrics[primary])
    run.folder.write_teacher({**run.teacher.facts, "metrics": metrics})


def _metrics(evaluation: Evaluation) -> dict[str, float]:
    return {f"val/{name}": float(value) for name, value in evaluation.metrics.items()}


def _sha256(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
