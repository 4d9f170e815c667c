"""Check that many small trials finish although workers are killed.

    python -m proof.many_trials --trials 200 --jobs 2 --kill 1
    python -m proof.many_trials --trials 200 --ray local --kill 1

The study has one host with and without a graft, each with half as many seeds as trials, on the embedded digits. While it
runs, `--kill` busy worker processes are killed (SIGKILL) at different times. Required: every trial is finished, with
predictions and with metrics of all epochs; the results contain all trials and a note for each killed worker; no worker
remains; and the trials of killed workers have the same results, bit for bit, as when trained alone. The exit status is 1 if
one of these conditions fails.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import shlex
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from attngraft.bench.result import current_setting
from attngraft.files import write_atomically
from attngraft.results.study import StudyResult
from attngraft.study import StudyConfig, Tools, compare, incomplete, study_from_dict
from attngraft.study.executors import Executor, Processes, Ray
from attngraft.study.plan import PlannedRun, resolve_runs
from attngraft.training.loop import train
from attngraft.training.progress import Silent

EPOCHS = 2
HOST = {
    "name": "vit_tiny_patch16_224",
    "args": {"img_size": 8, "patch_size": 4, "depth": 1, "embed_dim": 12, "num_heads": 2, "in_chans": 1},
}


def study(out: Path, *, trials: int) -> StudyConfig:
    """Return a study with `trials` runs: two variants, half as many seeds."""
    plain = {
        "host": HOST,
        "grafts": ["cb_s"],
        "data": "digits",
        "set": ["train.batch_size=256", "train.threads=1", "schedule.warmup_epochs=0"],
        "seeds": trials // 2,
        "epochs": EPOCHS,
        "out": str(out),
    }
    return study_from_dict(plain)


class Killer:
    """Kills workers during a run, one after each equal part of the trials."""

    def __init__(self, runs: Sequence[PlannedRun], kills: int) -> None:
        self._runs, self._kills = runs, kills
        self.victims: list[PlannedRun] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _work(self) -> None:
        marks = [len(self._runs) * (number + 1) // (self._kills + 1) for number in range(self._kills)]
        while marks and not self._over.wait(0.02):
            finished = sum((run.folder / "finished.json").exists() for run in self._runs)
            if finished >= marks[0] and self._kill_one():
                marks.pop(0)

    def _kill_one(self) -> bool:
        """Kill the process that has locked an unfinished run, and return whether there was one."""
        for run in self._runs:
            if (run.folder / "finished.json").exists() or not (run.folder / "metrics.jsonl").exists():
                continue
            try:
                process = json.loads((run.folder / ".lock").read_text(encoding="utf-8"))["process"]
                if process == os.getpid():
                    continue
                os.kill(process, signal.SIGKILL)
            except (OSError, ValueError, KeyError):
                continue
            self.victims.append(run)
            return True
        return False


def problems_of(
    result: StudyResult, runs: Sequence[PlannedRun], victims: Sequence[PlannedRun], kills: int
) -> list[str]:
    """Return descriptions of all problems."""
    found = []
    if incomplete(result):
        found.append("runs are missing from results.json")
    for run in runs:
        rows = (run.folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        whole = len(rows) == EPOCHS and (run.folder / "predictions.npz").exists()
        if not whole or not (run.folder / "finished.json").exists():
            found.append(f"{run.label}: files or epochs are missing")
    if len(victims) < kills:
        found.append(f"only {len(victims)} of {kills} workers could be killed")
    if multiprocessing.active_children():
        found.append("a worker process is still running")
    told = " ".join(result.notes)
    found += [
        f"{run.label}: the notes do not mention that its worker died"
        for run in victims
        if f"{run.label}: its process" not in told
    ]
    with tempfile.TemporaryDirectory() as place:
        for number, run in enumerate(victims):
            alone = train(run.recipe, Path(place) / str(number), progress=Silent()).folder
            if outcome(alone) != outcome(run.folder):
                found.append(f"{run.label}: the results differ from those of the same run trained alone")
    return found


def outcome(folder: Path) -> Any:
    """Return metrics, without seconds, and predictions as bytes."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [{name: value for name, value in json.loads(line).items() if name != "seconds"} for line in lines]
    with np.load(folder / "predictions.npz") as arrays:
        return rows, {name: arrays[name].tobytes() for name in arrays.files}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trials", type=int, default=200, help="even")
    parser.add_argument("--jobs", type=int, default=2, help="trials at a time")
    parser.add_argument("--ray", metavar="ADDRESS", help="use a Ray cluster instead (local: on this machine)")
    parser.add_argument("--kill", type=int, default=1, help="workers to kill")
    parser.add_argument("--folder", type=Path, help="keep the study here; otherwise it is deleted")
    parser.add_argument("--out", type=Path, help="write the results as JSON (benchmarks/many_trials.json)")
    given = parser.parse_args(arguments)
    logging.getLogger("attngraft").setLevel(logging.WARNING)
    setting = current_setting()
    executor: Executor = Processes(jobs=given.jobs) if given.ray is None else Ray(address=given.ray, cpus=1)
    with tempfile.TemporaryDirectory() as place:
        config = study(given.folder or Path(place) / "study", trials=given.trials)
        runs = resolve_runs(config).runs
        begin = time.monotonic()
        with Killer(runs, given.kill) as killer:
            result = compare(config, executor=executor, costs=False, tools=Tools())
        seconds = time.monotonic() - begin
        problems = problems_of(result, runs, killer.victims, given.kill)
        found = {
            "command": shlex.join(
                ["python", "-m", "proof.many_trials", *(sys.argv[1:] if arguments is None else arguments)]
            ),
            "environment": setting.environment,
            "load": setting.load,
            "trials": len(runs),
            "executor": f"--jobs {given.jobs}" if given.ray is None else f"--ray {given.ray}",
            "finished": sum(len(variant.runs) for variant in result.variants),
            "killed": [run.label for run in killer.victims],
            "seconds": round(seconds, 1),
            "problems": problems,
        }
    console = Console(highlight=False)
    text = f"{found['finished']} of {found['trials']} trials finished in {seconds:.0f} s; killed: {found['killed']}"
    console.print(text, markup=False)
    for problem in problems:
        console.print(f"PROBLEM: {problem}", markup=False, style="red")
    if given.out is not None:
        write_atomically(given.out, json.dumps(found, indent=2) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
