"""Invented studies, consistent in themselves, for everything that draws: the usual one and each of the odd ones."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np
from rich.console import Console
from scipy import stats

from attngraft.report.tables import study_table
from attngraft.results.sections import Column, Matrix, Metric, Reliability, Section, Table
from attngraft.results.statistics import epochs_to_baseline
from attngraft.results.study import (
    Cost,
    Difference,
    Interval,
    McNemar,
    RunSummary,
    Spread,
    StudyResult,
    VariantResult,
    Verdict,
)
from attngraft.tasks.classification import Classification

FLIP = 40.0  #: perplexity that a share of 1 is worth in the translation study
HOSTILE = """<script>alert("x")</script> & 'cb' $\\frac{1}{0}$ "quoted" `|` [b]"""

#: name -> (specification, gain in points, noise of the gain between seeds, cost ratios)
USUAL: dict[str, tuple[str, float, float, tuple[float, float, float, float, float]]] = {
    "none": ("none", 0.0, 0.0, (1.0, 1.0, 1.0, 1.0, 1.0)),
    "cb": ("cb@all", 0.25, 0.40, (1.0, 1.0, 1.012, 1.004, 1.0)),
    "cb_s": ("cb_s@all", 1.60, 0.20, (1.0004, 1.0, 1.021, 1.009, 1.001)),
    "horizontal": ("horizontal@all", -0.10, 0.70, (1.006, 1.0011, 1.048, 1.031, 1.014)),
    "vertical": ("vertical@all", -1.90, 0.25, (1.083, 1.0002, 1.062, 1.040, 1.022)),
}


def usual(*, seeds: int = 3, epochs: int = 12, names: tuple[str, ...] = tuple(USUAL)) -> StudyResult:
    """A classification study: one better, one worse, two inside the noise."""
    runs = {name: [_run(name, seed, epochs) for seed in range(seeds)] for name in names}
    variants = [_variant(name, runs[name], runs[names[0]], comparisons=len(names) - 1) for name in names]
    notes = [] if seeds > 1 else ["One seed: the noise between seeds is unknown."]
    return StudyResult(
        title="CIFAR-10 subset, ViT-Ti/4",
        created="2025-11-21T10:00:00+00:00",
        version="0.1.0",
        command="attngraft compare --host vit_tiny_patch16_224 --graft none --graft cb --data ./cifar10 --seeds 3",
        task="classification",
        metric="top1",
        metrics=dict(Classification.metrics),
        higher_is_better=True,
        host={"name": "vit_tiny_patch16_224", "args": {"img_size": 32, "depth": 6}, "pretrained": False},
        data={
            "task": "classification",
            "source": "./cifar10",
            "kind": "folder",
            "classes": ["airplane", "bird", "cat"],
            "sizes": {"train": 1500, "val": 300},
            "counts": {
                "train": {"airplane": 520, "bird": 500, "cat": 480},
                "val": {"airplane": 100, "bird": 101, "cat": 99},
            },
            "input": {"size": [3, 32, 32], "interpolation": "bicubic"},
        },
        recipe={
            "host": {"name": "vit_tiny_patch16_224"},
            "optimizer": {"name": "adamw", "lr": 0.001, "weight_decay": 0.05},
            "schedule": {"name": "cosine", "epochs": epochs, "warmup_epochs": 2},
        },
        environment={
            "python": "3.11.9",
            "torch": "2.12.1",
            "timm": "1.0.26",
            "device": "cpu",
            "threads": 2,
            "commit": None,
        },
        seeds=list(range(seeds)),
        epochs=epochs,
        variants=variants,
        notes=notes,
    )


def one_seed() -> StudyResult:
    return usual(seeds=1)


def only_baseline() -> StudyResult:
    return usual(names=("none",))


def without_costs() -> StudyResult:
    """No cost was measured for some variants, and only the counts for the others."""
    study = usual()
    bare: dict[str, Any] = dict.fromkeys(
        ("train_time_ratio", "inference_time_ratio", "memory_ratio", "train_seconds_per_step")
    )
    bare |= dict.fromkeys(("inference_seconds_per_batch", "peak_memory_bytes", "macs", "macs_ratio"))
    costs = [replace(v.cost, **bare) if v.cost and i < 3 else None for i, v in enumerate(study.variants)]
    return replace(study, variants=[replace(v, cost=c) for v, c in zip(study.variants, costs, strict=True)])


def with_failed_runs() -> StudyResult:
    """One variant lost a seed, another has no finished run."""
    study = usual()
    none, cb, cb_s, horizontal, vertical = study.variants
    vertical = replace(vertical, runs=[], last={}, best={}, cost=None, difference=None, epochs_to_baseline=None)
    horizontal = replace(horizontal, runs=horizontal.runs[:2])
    notes = ["horizontal: seed 2 stopped at step 120, loss not finite.", "vertical: no run finished."]
    return replace(study, variants=[none, cb, cb_s, horizontal, vertical], notes=notes)


def with_hostile_names() -> StudyResult:
    """Long names, markup, mathematics and control characters wherever a user's string can stand."""
    study = usual()
    names = ["none", "cb_s@blocks.6-11 + horizontal(scope=window, form=identity)@first:2 + " * 2, HOSTILE]
    names += ["日本語の名前", "bell\a\x00\x1b[31m"]
    return replace(
        study,
        title=HOSTILE,
        command=f"attngraft compare --data {HOSTILE}",
        data={"source": HOSTILE, "counts": {"train": {HOSTILE: 3, "b": 4}, HOSTILE: {HOSTILE: 1, "b": 2}}},
        host={"name": HOSTILE, "args": {"x": HOSTILE}, "pretrained": True},
        recipe={"graft": HOSTILE, HOSTILE: [HOSTILE]},
        environment={"commit": HOSTILE},
        notes=[HOSTILE],
        variants=[replace(v, name=n, spec=n) for v, n in zip(study.variants, names, strict=True)],
    )


