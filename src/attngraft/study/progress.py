"""Progress callbacks of a study: log lines, or a live table on a terminal."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Literal

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from attngraft.counting import CountBars, CountLines, count_display, format_duration
from attngraft.results.wording import plural
from attngraft.study.plan import PlannedRun
from attngraft.training.progress import LogLines, Progress

log = logging.getLogger(__name__)

Ending = Literal["finished", "paused", "failed", "stopped", "lost"]


class StudyProgress:
    """Progress callbacks of a study; this base class does nothing."""

    def on_stage(self, text: str) -> None:
        """Called when a stage other than training begins, such as checking, timing, measuring or reporting."""

    def on_count(self, description: str, done: int, total: int) -> None:
        """Called for each item of a long loop (`attngraft.counting`), such as the variants to time."""

    def on_plan(self, runs: Sequence[PlannedRun], *, seconds: float | None, epochs: float, extra: str = "") -> None:
        """Called when the runs are planned.

        Args:
            runs: all runs of the study; with `until`, finished runs and those of the next round.
            seconds: estimated time of the remaining ones of `runs`; None: no estimate.
            epochs: number of their remaining epochs; NaN if unknown.
            extra: text to append to the description of the plan.
        """

    def on_run(self, run: PlannedRun) -> Progress:
        """Called when a run starts or resumes; returns its callbacks. Several runs may be active.

        With `until`, later rounds start runs that were not planned.
        """
        return Progress()

    def on_run_end(self, run: PlannedRun, outcome: Ending, message: str) -> None:
        """Called when a run ends or is paused by halving, with its result or the reason of its failure."""

    def on_end(self) -> None:
        """Called when the study ends."""


class StudyLog(StudyProgress):
    """Log progress as plain lines."""

    def __init__(self) -> None:
        self._number: dict[str, int] = {}
        self._counts = CountLines()

    def on_count(self, description: str, done: int, total: int) -> None:
        self._counts(description, done, total)

    def on_stage(self, text: str) -> None:
        log.info("%s", text)

    def on_plan(self, runs: Sequence[PlannedRun], *, seconds: float | None, epochs: float, extra: str = "") -> None:
        self._number = {run.label: number for number, run in enumerate(runs, start=1)}
        log.info("%s", describe_plan(runs, seconds=seconds, extra=extra))

    def on_run(self, run: PlannedRun) -> Progress:
        self._number.setdefault(run.label, len(self._number) + 1)
        verb = f"resumes after epoch {run.epochs_done}" if run.state == "unfinished" else "starts"
        log.info("run %d/%d: %s %s", self._number[run.label], len(self._number), run.label, verb)
        return LogLines(label=run.label)

    def on_run_end(self, run: PlannedRun, outcome: Ending, message: str) -> None:
        level = logging.ERROR if outcome == "failed" else logging.INFO
        log.log(level, "%s: %s%s", run.label, outcome, f", {message}" if message else "")


class LiveStudy(StudyProgress):
    """Live table of variants and seeds, with progress bars for active runs. Use it in a `with` block."""

    def __init__(self, console: Console) -> None:
        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
        )
        self._active: dict[str, TaskID] = {}
        self._runs: Sequence[PlannedRun] = ()
        self._cells: dict[str, Text] = {}
        self._clock = _Clock()
        self._stage = ""  #: shown while no run is active
        self._counts = CountBars(count_display(console))
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self._draw)

    def __enter__(self) -> LiveStudy:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def on_stage(self, text: str) -> None:
        self._stage = text
        self._counts.clear()

    def on_count(self, description: str, done: int, total: int) -> None:
        self._counts(description, done, total)

    def on_plan(self, runs: Sequence[PlannedRun], *, seconds: float | None, epochs: float, extra: str = "") -> None:
        self._runs = runs
        self._clock = _Clock(epochs=epochs, estimate=seconds)
        for run in runs:
            done = run.state == "finished"
            self._cells[run.label] = Text("finished before" if done else "waiting", style="green" if done else "dim")
        self._live.console.print(describe_plan(runs, seconds=seconds, extra=extra), markup=False, highlight=False)
        self._live.refresh()

    def on_run(self, run: PlannedRun) -> Progress:
        self._stage = ""
        self._counts.clear()
        if run.label not in self._cells:  # of a later round
            self._runs = [*self._runs, run]
            self._cells[run.label] = Text("waiting", style="dim")
            self._clock.add(run.epochs_left)
        if run.label not in self._active:
            self._active[run.label] = self._bars.add_task(run.label, total=None, note="starting")
        return _RunRow(self, run)

    def on_run_end(self, run: PlannedRun, outcome: Ending, message: str) -> None:
        style = {"finished": "green", "paused": "dim", "failed": "bold red", "stopped": "yellow"}[outcome]
        if run.label in self._active:
            self._bars.remove_task(self._active.pop(run.label))
        if outcome != "paused":  # the cell of a paused run still shows its epoch
            self._cells[run.label] = Text(message if outcome == "finished" and message else outcome, style=style)
        self._cells[run.label].style = style
        if outcome == "failed":
            self._live.console.print(f"{run.label}: failed, {message}", style="red", markup=False, highlight=False)
        self._live.refresh()

    def on_end(self) -> None:
        self._stage = ""
        self._counts.clear()
        for label in list(self._active):
            self._bars.remove_task(self._active.pop(label))
        self._live.refresh()

    def show(self, run: PlannedRun, text: str) -> None:
        """Set the text of a run's cell."""
        self._cells[run.label] = Text(text, style="cyan")

    def epoch_done(self) -> None:
        self._clock.epoch_done()

    def bar(self, run: PlannedRun, *, step: int, total: int, note: str) -> None:
        """Update the progress bar of an active run."""
        if run.label in self._active:
            self._bars.update(self._active[run.label], completed=step, total=total, note=note)

    def _draw(self) -> Group:
        below: list[RenderableType] = [Text(f"{self._stage} ...", style="dim")] if self._stage else []
        if self._active:
            left = self._clock.left()
            below = [self._bars] if left is None else [self._bars, Text(f"study: {format_duration(left)} left")]
        if self._counts:
            below.append(self._counts.bars)
        if not self._runs:
            return Group(*below)
        seeds = list(dict.fromkeys(run.seed for run in self._runs))
        table = Table(box=None, padding=(0, 2, 0, 0))
        table.add_column("variant", overflow="fold")
        for seed in seeds:
            table.add_column(f"seed {seed}")
        rows: dict[str, dict[int, list[PlannedRun]]] = {}
        for run in self._runs:
            rows.setdefault(run.variant.name, {}).setdefault(run.seed, []).append(run)
        shown = self._visible(list(rows))
        for name in shown:
            table.add_row(Text(name), *(self._cell(rows[name].get(seed, [])) for seed in seeds))
        if hidden := len(rows) - len(shown):
            below.insert(0, Text(f"and {plural(hidden, 'variant')} more", style="dim"))
        return Group(table, *below)

    def _cell(self, runs: Sequence[PlannedRun]) -> Text:
        """Return the state of a run, or the number of finished folds."""
        cells = [self._cells[run.label] for run in runs]
        if not runs or runs[0].fold is None:
            return cells[0] if cells else Text("")
        done, failed = (sum(str(cell.style) == style for cell in cells) for style in ("green", "bold red"))
        text = f"{done}/{len(runs)} folds" + (f", {failed} failed" if failed else "")
        return Text(text, style="bold red" if failed else "green" if done == len(runs) else "cyan" if done else "dim")

    def _visible(self, names: Sequence[str]) -> list[str]:
        """Return the variants that fit on the terminal, active ones first, in the order of the study."""
        room = max(self._live.console.size.height - len(self._active) - 5, 3)
        if len(names) <= room:
            return list(names)
        active = {run.variant.name for run in self._runs if run.label in self._active}
        chosen = set(sorted(names, key=lambda name: name not in active)[:room])
        return [name for name in names if name in chosen]


