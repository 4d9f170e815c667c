"""Saving and loading of a study's result: results.json, results.csv, metrics.csv and suites.csv.

results.csv has one row per variant, metrics.csv one row per metric and variant, and suites.csv one row per suite, condition
and variant. Numbers are not rounded.
"""

import csv
import dataclasses
import io
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attngraft.checksums import FILE as CHECKSUMS_FILE
from attngraft.checksums import Checksums, folder_checksums, write_checksums
from attngraft.errors import ConfigError, check_types
from attngraft.files import csv_cell, write_atomically
from attngraft.opening import read_json
from attngraft.results import wording
from attngraft.results.study import FORMAT, Cost, Difference, Interval, StudyResult, VariantResult
from attngraft.strict import read

RESULT_FILE = "results.json"
TABLE_FILE = "results.csv"
METRICS_FILE = "metrics.csv"
SUITES_FILE = "suites.csv"
_UNLISTED = (CHECKSUMS_FILE, "trackers.json")
_REMEDY = "write it again with attngraft compare --report-only --out FOLDER"

#: columns of differences that suites.csv leaves out
_NOT_OF_SUITES = ("p_holm", "p_source", "detectable", "seeds_for_point", "examples_for_point")

_OPTIONAL = ("part_differences", "recipe")

CsvValue = str | int | float | bool | None


def save_result(result: StudyResult, folder: Path) -> None:
    """Write results.json, results.csv and metrics.csv, and suites.csv if the result has suites.

    Checksums of the folder are removed, because they are of the files before; `write_study_checksums` makes new ones.
    """
    (folder / CHECKSUMS_FILE).unlink(missing_ok=True)
    write_atomically(folder / RESULT_FILE, json.dumps(result_to_dict(result), indent=2) + "\n")
    write_atomically(folder / TABLE_FILE, csv_text(result))
    write_atomically(folder / METRICS_FILE, metrics_csv(result))
    if result.suites:
        write_atomically(folder / SUITES_FILE, suites_csv(result))
    else:
        (folder / SUITES_FILE).unlink(missing_ok=True)


def write_study_checksums(folder: Path) -> None:
    """Write the checksums of the files in a study's folder, apart from its runs, plots, report and logs."""
    write_checksums(
        folder / CHECKSUMS_FILE,
        [
            path
            for pattern in ("*.json", "*.csv", "*.yaml")
            for path in folder.glob(pattern)
            if path.name not in _UNLISTED
        ],
    )


def study_checksums(folder: Path) -> Checksums:
    """Return the checksums of a study's files; empty for studies of earlier versions.

    Raises:
        ConfigError: checksums.json is damaged.
    """
    return folder_checksums(folder, error=ConfigError, remedy=f"delete it, and {_REMEDY}")


def check_study_file(path: Path, *, remedy: str) -> None:
    """Check a file in a study's folder against its checksum.

    Raises:
        ConfigError: the file is damaged.
    """
    if damage := study_checksums(path.parent).damage(path) if path.exists() else "":
        raise ConfigError(f"{path}: changed since the report was written ({damage}); restore a good copy, or {remedy}")


def result_to_dict(result: StudyResult) -> dict[str, Any]:
    """Return the contents of results.json, omitting what is empty of `suites`, `until`, and the variants' `_OPTIONAL`."""
    plain = dataclasses.asdict(result)
    del plain["folder"]
    for variant in plain["variants"]:
        for name in _OPTIONAL:
            if not variant[name]:
                del variant[name]
    if not result.suites:
        del plain["suites"]
    if result.until is None:
        del plain["until"]
    return plain


