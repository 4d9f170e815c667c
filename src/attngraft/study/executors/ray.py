"""Executor that trains runs as Ray tasks, on a cluster or locally.

It requires `pip install 'attngraft[ray]'`. Ray schedules each run by the resources it requests. If a worker or a node dies,
the run is submitted again and resumes from its last checkpoint. The study's folder and the data must be on storage that all
nodes mount at the same path. Nodes do not communicate otherwise, so progress is read from the runs' folders.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attngraft.errors import TrainingError, UsageError
from attngraft.files import write_atomically
from attngraft.study.executors.base import PATIENCE, Outcome, Pool, RunTask, TrainRun, run_task, sigterm_interrupts
from attngraft.study.executors.placement import ProcessPlacement, concurrent_runs, run_threads
from attngraft.study.plan import existing_run
from attngraft.training.progress import Progress, Silent
from attngraft.training.recipe import Recipe

log = logging.getLogger(__name__)

LOCAL = "local"
BEACON = ".ray"  #: file that a node reads to check that it has access to the study's folder
_POLL_SECONDS = 1.0  #: seconds between reads of the runs' folders
_GRACE_SECONDS = 600.0  #: seconds to wait for runs to save and stop


@dataclass(frozen=True, kw_only=True)
class Ray:
    """Train runs as Ray tasks; a run whose worker or node dies is resumed up to `retries` times.

    Args:
        address: address of the cluster ("auto", "10.0.0.1:6379", "ray://..."), or "local" to start Ray on this machine.
        cpus: CPUs per run; None: the run's number of threads.
        gpus: GPUs per run, possibly a fraction; None: one, if the cluster has GPUs.
        retries: maximum number of times that a run is resumed.

    Raises:
        UsageError: Ray is not installed, `cpus` or `gpus` is negative, or the cluster cannot be reached.
    """

    address: str = LOCAL
    cpus: float | None = None
    gpus: float | None = None
    retries: int = 3

    def __post_init__(self) -> None:
        if importlib.util.find_spec("ray") is None:
            raise UsageError("--ray requires Ray; run pip install 'attngraft[ray]'")
        for name, value in (("cpus", self.cpus), ("gpus", self.gpus)):
            if value is not None and value < 0:
                raise UsageError(f"--{name}-per-run must not be negative; got {value:g}")

    def concurrency(self, recipe: Recipe) -> int:
        if self.address == LOCAL:
            return concurrent_runs(os.cpu_count() or 1, recipe)
        with self._cluster() as ray:
            return max(_slots(ray, self._resources(ray, recipe)), 1)

    @contextmanager
    def pool(self, *, train_run: TrainRun, recipe: Recipe, out: Path) -> Iterator[Pool]:
        with self._cluster() as ray:
            beacon = write_atomically(out.resolve() / BEACON, f"{socket.gethostname()} {os.getpid()}\n")
            pool = _RayPool(ray, train_run, recipe=recipe, resources=self._resources(ray, recipe), beacon=beacon)
            try:
                with sigterm_interrupts():
                    yield pool
            finally:
                pool.close()
                beacon.unlink(missing_ok=True)

    @contextmanager
    def _cluster(self) -> Iterator[Any]:
        """Connect to the cluster; an existing connection is reused and stays open."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no usage reports unless the user enabled them
        import ray  # optional

        if ray.is_initialized():
            yield ray
            return
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
        if self.address == LOCAL:
            options |= {"include_dashboard": False}
        try:
            ray.init(address=self.address, **options)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            raise UsageError(
                f"--ray {self.address}: no Ray cluster can be reached ({error}); start one with `ray start --head`, "
                "use its address, or use --ray local"
            ) from None
        try:
            yield ray
        finally:
            ray.shutdown()

    def _resources(self, ray: Any, recipe: Recipe) -> dict[str, float]:
        """Return the resources that a run requests, and warn if no node has them."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        most_cpus = max((node.get("CPU", 0.0) for node in nodes), default=0.0)
        most_gpus = max((node.get("GPU", 0.0) for node in nodes), default=0.0)
        cpus = min(float(run_threads(recipe)), max(most_cpus, 1.0)) if self.cpus is None else self.cpus
        gpus = min(1.0, most_gpus) if self.gpus is None else self.gpus
        if cpus > max(most_cpus, 1.0) or gpus > most_gpus:
            log.warning(
                "a run requests %g CPUs and %g GPUs, more than any node has, and waits for a larger node; "
                "request fewer with --cpus-per-run or --gpus-per-run",
                cpus,
                gpus,
            )
        return {"num_cpus": cpus, "num_gpus": gpus}


def _slots(ray: Any, resources: dict[str, float]) -> int:
    """Return how many runs fit on the current nodes of the cluster."""
    total = 0
    for node in ray.nodes():
        if node["Alive"]:
            available = {"num_cpus": node["Resources"].get("CPU", 0.0), "num_gpus": node["Resources"].get("GPU", 0.0)}
            fits = [int(available[name] / needed) for name, needed in resources.items() if needed > 0]
            total += min(fits, default=1)
    return total


def _run_on_node(
    task: RunTask, train_run: TrainRun, *, threads: int, cwd: str, beacon: Path, beacon_text: str
) -> Outcome:
    """Run the task on a Ray node, in the directory `cwd`, because paths in the recipe may be relative."""
    try:
        os.chdir(cwd)
        sees_folder = beacon.read_text(encoding="utf-8") == beacon_text
    except OSError:
        sees_folder = False
    if not sees_folder:
        return Outcome(
            kind="failed",
            message=f"the node {socket.gethostname()} cannot access {beacon.parent} or {cwd}; put "
            "--out and the data on storage that all nodes mount at the same path",
        )
    ProcessPlacement(threads=threads).apply()
    return run_task(task, train_run, Silent(), patience=PATIENCE)


class _RayPool:
    def __init__(
        self, ray: Any, train_run: TrainRun, *, recipe: Recipe, resources: dict[str, float], beacon: Path
    ) -> None:
        self._ray, self._train_run, self._threads, self._beacon = ray, train_run, run_threads(recipe), beacon
        self._resources = resources
        self._remote = ray.remote(_run_on_node).options(max_retries=0, **resources)  # the scheduler retries and reports
        self._running: dict[Any, RunTask] = {}
        self._progress: dict[str, _FolderProgress] = {}  # run label -> progress, reused when a run is resubmitted

    @property
    def slots(self) -> int:
        """Number of runs that fit on the cluster, plus a waiting run that makes an autoscaling cluster grow."""
        return _slots(self._ray, self._resources) + 1

    def submit(self, task: RunTask, progress: Progress) -> None:
        label = task.run.label
        if label not in self._progress or self._progress[label].task is not task:
            self._progress[label] = _FolderProgress(task, progress)
        reference = self._remote.remote(
            replace(task, run=replace(task.run, folder=task.run.folder.resolve())),
            self._train_run,
            threads=self._threads,
            cwd=str(Path.cwd()),
            beacon=self._beacon,
            beacon_text=self._beacon.read_text(encoding="utf-8"),
        )
        self._running[reference] = task

    def wait(self) -> Sequence[tuple[RunTask, Outcome]]:
        done: list[Any] = []
        while self._running and not done:
            done, _ = self._ray.wait(list(self._running), num_returns=1, timeout=_POLL_SECONDS)
            for task in self._running.values():
                self._progress[task.run.label].poll()
        return [(self._running.pop(reference), self._outcome(reference)) for reference in done]

    def stop(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=False)  # raises KeyboardInterrupt in the worker
        if self._running:
            self._ray.wait(list(self._running), num_returns=len(self._running), timeout=_GRACE_SECONDS)
        self._running = {}

    def close(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)

    def _outcome(self, reference: Any) -> Outcome:
        exceptions = self._ray.exceptions
        try:
            outcome: Outcome = self._ray.get(reference)
        except (exceptions.RayTaskError, exceptions.RuntimeEnvSetupError, exceptions.TaskCancelledError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            return Outcome(kind="failed", message=f"Ray could not run it: {reason}")
        except exceptions.LocalRayletDiedError:
            raise TrainingError(
                "Ray has stopped on this machine, so no run can be submitted; its logs are in /tmp/ray/session_latest/logs. "
                "All runs are saved: rerun the same command to resume, with --ray or with --jobs"
            ) from None
        except exceptions.NodeDiedError:
            return Outcome(kind="lost", message="was lost with its node")
        except exceptions.OutOfMemoryError:
            return Outcome(kind="lost", message="was ended by Ray, as its node ran out of memory")
        except exceptions.WorkerCrashedError:
            return Outcome(kind="lost", message="was killed, or crashed")
        except exceptions.RayError as error:
            return Outcome(kind="lost", message=f"was lost ({type(error).__name__})")
        if outcome.kind == "stopped":  # interrupted by its node, after saving
            return Outcome(kind="lost", message="was interrupted")
        return outcome


class _FolderProgress:
    """Progress callbacks of a run, driven by the contents of its folder."""

    def __init__(self, task: RunTask, progress: Progress) -> None:
        self.task, self._progress = task, progress
        self._reported = task.run.epochs_done
        self._started = False

    def poll(self) -> None:
        """Report the epochs that were added since the last call."""
        run = self.task.run
        try:
            record = existing_run(run.folder)
        except TrainingError:  # on a shared disk, a change may be only partly visible
            return
        if record is None:
            return
        if not self._started:
            epochs = run.recipe.schedule.epochs
            self._started = True
            self._progress.on_start(epochs, done_steps=self._reported, epochs=epochs, steps_per_epoch=1)
        for row in record.epochs[self._reported :]:
            self._progress.on_epoch(row)
        self._reported = max(self._reported, len(record.epochs))
