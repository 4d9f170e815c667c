"""Two runs of a study in parallel, relative to one after the other, on a CPU with two cores.

    python bench/jobs.py --out benchmarks/jobs.json

A sample is a study of two runs (a host on the embedded digits, with and without CB_S), from the plan to the last file,
including the start of the processes. In both cases each run has one thread, as its recipe specifies. Before timing, both
must write the same metrics and predictions, bit for bit. Upper limit: 0.65. Runs should take much longer than the start of
a process, which takes a few seconds: see `--epochs`.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from attngraft.bench.command import finish, options
from attngraft.bench.result import WrongOutputsError, current_setting, measurement
from attngraft.study import StudyConfig, Tools, study_from_dict
from attngraft.study.executors import Executor, Processes, Serial
from attngraft.study.plan import resolve_runs
from attngraft.study.progress import StudyLog
from attngraft.study.runner import train_runs
from attngraft.timing import paired_ratio

BAR = 0.65
JOBS = 2


def study(out: Path, *, epochs: int, depth: int, size: int) -> StudyConfig:
    """Return a study of a baseline and a graft with one seed: two runs of nearly equal length."""
    host = {"name": "vit_tiny_patch16_224", "args": {"img_size": size, "patch_size": 4, "depth": depth}}
    changes = ["train.threads=1", "train.batch_size=64", "task.augment.crop=center"]
    plain = {"host": host, "grafts": ["cb_s"], "data": "digits", "set": changes, "seeds": 1, "epochs": epochs}
    return study_from_dict({**plain, "out": str(out)})


def carry_out(config: StudyConfig, executor: Executor) -> list[Any]:
    """Train the runs, and return the metrics (without times) and the predictions of each as bytes."""
    config.out.mkdir(parents=True, exist_ok=True)
    notes = train_runs(resolve_runs(config), executor=executor, train_run=Tools().train, progress=StudyLog())
    if notes:
        raise WrongOutputsError(f"a run failed: {notes[0]}")
    return [_outcome(run.folder) for run in resolve_runs(config).runs]


def _outcome(folder: Path) -> Any:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [{name: value for name, value in json.loads(line).items() if name != "seconds"} for line in lines]
    with np.load(folder / "predictions.npz") as arrays:
        return rows, {name: arrays[name].tobytes() for name in arrays.files}


def works(place: Path, *, epochs: int, depth: int, size: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return functions that train the runs one after the other and two at a time, each call in a new folder.

    Raises:
        WrongOutputsError: the two ways write different results.
    """
    folders: Iterator[Path] = (place / f"study{number}" for number in itertools.count())

    def work(executor: Executor) -> Callable[[], object]:
        return lambda: carry_out(study(next(folders), epochs=epochs, depth=depth, size=size), executor)

    alone, together = work(Serial()), work(Processes(jobs=JOBS))
    if alone() != together():
        raise WrongOutputsError(
            "two runs at a time do not write the same metrics and predictions as one after the other"
        )
    return alone, together


def main() -> int:
    parser = options("Two runs at a time, relative to one after the other.", pairs=5)
    parser.add_argument("--epochs", type=int, default=3, help="epochs of a run")
    parser.add_argument("--depth", type=int, default=4, help="blocks of the host")
    parser.add_argument("--size", type=int, default=32, help="side of the images in pixels")
    arguments = parser.parse_args()
    sizes = {"epochs": arguments.epochs, "depth": arguments.depth, "size": arguments.size}
    setting = current_setting()
    with tempfile.TemporaryDirectory() as place:
        alone, together = works(Path(place), **sizes)
        ratio = paired_ratio(alone, together, pairs=arguments.pairs, warmup=0)
    result = setting.result(
        "Two runs, two at a time over one after the other, one thread each",
        settings={"pairs": arguments.pairs, "jobs": JOBS, **sizes},
        measurements=(measurement(f"--jobs {JOBS}", ratio, bar=BAR),),
    )
    return finish(result, out=arguments.out, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