def read_study(path: Path | str) -> StudyResult:
    """Return the result of a finished study; `path` is the study's folder, or the results.json file in it.

        study = attngraft.read_study("./flowers-study")
        study.show()                      # the report
        study.to_frame()                  # pandas, one row per variant
        study.to_frame("run")             # one row per variant and seed

    Raises:
        ConfigError: the file is missing or damaged, or was written by a newer version.
    """
    check_types(path=(path, str, os.PathLike))
    path = Path(path) / RESULT_FILE if Path(path).is_dir() else Path(path)
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not a valid study result: {error}; {_REMEDY}") from None
    if isinstance(content, dict) and isinstance(content.get("format"), int) and content["format"] > FORMAT:
        raise ConfigError(
            f"{path}: has format {content['format']}, but this version reads formats up to {FORMAT}; update attngraft"
        )
    if damage := study_checksums(path.parent).damage(path):
        raise ConfigError(f"{path}: damaged since it was written ({damage}); {_REMEDY}")
    result = read(StudyResult, content, where=str(path))
    if sum(variant.is_baseline for variant in result.variants) != 1:
        raise ConfigError(f"{path}: variants: exactly one must be the baseline; {_REMEDY}")
    variants = []
    for variant in result.variants:
        reached = variant.epochs_to_baseline
        if reached is not None:  # JSON converted the seeds to strings
            try:
                reached = dataclasses.replace(reached, by_seed={int(seed): n for seed, n in reached.by_seed.items()})
            except ValueError:
                raise ConfigError(f"{path}: epochs_to_baseline.by_seed: expected seeds as keys; {_REMEDY}") from None
        variants.append(dataclasses.replace(variant, epochs_to_baseline=reached))
    return dataclasses.replace(result, variants=variants, folder=path.parent)


load_result = read_study  #: former name


def csv_rows(result: StudyResult) -> list[dict[str, CsvValue]]:
    """Return one flat row per variant, all with the same columns; missing numbers are None."""
    return [dict(_csv_cells(variant, result)) for variant in result.variants]


def csv_text(result: StudyResult) -> str:
    """Return `csv_rows` as the text of results.csv; None becomes an empty cell."""
    rows = csv_rows(result)
    header = list(rows[0]) if rows else ["variant"]
    return table_csv(header, (row.values() for row in rows))


def run_rows(result: StudyResult) -> list[dict[str, CsvValue]]:
    """Return one flat row per run, all with the same columns; missing numbers are None."""
    names = wording.metric_names(result)
    return [
        {
            "variant": variant.name,
            "spec": variant.spec,
            "baseline": variant.is_baseline,
            "seed": run.seed,
            **{f"last_{name}": run.last.get(name) for name in names},
            **{f"best_{name}": run.best.get(name) for name in names},
            "best_epoch": run.best_epoch,
            "seconds": run.seconds,
            "folder": run.folder,
        }
        for variant in result.variants
        for run in variant.runs
    ]


def cost_ratios(cost: Cost | None) -> dict[str, float | None]:
    """Return all costs as ratios to the baseline, None if not measured."""
    if cost is None:
        return dict.fromkeys(("parameters", "macs", "train_time", "inference_time", "memory"))
    train, infer = cost.train_time_ratio, cost.inference_time_ratio
    return {
        "parameters": cost.parameters_ratio,
        "macs": cost.macs_ratio,
        "train_time": train.point if train else None,
        "inference_time": infer.point if infer else None,
        "memory": cost.memory_ratio,
    }


def metrics_csv(result: StudyResult) -> str:
    """Return the text of metrics.csv: one row per metric and variant; missing numbers are empty cells."""
    header = ["metric", "primary", "higher_is_better", "variant", "mean", "deviation"]
    header += [*dict(_difference_cells(None)), "resamples"]
    rows: list[list[CsvValue]] = []
    for metric in wording.metric_names(result):
        primary = metric == result.metric
        for variant in result.variants:
            spread = variant.last.get(metric)
            difference = variant.difference if primary else variant.other_differences.get(metric)
            row: list[CsvValue] = [metric, primary, wording.is_higher_better(result, metric), variant.name]
            row += [spread.mean, spread.deviation] if spread else [None, None]
            row += [value for _, value in _difference_cells(difference)]
            rows.append([*row, difference.resamples if difference else None])
    return table_csv(header, rows)


