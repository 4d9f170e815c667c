"""Time and size of the report of a study of a hundred runs.

    python bench/report_size.py --out benchmarks/report_size.json

The study is generated, with all files of a real study: 10 variants x 10 seeds, 30 epochs, and the predictions of 5,000
validation images of 100 classes with logits. `attngraft compare --report-only` is timed as a separate process, from the
command line to the last file: reading a hundred run folders, statistics, plots, page. It is also timed against the report of
the same study without checksums, which are not compared then. Upper limits: 20 s, 1.2x, and 15 MB for the page and its plots
together.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from attngraft.bench.command import finish, options
from attngraft.bench.result import WrongOutputsError, current_setting, measured_once, measurement
from attngraft.results.storage import load_result
from attngraft.results.study import Cost, Interval
from attngraft.study.config import StudyConfig, study_from_dict
from attngraft.study.cost import save_costs
from attngraft.study.plan import run_folder
from attngraft.study.runner import write_study
from attngraft.tasks.classification.evaluator import balanced_accuracy, macro_f1
from attngraft.tasks.task import Predictions
from attngraft.timing import duration, paired_ratio
from attngraft.training.run_folder import RunFolder, runs_below, write_json

SECONDS, CHECKED, MEGABYTES = 20.0, 1.2, 15.0
GRAFTS = (
    "cb",
    "cb_s",
    "horizontal",
    "vertical",
    "horizontal + vertical",
    "cb_s@last:50%",
    "cb_s + horizontal",
    "cb_s + vertical",
    "cb_s + horizontal + vertical",
)
COMMAND = "from attngraft.cli import main; main()"


def invent(
    out: Path, *, seeds: int, epochs: int, images: int, classes: int, grafts: Sequence[str] | None = None
) -> StudyConfig:
    """Generate a finished study in `out`, whose variants differ by up to two points and seeds by half a point.

    `grafts` is `GRAFTS` by default.
    """
    config = study_from_dict(
        {
            "host": {"name": "vit_tiny_patch16_224"},
            "grafts": list(GRAFTS if grafts is None else grafts),
            "data": "./photos",
            "seeds": seeds,
            "epochs": epochs,
            "out": str(out),
        }
    )
    names = [f"class {place:03}" for place in range(classes)]
    generator = np.random.default_rng(0)
    target = generator.integers(classes, size=images)
    easy = generator.normal(0, 1.2, images)
    alike = generator.normal(0, 1, (classes, classes))[target]  # similarity of classes, for confusions
    for place, variant in enumerate(config.variants):
        for seed in config.seeds:
            skill = 3.5 + 0.03 * (place - len(config.variants) / 2) + generator.normal(0, 0.02)
            logits = alike + generator.normal(0, 1, (images, classes))
            logits[np.arange(images), target] += skill + easy
            run = RunFolder(run_folder(out, variant, seed))
            run.checkpoints.mkdir(parents=True, exist_ok=True)
            run.write_recipe(config.recipe_of(variant, seed))
            run.write_data(model_args={"num_classes": classes}, facts=facts(names, target))
            write_json(run.environment, {"device_name": "invented", "threads": 1, "packages": {}})
            run.write_metrics(rows(logits, target, epochs=epochs, generator=generator))
            run.write_predictions(predictions(logits.astype(np.float32), target))
            run.write_finished({})
    write_study(config)
    recipe = config.recipe_of(config.baseline, config.seeds[0])
    save_costs(out, recipe, {variant.spec: cost(1 + place / 50) for place, variant in enumerate(config.variants)})
    return config


def predictions(logits: np.ndarray, target: np.ndarray) -> Predictions:
    """Return predictions as the task saves them."""
    top5 = np.argsort(-logits, axis=1)[:, :5]
    probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    rows, predicted = np.arange(len(target)), top5[:, 0]
    arrays = {
        "target": target,
        "predicted": predicted,
        "confidence": probabilities.max(axis=1),
        "loss": -np.log(probabilities[rows, target]),
        "top5": top5,
        "logits": logits,
    }
    return Predictions(
        names=[f"val/class {label:03}/{place:05}.jpg" for place, label in enumerate(target)],
        score=(predicted == target).astype(np.float64),
        binary=True,
        arrays=arrays,
    )


def rows(
    logits: np.ndarray, target: np.ndarray, *, epochs: int, generator: np.random.Generator
) -> list[dict[str, float]]:
    """Return a learning curve that ends at the metrics of the predictions."""
    top = np.argsort(-logits, axis=1)[:, :5]
    classes = logits.shape[1]
    last = {
        "val/top1": float((top[:, 0] == target).mean()),
        "val/top5": float((top == target[:, None]).any(axis=1).mean()),
        "val/balanced_accuracy": balanced_accuracy(top[:, 0], target, classes=classes),
        "val/macro_f1": macro_f1(top[:, 0], target, classes=classes),
    }
    end = float(predictions(logits.astype(np.float32), target).arrays["loss"].mean())
    found = []
    for epoch in range(1, epochs + 1):
        share = 1 - np.exp(-4 * epoch / epochs) * (1 + 0.1 * generator.normal()) if epoch < epochs else 1.0
        losses = {"train/loss": 4.6 - 3 * share, "val/loss": end + 2.5 * (1 - share)}
        found.append(
            {"epoch": epoch, "seconds": 60.0, **losses} | {name: value * share for name, value in last.items()}
        )
    return found


def facts(names: list[str], target: np.ndarray) -> dict[str, object]:
    counts = dict(zip(names, np.bincount(target, minlength=len(names)).tolist(), strict=True))
    return {
        "task": "classification",
        "source": "./photos",
        "kind": "folder",
        "classes": names,
        "sizes": {"train": 5 * len(target), "val": len(target)},
        "counts": {"train": {name: 5 * count for name, count in counts.items()}, "val": counts},
        "input": {"size": [3, 224, 224], "eval_crop_pct": 0.9},
        "notes": [],
    }


def cost(ratio: float) -> Cost:
    times = Interval(point=ratio, low=ratio - 0.01, high=ratio + 0.01)
    return Cost(
        parameters=int(5_717_416 * ratio),
        macs=int(1.26e9 * ratio),
        parameters_ratio=ratio,
        macs_ratio=ratio,
        train_time_ratio=times,
        inference_time_ratio=times,
        memory_ratio=ratio,
        train_seconds_per_step=0.1 * ratio,
        inference_seconds_per_batch=0.03 * ratio,
        peak_memory_bytes=int(2**30 * ratio),
    )


def report(out: Path) -> None:
    """Run `attngraft compare --report-only` in a new process."""
    subprocess.run(
        [sys.executable, "-c", COMMAND, "compare", "--report-only", "--out", str(out)],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def without_checksums(out: Path) -> Path:
    """Return a copy of the study whose runs have no checksums."""
    copy = out.with_name("older")
    shutil.copytree(out, copy)
    for run in runs_below(copy):
        write_json(RunFolder(run).finished, {})
    return copy


def megabytes(out: Path) -> float:
    """Return the size of the page and its plots."""
    return sum(path.stat().st_size for path in (out / "report.html", *(out / "plots").iterdir())) / 1e6


def check(out: Path, config: StudyConfig) -> None:
    """Check that the report covers all runs and all sections of the task.

    Raises:
        WrongOutputsError: something is missing.
    """
    result, page = load_result(out), (out / "report.html").read_text(encoding="utf-8")
    wanted = {
        "runs": sum(len(variant.runs) for variant in result.variants) == len(config.variants) * len(config.seeds),
        "differences": all(variant.difference for variant in result.variants[1:]),
        "costs": all(variant.cost for variant in result.variants),
        "sections": all(len(variant.sections) == 3 for variant in result.variants),
        "verdicts": page.count('class="verdict ') >= len(config.variants),
        "headings": all(title in page for title in ("Class by class", "Confusion matrix", "ECE")),
    }
    missing = [name for name, there in wanted.items() if not there]
    if missing:
        raise WrongOutputsError(f"the report lacks {', '.join(missing)}")


def main() -> int:
    parser = options("Time and size of the report of a hundred runs.", pairs=5)
    for name, default in (("seeds", 10), ("epochs", 30), ("images", 5000), ("classes", 100)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    setting = current_setting()
    sizes = {name: getattr(arguments, name) for name in ("seeds", "epochs", "images", "classes")}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "study"
        config = invent(out, **sizes)
        report(out)
        check(out, config)
        size = megabytes(out) / MEGABYTES
        older = without_checksums(out)
        compared = paired_ratio(lambda: report(older), lambda: report(out), pairs=arguments.pairs, warmup=0)
        taken = duration(lambda: report(out), samples=arguments.pairs, warmup=0)
    runs = f"{len(config.variants) * len(config.seeds)} runs"
    result = setting.result(
        f"Report of {runs}",
        settings=sizes | {"variants": len(config.variants), "samples": arguments.pairs, "megabytes": size * MEGABYTES},
        measurements=(
            measurement(f"report of {runs}", taken, bar=SECONDS),
            measurement("report of a study with checksums over one without", compared, bar=CHECKED),
            measured_once(f"its page and plots, over {MEGABYTES:g} MB", size, bar=1.0),
        ),
    )
    return finish(result, out=arguments.out, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
