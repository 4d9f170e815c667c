"""results.csv and suites.csv: one flat row per variant, and per suite, condition and variant, unrounded."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from attngraft.results import wording
from attngraft.results.study import Cost, Difference, Interval, StudyResult, VariantResult

Row = dict[str, str | int | float | bool | None]


def csv_rows(result: StudyResult) -> list[Row]:
    """One flat row per variant, unrounded, all with the same columns; None where there is no number."""
    return [dict(_csv_cells(variant, result)) for variant in result.variants]


def csv_text(result: StudyResult) -> str:
    """`csv_rows` as the text of results.csv; None becomes an empty cell."""
    rows, sheet = csv_rows(result), io.StringIO()
    writer = csv.DictWriter(sheet, fieldnames=list(rows[0]) if rows else ["variant"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return sheet.getvalue()


def _csv_cells(variant: VariantResult, result: StudyResult) -> Iterator[tuple[str, str | int | float | bool | None]]:
    yield from (("variant", variant.name), ("spec", variant.spec), ("baseline", variant.is_baseline))
    if wording.has_other_hosts(result):
        yield "host", wording.host_of(variant)
    yield from (("metric", result.metric), ("epochs", result.epochs), ("seeds_finished", len(variant.runs)))
    if result.halving is not None:
        yield "stopped_after_epoch", result.halving.stopped.get(variant.name)
    for name in wording.metric_names(result):
        for kind, spreads in (("last", variant.last), ("best", variant.best)):
            spread = spreads.get(name)
            yield f"{kind}_{name}_mean", spread.mean if spread else None
            yield f"{kind}_{name}_deviation", spread.deviation if spread else None
    yield from _csv_difference(variant.difference)
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
    by_seed = {run.seed: run for run in variant.runs}
    for seed in result.seeds:
        run = by_seed.get(seed)
        yield f"last_{result.metric}_seed{seed}", run.last.get(result.metric) if run else None


def _csv_difference(found: Difference | None) -> Iterator[tuple[str, str | float | None]]:
    yield "difference", found.mean if found else None
    for name in ("bootstrap", "t"):
        interval: Interval | None = getattr(found, name) if found else None
        yield f"{name}_low", interval.low if interval else None
        yield f"{name}_high", interval.high if interval else None
    for name in ("p_value", "p_holm", "p_source", "verdict"):
        yield name, getattr(found, name) if found else None


def cost_ratios(cost: Cost | None) -> dict[str, float | None]:
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


_COLUMNS = ["suite", "condition", "label", "noise_seeds", "examples", "metric", "variant", "mean", "deviation"]
_DIFFERENCE = ["difference", "bootstrap_low", "bootstrap_high", "t_low", "t_high", "p_value", "verdict", "reason"]


def suites_csv(result: StudyResult) -> str:
    """suites.csv: a row per suite, condition and variant, unrounded; empty where there is no number."""
    sheet = io.StringIO()
    writer = csv.writer(sheet, lineterminator="\n")
    writer.writerow([*_COLUMNS, *_DIFFERENCE])
    writer.writerows(_rows(result))
    return sheet.getvalue()


def _rows(result: StudyResult) -> Iterator[list[object]]:
    for suite in result.suites:
        for condition in suite.conditions:
            for variant, each in zip(result.variants, condition.variants, strict=True):
                found, value = each.difference, each.value
                yield [
                    *(suite.name, condition.name, condition.label, condition.noise_seeds, suite.examples, suite.metric),
                    variant.name,
                    *((value.mean, value.deviation) if value else (None, None)),
                    *((found.mean, found.bootstrap.low, found.bootstrap.high) if found else (None, None, None)),
                    *((found.t.low, found.t.high) if found and found.t else (None, None)),
                    *((found.p_value, found.verdict) if found else (None, None)),
                    each.reason,
                ]
