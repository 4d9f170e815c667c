"""Time and memory of two large commands: checking a long table of images, and reporting on a study of many runs.

    python bench/load.py --out benchmarks/load.json

Each command is timed in new processes, from the command line to the last line of output, and its peak memory is that of the
process. The table has a million rows that name a thousand small images, each in one split, and nothing is cached. The study
is that of `bench/report_size.py`, with 100 variants x 10 seeds and smaller predictions: 5 evaluations, and 1,000 images of
10 classes. Upper limits: 20 s and 0.6 GB for the table, 60 s and 1 GB for the study.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import report_size
from PIL import Image

from attngraft.bench.command import finish, options
from attngraft.bench.result import Measurement, WrongOutputsError, current_setting, measured_once
from attngraft.errors import AttngraftError
from attngraft.results.storage import load_result

TABLE_SECONDS, TABLE_BYTES = 20.0, 0.6e9
STUDY_SECONDS, STUDY_BYTES = 60.0, 1e9
CLASSES = 10
TRAINING_SHARE = 0.8
#: prints the peak memory of the process itself; `wait4` would count the memory of its parent before exec as well
COMMAND = """
import atexit, sys
from attngraft.cli import main
from attngraft.timing.memory import peak_memory

atexit.register(lambda: print(f"\\n{peak_memory()}", file=sys.stderr))
main(sys.argv[1:])
"""


def write_table(folder: Path, *, rows: int, images: int) -> Path:
    """Write a table of `rows` rows that name `images` images, of which each is in one split and one class."""
    (folder / "images").mkdir()
    generator = np.random.default_rng(0)
    for number in range(images):
        pixels = generator.integers(256, size=(16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{number:05}.png")
    lines = [
        f"images/{number:05}.png,class {number % CLASSES},{'train' if number < TRAINING_SHARE * images else 'val'}\n"
        for number in range(images)
    ]
    path = folder / "labels.csv"
    with path.open("w", encoding="utf-8") as file:
        file.write("path,label,split\n")
        for start in range(0, rows, images):
            file.writelines(lines[: rows - start])
    return path


def grafts(variants: int) -> tuple[str, ...]:
    """Return the grafts of all variants but the baseline."""
    return tuple(f"cb_s(init={number / 1000:g})" for number in range(1, variants))


def run(*words: str, cache: Path) -> tuple[float, int, str]:
    """Run `attngraft WORDS` in a new process; return its seconds, its peak memory in bytes, and what it prints.

    Raises:
        AttngraftError: the command failed.
    """
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *words],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"ATTNGRAFT_CACHE": str(cache)},
    )
    seconds = time.perf_counter() - start
    if done.returncode:
        raise AttngraftError(f"attngraft {words[0]} failed with exit code {done.returncode}:\n{done.stderr[-2000:]}")
    return seconds, int(done.stderr.split()[-1]), done.stdout


def measurements(name: str, seconds: float, peak: int, *, bars: tuple[float, float]) -> list[Measurement]:
    """Return the lines of the result for a command; `bars` are seconds and bytes."""
    return [
        measured_once(name, seconds, bar=bars[0], unit="seconds"),
        measured_once(f"its peak memory, over {bars[1] / 1e9:g} GB", peak / bars[1], bar=1.0),
    ]


def check_table(place: Path, *, rows: int, images: int) -> list[Measurement]:
    """Measure `attngraft data check` of a table.

    Raises:
        WrongOutputsError: the table is not ready to train on, or rows are missing.
    """
    table = write_table(place, rows=rows, images=images)
    seconds, peak, said = run("data", "check", str(table), cache=place / "cache")
    if "Ready: " not in said or f"{rows - images} images are duplicates" not in said:
        raise WrongOutputsError(f"data check does not report all rows:\n{said[:2000]}")
    return measurements(f"data check of {rows:,} rows", seconds, peak, bars=(TABLE_SECONDS, TABLE_BYTES))


def report_study(place: Path, *, variants: int, seeds: int, epochs: int, images: int) -> list[Measurement]:
    """Measure `attngraft compare --report-only` of a finished study.

    Raises:
        WrongOutputsError: runs, differences or parts of the report are missing.
    """
    out = place / "study"
    sizes = {"seeds": seeds, "epochs": epochs, "images": images, "classes": CLASSES}
    config = report_size.invent(out, grafts=grafts(variants), **sizes)
    seconds, peak, _ = run("compare", "--report-only", "--out", str(out), cache=place / "cache")
    report_size.check(out, config)
    runs = sum(len(variant.runs) for variant in load_result(out).variants)
    return measurements(f"report of {runs:,} runs", seconds, peak, bars=(STUDY_SECONDS, STUDY_BYTES))


def main() -> int:
    parser = options("Time and memory of a long table and of a study of many runs, each once.", pairs=1)
    sizes = (("rows", 1_000_000), ("files", 1000), ("variants", 100), ("seeds", 10), ("epochs", 5), ("images", 1000))
    for name, default in sizes:
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    setting = current_setting()
    given = {name: getattr(arguments, name) for name, _ in sizes}
    with tempfile.TemporaryDirectory() as folder:
        table = check_table(Path(folder), rows=given["rows"], images=given["files"])
        of_study = {name: given[name] for name in ("variants", "seeds", "epochs", "images")}
        study = report_study(Path(folder), **of_study)
    result = setting.result("A long table, and a study of many runs", settings=given, measurements=(*table, *study))
    return finish(result, out=arguments.out, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