def with_other_metrics() -> StudyResult:
    """Two other metrics, the second in the other direction and not compared for one variant."""
    study = usual()
    variants = []
    for variant in study.variants:
        top1, others = variant.difference, {}
        if top1 is not None:
            others["macro_f1"] = top1
            if variant.name != "cb":
                t, interval = (None if each is None else _negated(each) for each in (top1.t, top1.interval))
                loss = replace(top1, mean=-FLIP * top1.mean, bootstrap=_negated(top1.bootstrap), t=t, mcnemar=[])
                loss = replace(loss, interval=interval, seeds_for_point=None, examples_for_point=None)
                others["loss"] = replace(loss, resamples=640)
        variants.append(replace(variant, other_differences=others))
    notes = ["The bootstrap intervals of loss are from 640 resamples, not 2,000, which would take over a minute."]
    return replace(study, variants=variants, notes=notes)


def translation() -> StudyResult:
    """Lower is better, no class, no image, no McNemar, no top-anything."""
    study = usual()

    def perplexity(top1: float) -> float:
        return 40.0 - FLIP * top1

    def convert(metrics: dict[str, float]) -> dict[str, float]:
        return {"perplexity": perplexity(metrics["top1"]), "bleu": 33 * metrics["top1"]}

    def run(found: RunSummary) -> RunSummary:
        curve = {"epoch": found.curve["epoch"], "train/loss": found.curve["train/loss"]}
        curve["val/perplexity"] = [perplexity(v) for v in found.curve["val/top1"]]
        return replace(found, last=convert(found.last), best=convert(found.best), curve=curve)

    variants = []
    for variant in study.variants:
        runs = [run(found) for found in variant.runs]
        difference = variant.difference
        if difference is not None:
            difference = replace(
                difference,
                mean=-FLIP * difference.mean,
                bootstrap=_negated(difference.bootstrap),
                t=_negated(difference.t) if difference.t else None,
                interval=_negated(difference.interval) if difference.interval else None,
                seeds_for_point=None,
                examples_for_point=None,
                mcnemar=[],
            )
        reached = variant.epochs_to_baseline
        reached = replace(reached, target=perplexity(reached.target)) if reached else None
        variants.append(
            replace(
                variant,
                runs=runs,
                last=_spreads([r.last for r in runs]),
                best=_spreads([r.best for r in runs]),
                difference=difference,
                epochs_to_baseline=reached,
            )
        )
    return replace(
        study,
        title="Multi30k, small encoder-decoder",
        task="translation",
        metric="perplexity",
        metrics={"bleu": Metric(label="BLEU")},
        higher_is_better=False,
        host={"name": "translation_base", "args": {}, "pretrained": False},
        data={"pairs": {"train": 29000, "val": 1014}, "languages": ["de", "en"], "vocabulary": 8000},
        variants=variants,
    )


