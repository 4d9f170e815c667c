"""Measure the coverage of the intervals and the false positives of McNemar's test.

    python -m proof.null_study --out benchmarks/null_study.json --coverage src/attngraft/results/coverage.json

The statistics of `attngraft compare` are applied to three kinds of studies with a known true difference:

- 40 runs of one host on the digits (`proof.runs`), half of them labeled as the variant: no difference;
- simulated predictions (`proof.simulation`), five kinds of studies with 3, 5 and 10 seeds;
- simulated pairs of models of equal accuracy, for McNemar's p alone.

Required, by one-sided binomial tests: all three intervals contain the true difference in at least 95% of the studies (for
each number of seeds, over the disjoint studies of the runs and over the simulated studies, together and by kind), and
McNemar's p is at or below a level at most as often as the level. A test fails if its p is below 5% after Holm's correction
over all tests; the uncorrected p is also reported. The exit status is 1 if a test fails.

Finished runs and counts are kept in `--work`; rerun the same command to resume. Takes about ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from attngraft.bench.result import current_setting
from attngraft.files import write_atomically
from attngraft.results.coverage import Coverage, SeedsCoverage
from attngraft.results.statistics import RESAMPLES
from attngraft.strict import read
from proof.coverage import PAIRINGS, Count, disjoint, mcnemar_p_values, paired_anew, simulated
from proof.outcomes import ALPHA, Outcome, corrected, coverage_tests, uniform_tests
from proof.runs import CHANGES, make_run, packed, scores_of, seeds
from proof.simulation import SETTINGS

COMMAND = "python -m proof.null_study"
SEEDS = (3, 5, 10)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Simulated studies of one kind."""

    kind: int  #: index into `SETTINGS`
    seeds: int
    count: Count


def simulated_cell(work: Path, *, kind: int, seeds: int, studies: int) -> Cell:
    """Measure a cell, or read it from `work`."""
    path = work / "simulated" / f"{SETTINGS[kind].name}, {seeds} seeds, {studies} studies.json".replace(" ", "_")
    if not path.is_file():
        write_atomically(path, json.dumps(dataclasses.asdict(simulated(SETTINGS[kind], seeds=seeds, studies=studies))))
    count = read(Count, json.loads(path.read_text(encoding="utf-8")), where=str(path))
    return Cell(kind=kind, seeds=seeds, count=count)


