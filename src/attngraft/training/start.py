"""What a run starts from, kept beside what it comes to: start.json; and what its teacher scores: teacher.json.

A host that brings its weights and its head is evaluated before the first update. A graft that starts as the identity then
scores what the host scores; by how much another one falls short is what training has to win back first.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attngraft.tasks.task import Evaluation
from attngraft.training.run_folder import write_json
from attngraft.training.setup import Job

log = logging.getLogger(__name__)


def record_start(job: Job, evaluate: Callable[[], Evaluation | None]) -> None:
    """Write down what the host starts from, and what the model scores where its head is not new.

    Does nothing where the host starts from random values, or the run goes on from a checkpoint. `evaluate` gives the
    validation metrics, in all processes alike, or None where it was stopped.
    """
    start, counters = job.start, job.learner.counters
    if not start.origin:
        if job.accelerator.is_main_process and not (counters.epoch or counters.step):
            job.run.start.unlink(missing_ok=True)  # of an attempt that saved nothing, with another recipe
        return
    facts: dict[str, Any] = {"from": start.origin}
    if start.path is not None:
        facts |= {"file": str(start.path), "sha256": _sha256(start.path)}
    evaluation = evaluate() if start.whole else None
    if evaluation is not None:
        facts["metrics"] = {f"val/{name}": float(value) for name, value in evaluation.metrics.items()}
    if not job.accelerator.is_main_process:
        return
    if evaluation is not None:
        primary = job.task.primary
        log.info("before training: val/%s %.4g", primary, evaluation.metrics[primary])
    write_json(job.run.start, facts)


def record_teacher(job: Job, evaluate: Callable[[], Evaluation | None]) -> None:
    """Write down what the run's teacher, if it has one, scores on the validation split, before the first update.

    It tells a teacher that has learned these classes, in this order, from one that has not.
    """
    counters = job.learner.counters
    if job.teacher is None or counters.epoch or counters.step:
        return
    evaluation = evaluate()
    if evaluation is None or not job.accelerator.is_main_process:
        return
    metrics = {f"val/{name}": float(value) for name, value in evaluation.metrics.items()}
    primary = f"val/{job.task.primary}"
    log.info("the teacher, %s: %s %.4g", job.teacher.facts["name"], primary, metrics[primary])
    job.run.write_teacher({**job.teacher.facts, "metrics": metrics})


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