def suites_csv(result: StudyResult) -> str:
    """Return the text of suites.csv: one row per suite, condition and variant; empty if missing."""
    header = ["suite", "condition", "label", "noise_seeds", "examples", "metric", "variant", "mean", "deviation"]
    header += [*(name for name in dict(_difference_cells(None)) if name not in _NOT_OF_SUITES), "reason"]
    rows: list[list[CsvValue]] = []
    for suite in result.suites:
        for condition in suite.conditions:
            head: list[CsvValue] = [suite.name, condition.name, condition.label]
            head += [condition.noise_seeds, suite.examples, suite.metric]
            for variant, cell in zip(result.variants, condition.variants, strict=True):
                value = (cell.value.mean, cell.value.deviation) if cell.value else (None, None)
                difference = dict(_difference_cells(cell.difference))
                cells = [number for name, number in difference.items() if name not in _NOT_OF_SUITES]
                rows.append([*head, variant.name, *value, *cells, cell.reason])
    return table_csv(header, rows)


def table_csv(header: Sequence[str], rows: Iterable[Iterable[CsvValue]]) -> str:
    """Return a table as the text of a CSV file; None becomes an empty cell, and no cell a formula."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(csv_cell, header))
    writer.writerows(map(csv_cell, row) for row in rows)
    return text.getvalue()


def _csv_cells(variant: VariantResult, result: StudyResult) -> Iterator[tuple[str, CsvValue]]:
    yield from (("variant", variant.name), ("spec", variant.spec), ("baseline", variant.is_baseline))
    if wording.has_other_hosts(result):
        yield "host", "" if variant.host is None else wording.host_label(variant.host)
    if wording.has_other_recipes(result):
        yield "recipe", wording.recipe_text(variant.recipe)
    epochs = wording.epochs_of(variant, result)
    yield from (("metric", result.metric), ("epochs", epochs), ("seeds_finished", len(variant.runs)))
    if result.halving is not None:
        yield "stopped_after_epoch", result.halving.stopped.get(variant.name)
    for name in wording.metric_names(result):
        for kind, spreads in (("last", variant.last), ("best", variant.best)):
            spread = spreads.get(name)
            yield f"{kind}_{name}_mean", spread.mean if spread else None
            yield f"{kind}_{name}_deviation", spread.deviation if spread else None
    if result.until is not None:
        tested = result.until.last(variant.name)
        yield "decision", None if tested is None else tested[1].decision
    yield from _difference_cells(variant.difference)
    cost = variant.cost
    for name in ("parameters", "macs", "train_seconds_per_step", "inference_seconds_per_batch", "peak_memory_bytes"):
        yield name, None if cost is None else getattr(cost, name)
    yield from ((f"{name}_ratio", number) for name, number in cost_ratios(cost).items())
    for name in ("train_time_ratio", "inference_time_ratio"):
        interval: Interval | None = None if cost is None else getattr(cost, name)
        yield f"{name}_low", interval.low if interval else None
        yield f"{name}_high", interval.high if interval else None
    reached = variant.epochs_to_baseline
    yield "epochs_to_baseline_target", reached.target if reached else None
    yield "epochs_to_baseline", reached.of_mean_curve if reached else None
    yield "epochs_of_baseline", reached.baseline_epoch if reached else None
    yield "epochs_to_baseline_ratio", reached.ratio if reached else None
    yield "epochs_to_baseline_speed_up", reached.speed_up if reached else None
    last = {run.seed: run.last.get(result.metric) for run in variant.runs}
    for seed in result.seeds:
        yield f"last_{result.metric}_seed{seed}", last.get(seed)


def _difference_cells(difference: Difference | None) -> Iterator[tuple[str, CsvValue]]:
    yield "difference", difference.mean if difference else None
    for name in ("interval", "bootstrap", "t"):
        interval: Interval | None = getattr(difference, name) if difference else None
        yield f"{name}_low", interval.low if interval else None
        yield f"{name}_high", interval.high if interval else None
    for name in ("p_value", "p_holm", "p_source", "verdict", "detectable", "seeds_for_point", "examples_for_point"):
        yield name, getattr(difference, name) if difference else None