def sections(variant: int, names: list[str], *, matrix: int | None = None) -> list[Section]:
    """What a task could say of a variant: tables by class and of its own, a matrix of `matrix` classes, reliability."""
    draw = np.random.default_rng(variant)
    shares = draw.random((len(names), 2)).round(6).tolist()
    by_class = Table(
        columns=[
            Column(name="class", kind="text"),
            Column(name="images", kind="count", role="common"),
            Column(name="recall", kind="share"),
            Column(name="F1", kind="share", role="compared", parts_of="f1"),
        ],
        rows=[
            [name, 1200 + i, r, None if i == 1 else f1]
            for i, (name, (r, f1)) in enumerate(zip(names, shares, strict=True))
        ],
    )
    size = min(len(names), 50) if matrix is None else matrix
    counts = draw.integers(0, 40, (size, size))
    confused = Matrix(
        rows=names[:size],
        columns=names[:size],
        row_axis="true class",
        column_axis="predicted class",
        counts=(counts + 300 * np.eye(size, dtype=int)).tolist(),
    )
    bins = draw.integers(0, 90, 15)
    bins[3] = 0
    stated = [None if n == 0 else (i + 0.5) / 15 for i, n in enumerate(bins)]
    reliable = Reliability(
        counts=bins.tolist(), stated=stated, observed=stated[::-1][:3] + stated[3:], error_by_seed=[0.1]
    )
    longest = Table(
        columns=[Column(name="pair", kind="text"), Column(name="weight")],
        rows=[[f"{names[0]} and {i}", i / 7] for i in range(120)],
    )
    return [
        Section(name="classes", title="Class by class", note="Means over seeds.", table=by_class),
        Section(name="confusion", title="Confusion matrix", matrix=confused),
        Section(name="reliability", title="Reliability", numbers={"ECE": 0.03 + variant / 100}, reliability=reliable),
        Section(name="pairs", title="Pairs", table=longest),
    ]


def with_sections() -> StudyResult:
    """A task that has much to say, of classes with hostile names; nothing of a variant without runs."""
    study = with_failed_runs()
    names = [HOSTILE, "日本語の名前", "bell\a\x00\x1b[31m", *(f"class {i}" for i in range(3, 9))]
    interval = Interval(point=0.01, low=-0.02, high=0.04)
    said = [
        replace(v, sections=sections(i, names), part_differences={"f1": [None, *[interval] * 8]} if i else {})
        if v.runs
        else v
        for i, v in enumerate(study.variants)
    ]
    return replace(study, variants=said)


def with_many_classes() -> StudyResult:
    """A matrix too large for numbers, and more rows than a page shows."""
    study = usual()
    names = [f"class {i}" for i in range(150)]
    return replace(study, variants=[replace(v, sections=sections(i, names)) for i, v in enumerate(study.variants)])


ALL = {
    "usual": usual,
    "one_seed": one_seed,
    "two_seeds": lambda: usual(seeds=2),
    "only_baseline": only_baseline,
    "without_costs": without_costs,
    "with_failed_runs": with_failed_runs,
    "with_hostile_names": with_hostile_names,
    "with_other_metrics": with_other_metrics,
    "translation": translation,
    "with_sections": with_sections,
    "with_many_classes": with_many_classes,
}


def _negated(interval: Interval) -> Interval:
    return Interval(point=-FLIP * interval.point, low=-FLIP * interval.high, high=-FLIP * interval.low)


def _run(name: str, seed: int, epochs: int) -> RunSummary:
    _, gain, noise, ratios = USUAL[name]
    own = np.random.default_rng([seed, list(USUAL).index(name)])
    end = 61.0 + 0.6 * np.random.default_rng([seed]).standard_normal() + gain + noise * own.standard_normal()
    steps = np.arange(1, epochs + 1)
    rise = 1 - np.exp(-3.2 * steps / epochs)
    top1 = end - (end - 18) * (1 - rise / rise[-1]) + np.append(0.5 * own.standard_normal(epochs - 1), 0.0)
    loss = 2.3 - 1.5 * (rise / rise[-1]) * (end / 61.0) + 0.02 * own.standard_normal(epochs)
    top1 /= 100
    best = int(np.argmax(top1))

    def metrics(value: float) -> dict[str, float]:
        return {"top1": value, "top5": min(0.999, value + 0.31), "balanced_accuracy": value - 0.003, "loss": 1.2}

    return RunSummary(
        seed=seed,
        folder=f"runs/{name}/seed{seed}",
        last=metrics(float(top1[-1])),
        best=metrics(float(top1[best])),
        best_epoch=best + 1,
        curve={
            "epoch": [float(step) for step in steps],
            "train/loss": loss.tolist(),
            "val/top1": top1.tolist(),
        },
        seconds=72.0 * ratios[2],
    )