class _RunRow(Progress):
    """Callbacks of one run, for the live table."""

    def __init__(self, study: LiveStudy, run: PlannedRun) -> None:
        self._study, self._run = study, run
        self._epochs = self._total = 0
        self._next = 0.0

    def on_count(self, description: str, done: int, total: int) -> None:
        self._study.on_count(f"{self._run.label}: {description}", done, total)

    def on_start(self, total_steps: int, *, done_steps: int, epochs: int, steps_per_epoch: int) -> None:
        self._epochs, self._total = epochs, total_steps
        self._study.show(self._run, f"epoch {done_steps // max(steps_per_epoch, 1)}/{epochs}")
        self._study.bar(self._run, step=done_steps, total=total_steps, note="")

    def on_step(self, *, step: int, epoch: int, loss: float, lr: float) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + 0.25
        note = f"epoch {epoch}/{self._epochs}  loss {loss:.3f}"
        self._study.bar(self._run, step=step, total=self._total, note=note)

    def on_epoch(self, metrics: Mapping[str, float]) -> None:
        self._study.epoch_done()
        self._study.show(self._run, f"{int(metrics['epoch'])}/{self._epochs}  {first_metric(metrics)}".rstrip())


class _Clock:
    """Remaining time, from the plan's estimate until an epoch is done, then from the mean time per epoch."""

    def __init__(self, *, epochs: float = 0.0, estimate: float | None = None) -> None:
        self._epochs, self._estimate = epochs, estimate
        self._done = 0
        self._start = time.monotonic()

    def add(self, epochs: int) -> None:
        self._epochs += epochs

    def epoch_done(self) -> None:
        self._done += 1

    def left(self) -> float | None:
        spent = time.monotonic() - self._start
        if self._done == 0:
            return None if self._estimate is None else max(self._estimate - spent, 0.0)
        if math.isnan(self._epochs):
            return None
        return spent / self._done * max(self._epochs - self._done, 0)


def first_metric(metrics: Mapping[str, float]) -> str:
    """Format the first validation metric of an epoch, which is the task's first metric: `top1 0.812`."""
    return next((f"{n.removeprefix('val/')} {value:.4g}" for n, value in metrics.items() if n.startswith("val/")), "")


def describe_plan(runs: Sequence[PlannedRun], *, seconds: float | None, extra: str = "") -> str:
    """Describe the plan: `15 runs of 12 epochs (5 variants, 3 seeds); 4 finished before; ...`."""
    if not runs:
        return "no runs"
    variants, seeds = len({run.variant.name for run in runs}), len({run.seed for run in runs})
    folds = "" if runs[0].fold is None else f", {len({run.fold for run in runs})} folds"
    text = f"{plural(len(runs), 'run')} of {runs[0].recipe.schedule.length} "
    text += f"({plural(variants, 'variant')}, {plural(seeds, 'seed')}{folds})"
    finished = sum(run.state == "finished" for run in runs)
    started = sum(run.state == "unfinished" for run in runs)
    states = [f"{finished} finished before"] if finished else []
    states += [f"{started} started before"] if started else []
    if states:
        text += f"; {', '.join(states)}"
    if seconds is not None and finished < len(runs):
        text += f"; about {format_duration(seconds)}{' for the rest' if states else ''}"
    if extra and finished < len(runs):
        text += f"; {extra}"
    return text