def measure(work: Path, *, studies: int, runs: int, jobs: int, told: Callable[[str], Any]) -> dict[str, Any]:
    """Measure everything, and return plain data.

    Args:
        work: folder in which finished runs and counts are kept.
        studies: simulated studies of each kind and number of seeds; five times as many for McNemar's test.
        runs: real runs, half of them for each arm.
        jobs: processes.
        told: function that is called with each line of progress.
    """
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        trained = [pool.submit(make_run, work / "runs", seed) for seed in seeds(runs // 2)]
        counted = [
            pool.submit(simulated_cell, work, kind=kind, seeds=each, studies=studies)
            for each in SEEDS
            for kind in range(len(SETTINGS))
        ]
        for done, job in enumerate(_as_done([*trained, *counted]), start=1):
            told(f"{done} of {len(trained) + len(counted)}: {_line(job.result())}")
        baseline, variant = scores_of([job.result() for job in trained])
        cells = [job.result() for job in counted]
    pooled = {each: sum((cell.count for cell in cells if cell.seeds == each), Count()) for each in SEEDS}
    real = {each: disjoint(baseline, variant, seeds=each) for each in SEEDS if each <= len(baseline)}
    anew = {each: paired_anew(baseline, variant, seeds=each) for each in real}
    tests = corrected(
        [
            *(test for each, count in pooled.items() for test in coverage_tests(f"simulated, {each} seeds", count)),
            *(test for cell in cells for test in coverage_tests(_name(cell), cell.count)),
            *(test for each, count in real.items() for test in coverage_tests(f"digits, {each} seeds", count)),
            *uniform_tests(mcnemar_p_values(images=500, studies=5 * studies)),
        ]
    )
    return {
        "passed": all(test.passed for test in tests),
        "tests": [dataclasses.asdict(test) | {"passed": test.passed} for test in tests],
        "simulated": {"pooled": _rows(pooled), "kinds": [_row(cell) for cell in cells]},
        "digits": {
            "disjoint": _rows(real),
            f"paired anew {PAIRINGS} times": _rows(anew),
            "images": baseline.shape[1],
            "top1": {"baseline": _means(baseline), "variant": _means(variant)},
            "scores": {"baseline": packed(baseline), "variant": packed(variant)},
        },
    }


def shipped(result: dict[str, Any]) -> Coverage:
    """Return the numbers in the footnote of reports."""
    return Coverage(
        command=COMMAND,
        kinds=len(SETTINGS),
        measured=tuple(
            SeedsCoverage(
                seeds=row["seeds"],
                studies=row["studies"],
                interval=row["interval"] / row["with_interval"],
                bootstrap=row["bootstrap"] / row["studies"],
                t=row["t"] / row["with_t"],
            )
            for row in result["simulated"]["pooled"]
        ),
    )


def main(arguments: Iterable[str] | None = None) -> int:
    words = sys.argv[1:] if arguments is None else list(arguments)
    given, console, setting = _arguments(words), Console(highlight=False, soft_wrap=True), current_setting()
    result = measure(given.work, studies=given.studies, runs=given.runs, jobs=given.jobs, told=console.print)
    for test in (Outcome(**{k: v for k, v in row.items() if k != "passed"}) for row in result["tests"]):
        shares = f"{test.count} of {test.of} ({test.count / test.of:.1%}), p {test.p:.3g}, corrected {test.p_holm:.3g}"
        console.print(f"{'pass' if test.passed else 'FAIL'}  {test.name}: {shares}")
    if given.out:
        settings = {"studies": given.studies, "resamples": RESAMPLES, "runs": given.runs, "alpha": ALPHA}
        head = {
            "title": "Null study: how often the intervals hold the truth, and McNemar's p under equal accuracy",
            "command": shlex.join([*COMMAND.split(), *words]),
            "environment": setting.environment,
            "settings": settings | {"recipe": ["digits", *CHANGES]},
        }
        write_atomically(given.out, json.dumps(head | result, indent=2, ensure_ascii=False) + "\n")
    if given.coverage:
        write_atomically(given.coverage, json.dumps(dataclasses.asdict(shipped(result)), indent=2) + "\n")
    return 0 if result["passed"] else 1


def _as_done(jobs: Sequence[Future[Any]]) -> Iterator[Future[Any]]:
    """Yield jobs as they finish; the first error, or Ctrl-C, cancels those that have not started."""
    try:
        yield from as_completed(jobs)
    finally:
        for job in jobs:
            job.cancel()


def _line(done: Any) -> str:
    if isinstance(done, Cell):
        return f"{_name(done)}: {done.count}"
    return f"run {done.folder.name}: top-1 {done.epochs[-1]['val/top1']:.3f}"


def _name(cell: Cell) -> str:
    return f"simulated, {SETTINGS[cell.kind].name}, {cell.seeds} seeds"


def _row(cell: Cell) -> dict[str, Any]:
    return dataclasses.asdict(SETTINGS[cell.kind]) | {"seeds": cell.seeds} | dataclasses.asdict(cell.count)


def _rows(counts: dict[int, Count]) -> list[dict[str, Any]]:
    return [{"seeds": each} | dataclasses.asdict(count) for each, count in counts.items()]


def _means(scores: np.ndarray) -> list[float]:
    return [round(float(mean), 4) for mean in scores.mean(axis=1)]


def _arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=COMMAND,
        description=(__doc__ or "").partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--work", type=Path, default=Path("study-null"), help="folder for finished runs and counts")
    parser.add_argument("--studies", type=int, default=2000, help="simulated studies per kind and number of seeds")
    parser.add_argument("--runs", type=int, default=40, help="real runs, half of them for each arm")
    parser.add_argument("--jobs", type=int, default=2, help="processes, one thread each")
    parser.add_argument("--out", type=Path, help="write everything as JSON (benchmarks/null_study.json)")
    parser.add_argument(
        "--coverage",
        type=Path,
        help="write the numbers for the reports' footnote (src/attngraft/results/coverage.json)",
    )
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
