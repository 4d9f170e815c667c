"""Runs as tasks of a Ray cluster, or of a local one. Ray is an extra: `pip install 'attngraft[ray]'`.

Ray decides where a run goes by its resources. Where a worker or a node dies, the run is handed out again and goes on from
its last checkpoint. For this the study's folder and the data must lie on storage that every node sees under the same
path. Nothing else is exchanged, so how runs get on is read from their folders.
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
from typing import TYPE_CHECKING, Any

from attngraft.errors import TrainingError, UsageError
from attngraft.files import write_atomically
from attngraft.study.executors.placement import Place, at_full_speed, threads_of_a_run
from attngraft.study.executors.signals import sigterm_interrupts
from attngraft.study.executors.trial import PATIENCE, carry_out
from attngraft.study.executors.work import Crew, Outcome, Train, Work

if TYPE_CHECKING:
    from attngraft.training.progress import Progress
    from attngraft.training.recipe import Recipe

log = logging.getLogger(__name__)

LOCAL = "local"
BEACON = ".ray"  #: a file in the study's folder by which a node recognizes it
_LOOK_EVERY = 1.0  #: seconds between two looks at the runs' folders
_GRACE = 600.0  #: seconds that runs have to save and stop


@dataclass(frozen=True, kw_only=True)
class Ray:
    """Runs as Ray tasks; a task whose worker or node dies is begun again `retries` times.

    Args:
        address: of the cluster ("auto", "10.0.0.1:6379", "ray://..."), or "local" for one on this machine.
        cpus: CPUs of a run; None: as many as it has threads.
        gpus: GPUs of a run, also a part of one; None: one where the cluster has any.
        retries: how often a run is begun again.

    Raises:
        UsageError: Ray is not installed, or a number makes no sense.
    """

    address: str = LOCAL
    cpus: float | None = None
    gpus: float | None = None
    retries: int = 3

    def __post_init__(self) -> None:
        if importlib.util.find_spec("ray") is None:
            raise UsageError("--ray needs Ray, which is not installed: pip install 'attngraft[ray]'")
        for name, value in (("cpus", self.cpus), ("gpus", self.gpus)):
            if value is not None and value < 0:
                raise UsageError(f"--{name}-per-run: must not be negative, is {value:g}")

    def at_once(self, recipe: Recipe) -> int:
        if self.address == LOCAL:
            return at_full_speed(os.cpu_count() or 1, recipe)
        with self._cluster() as ray:
            return max(_room(ray, self._resources(ray, recipe)), 1)

    @contextmanager
    def crew(self, *, train: Train, recipe: Recipe, out: Path) -> Iterator[Crew]:
        with self._cluster() as ray:
            beacon = write_atomically(out.resolve() / BEACON, f"{socket.gethostname()} {os.getpid()}\n")
            crew = _Tasks(
                ray,
                train,
                resources=self._resources(ray, recipe),
                threads=threads_of_a_run(recipe),
                retries=self.retries,
                beacon=beacon,
            )
            try:
                with sigterm_interrupts():
                    yield crew
            finally:
                crew.dismiss()
                beacon.unlink(missing_ok=True)

    @contextmanager
    def _cluster(self) -> Iterator[Any]:
        """Ray, connected; a connection that was there before stays."""
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # sends nothing home unless somebody wants it to
        import ray

        if ray.is_initialized():
            yield ray
            return
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.WARNING}
        if self.address == LOCAL:
            quiet |= {"include_dashboard": False}
        try:
            ray.init(address=self.address, **quiet)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            raise UsageError(
                f"--ray {self.address}: no cluster can be reached there ({error}); start one with `ray start --head`, "
                "give its address, or use --ray local"
            ) from None
        try:
            yield ray
        finally:
            ray.shutdown()

    def _resources(self, ray: Any, recipe: Recipe) -> dict[str, float]:
        """What a run asks for; a warning where it would wait for a node that is not there yet."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        most_cpus = max((node.get("CPU", 0.0) for node in nodes), default=0.0)
        most_gpus = max((node.get("GPU", 0.0) for node in nodes), default=0.0)
        cpus = min(float(threads_of_a_run(recipe)), max(most_cpus, 1.0)) if self.cpus is None else self.cpus
        gpus = min(1.0, most_gpus) if self.gpus is None else self.gpus
        if cpus > max(most_cpus, 1.0) or gpus > most_gpus:
            log.warning(
                "a run asks for %g CPUs and %g GPUs, and no node of the cluster has as much; it waits for one that has",
                cpus,
                gpus,
            )
        return {"num_cpus": cpus, "num_gpus": gpus}


@dataclass(frozen=True, kw_only=True)
class _Errand:
    """All that a node must know to do a piece of work."""

    work: Work
    train: Train
    threads: int
    cwd: str  #: paths of the recipe may be relative
    beacon: Path
    sign: str  #: what stands in `beacon`


def _on_node(errand: _Errand) -> Outcome:
    """Do the work, as the body of a task."""
    node = socket.gethostname()
    try:
        os.chdir(errand.cwd)
        seen = errand.beacon.read_text(encoding="utf-8") == errand.sign
    except OSError:
        seen = False
    if not seen:
        place = errand.beacon.parent
        return Outcome(
            kind="failed",
            message=f"the node {node} does not see {place} (or {errand.cwd}) as the study's folder; put --out and the "
            "data on storage that all nodes see under the same path",
        )
    Place(threads=errand.threads).take()
    from attngraft.training.progress import Silent

    return carry_out(errand.work, errand.train, Silent(), patience=PATIENCE)