def _spreads(found: list[dict[str, float]]) -> dict[str, Spread]:
    if not found:
        return {}
    deviations = len(found) > 1
    return {
        name: Spread(
            mean=float(np.mean([m[name] for m in found])),
            deviation=float(np.std([m[name] for m in found], ddof=1)) if deviations else None,
        )
        for name in found[0]
    }


def _variant(name: str, runs: list[RunSummary], base: list[RunSummary], *, comparisons: int) -> VariantResult:
    spec, _, _, ratios = USUAL[name]
    is_baseline = runs is base
    return VariantResult(
        name=name,
        spec=spec,
        is_baseline=is_baseline,
        runs=runs,
        last=_spreads([run.last for run in runs]),
        best=_spreads([run.best for run in runs]),
        cost=_cost(ratios, is_baseline=is_baseline),
        difference=None if is_baseline else _difference(runs, base, comparisons),
        epochs_to_baseline=epochs_to_baseline(runs, base, key="val/top1", higher_is_better=True),
    )


def _cost(ratios: tuple[float, float, float, float, float], *, is_baseline: bool) -> Cost:
    parameters, macs, train, inference, memory = ratios

    def interval(ratio: float) -> Interval:
        return Interval(
            point=ratio, low=ratio * (1 if is_baseline else 0.99), high=ratio * (1 if is_baseline else 1.01)
        )

    return Cost(
        parameters=round(2_697_610 * parameters),
        macs=round(172_441_088 * macs),
        parameters_ratio=parameters,
        macs_ratio=macs,
        train_time_ratio=interval(train),
        inference_time_ratio=interval(inference),
        memory_ratio=memory,
        train_seconds_per_step=0.1234 * train,
        inference_seconds_per_batch=0.0387 * inference,
        peak_memory_bytes=round(412_000_000 * memory),
    )


def _difference(runs: list[RunSummary], base: list[RunSummary], comparisons: int) -> Difference:
    gaps = np.array([a.last["top1"] - b.last["top1"] for a, b in zip(runs, base, strict=True)])
    mean, n = float(gaps.mean()), len(gaps)
    half = 0.005
    tests = []
    for run, gap in zip(runs, gaps, strict=True):
        only = max(0, round(300 + 5000 * gap)), max(0, round(300 - 5000 * gap))
        exact = stats.binomtest(only[0], max(1, sum(only))).pvalue
        tests.append(McNemar(seed=run.seed, only_variant=only[0], only_baseline=only[1], p_value=float(exact)))
    t, p = None, tests[0].p_value
    if n > 1:
        reach = float(stats.t.ppf(0.975, n - 1) * gaps.std(ddof=1) / np.sqrt(n))
        t = Interval(point=mean, low=mean - reach, high=mean + reach)
        p = float(stats.ttest_1samp(gaps, 0.0).pvalue)
        half = float(np.hypot(0.0035, reach))
    bootstrap = Interval(point=mean, low=mean - half, high=mean + half)
    verdict: Verdict = "inside the noise"
    interval = None if t is None else Interval(point=mean, low=mean - 0.95 * half, high=mean + 0.95 * half)
    why = f"the 95% interval over {n} seeds and 5000 examples, {mean - half:+.2f} to {mean + half:+.2f}, contains zero"
    if interval is None:
        why = "with one seed the noise between seeds is unknown, so nothing is called better or worse"
    elif interval.low > 0 or interval.high < 0:
        verdict = "better" if mean > 0 else "worse"
        why = f"the 95% interval over {n} seeds and 5000 examples lies {'above' if mean > 0 else 'below'} zero"
    return Difference(
        mean=mean,
        bootstrap=bootstrap,
        t=t,
        p_value=p,
        p_holm=min(1.0, p * comparisons),
        p_source="crossed over seeds and examples" if n > 1 else "exact McNemar",
        mcnemar=tests,
        verdict=verdict,
        why=why,
        interval=interval,
        examples=5000,
        detectable=None if interval is None else 3.2 * half / 2,
        seeds_for_point=None if interval is None else 2 * n,
        examples_for_point=None if interval is None else 21_345,
    )


def table_text(result: StudyResult, *, width: int = 88) -> str:
    """The terminal's table without control codes."""
    text = io.StringIO()
    Console(file=text, width=width, color_system=None, force_terminal=False, legacy_windows=False).print(
        study_table(result)
    )
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"