class _Tasks:
    def __init__(
        self, ray: Any, train: Train, *, resources: dict[str, float], threads: int, retries: int, beacon: Path
    ) -> None:
        self._ray, self._train, self._threads, self._beacon = ray, train, threads, beacon
        self._resources = resources
        self._task = ray.remote(_on_node).options(max_retries=0, **resources)  # retried here, so that it is told
        self._retries = retries
        self._running: dict[Any, _Running] = {}

    @property
    def slots(self) -> int:
        """As many as fit, and one that waits, so that a cluster which can grow sees that there is more to do."""
        return _room(self._ray, self._resources) + 1

    def start(self, work: Work, progress: Progress) -> None:
        self._submit(_Running(work, progress))

    def wait(self) -> Sequence[tuple[Work, Outcome]]:
        while self._running:
            done, _ = self._ray.wait(list(self._running), num_returns=1, timeout=_LOOK_EVERY)
            for running in self._running.values():
                running.look()
            ended = [each for each in map(self._ended, done) if each is not None]
            if ended:
                return ended
        return []

    def stop(self) -> Sequence[tuple[Work, Outcome]]:
        for reference in self._running:
            self._ray.cancel(reference, force=False)  # a Ctrl-C in the worker
        if self._running:
            self._ray.wait(list(self._running), num_returns=len(self._running), timeout=_GRACE)
        ended = [(running.work, Outcome(kind="stopped", deaths=running.deaths)) for running in self._running.values()]
        self._running = {}
        return ended

    def dismiss(self) -> None:
        """Leave nothing at work behind."""
        for reference in self._running:
            self._ray.cancel(reference, force=True)

    def _submit(self, running: _Running) -> None:
        run = running.work.run
        errand = _Errand(
            work=replace(running.work, run=replace(run, folder=run.folder.resolve())),
            train=self._train,
            threads=self._threads,
            cwd=str(Path.cwd()),
            beacon=self._beacon,
            sign=self._beacon.read_text(encoding="utf-8"),
        )
        self._running[self._task.remote(errand)] = running

    def _ended(self, reference: Any) -> tuple[Work, Outcome] | None:
        """What became of a task; None where its worker or node was lost and it is begun again."""
        running, exceptions = self._running.pop(reference), self._ray.exceptions
        try:
            outcome: Outcome = self._ray.get(reference)
        except (exceptions.RayTaskError, exceptions.RuntimeEnvSetupError, exceptions.TaskCancelledError) as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            message = f"Ray could not carry it out: {reason}"
            return running.work, Outcome(kind="failed", message=message, deaths=running.deaths)
        except exceptions.LocalRayletDiedError:
            raise TrainingError(
                "Ray ended on this machine, so no run can be handed out; its logs are in /tmp/ray/session_latest/logs. "
                "Everything is kept: the same command goes on, also with --jobs"
            ) from None
        except exceptions.RayError as error:
            return self._after_death(running, self._how(error))
        if outcome.kind == "stopped":  # by its node, and it has saved
            return self._after_death(running, "was asked to stop")
        return running.work, replace(outcome, deaths=running.deaths)

    def _how(self, error: Exception) -> str:
        """How a worker was lost."""
        exceptions = self._ray.exceptions
        if isinstance(error, exceptions.NodeDiedError):
            return "was lost with its node"
        if isinstance(error, exceptions.OutOfMemoryError):
            return "was ended by Ray, as its node ran out of memory"
        if isinstance(error, exceptions.WorkerCrashedError):
            return "was killed, or crashed"
        return f"was lost ({type(error).__name__})"

    def _after_death(self, running: _Running, reason: str) -> tuple[Work, Outcome] | None:
        """Begin again, where that is not in vain."""
        running.deaths = (*running.deaths, reason)
        if len(running.deaths) <= self._retries:
            label = running.work.run.label
            log.warning("%s: its process %s; it goes on from its last checkpoint", label, reason)
            self._submit(running)
            return None
        message = f"its process {reason}, {len(running.deaths)} times in all; the same command tries again"
        return running.work, Outcome(kind="failed", message=message, deaths=running.deaths)


class _Running:
    """A piece of work that Ray has; its progress is told by what appears in the run's folder."""

    def __init__(self, work: Work, progress: Progress) -> None:
        self.work = work
        self.deaths: tuple[str, ...] = ()
        self._run, self._progress = work.run, progress
        self._known = 0
        self._begun = False

    def look(self) -> None:
        from attngraft.training.run_folder import RunFolder, read_run

        if not RunFolder(self._run.folder).recipe.is_file():
            return
        try:
            rows = read_run(self._run.folder).epochs
        except TrainingError:  # a shared disk may show half of what happens
            return
        if not self._begun:
            epochs = self._run.recipe.schedule.epochs
            self._begun, self._known = True, self._run.epochs_done
            self._progress.on_start(epochs, done_steps=self._known, epochs=epochs, steps_per_epoch=1)
        for row in rows[self._known :]:
            self._progress.on_epoch(row)
        self._known = max(self._known, len(rows))


def _room(ray: Any, resources: dict[str, float]) -> int:
    """How many runs fit into the cluster as it is, node by node."""
    total = 0
    for node in ray.nodes():
        if node["Alive"]:
            have = {"num_cpus": node["Resources"].get("CPU", 0.0), "num_gpus": node["Resources"].get("GPU", 0.0)}
            fits = [int(have[name] / needed) for name, needed in resources.items() if needed > 0]
            total += min(fits, default=1)
    return total
