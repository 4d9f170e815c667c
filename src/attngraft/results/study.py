"""The result of a study as plain data, written to results.json and shown by the report."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attngraft.errors import UsageError
from attngraft.notebook import html_table, show_page
from attngraft.results.sections import Metric, Section
from attngraft.strict import require

if TYPE_CHECKING:
    import pandas

FORMAT = 1
REPORT_FILE = "report.html"

Verdict = Literal["better", "worse", "inside the noise"]  #: "inside the noise" means no significant difference
Curve = dict[str, list[float]]  #: "epoch", "train/loss", "val/top1", ... (and "step") -> one value per evaluation


def _check_range(result: object, *names: str, high: float = math.inf) -> None:
    """Check that numbers, as far as they are known, are from 0 to `high`."""
    rule = f"must be from 0 to {high:g}" if math.isfinite(high) else "must not be negative"
    for name in names:
        value = getattr(result, name)
        require(result, name, value is None or not (value < 0 or value > high), rule)


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A point estimate and its 95% interval."""

    point: float
    low: float
    high: float

    def __post_init__(self) -> None:
        require(self, "low", not self.low > self.high, f"must not exceed high, {self.high:g}")


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run: one variant trained with one seed."""

    seed: int
    folder: str  #: relative to the study's folder
    last: dict[str, float]  #: compared metrics: of `judged_weights` on `judged_split`, as set in `StudyResult`
    best: dict[str, float]  #: metrics at the epoch with the best primary metric
    best_epoch: int
    curve: Curve
    seconds: float

    def includes(self, folder: str) -> bool:
        """Return whether a run's folder, relative to the study's folder, is this run's or that of one of its folds."""
        return folder == self.folder or folder.rpartition("/")[0] == self.folder


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Mean and sample standard deviation over seeds; the deviation is None for one seed."""

    mean: float
    deviation: float | None

    def __post_init__(self) -> None:
        _check_range(self, "deviation")


@dataclass(frozen=True, kw_only=True)
class McNemar:
    """Exact McNemar test for one seed, with the counts of examples that only one model gets right."""

    seed: int
    only_variant: int
    only_baseline: int
    p_value: float

    def __post_init__(self) -> None:
        _check_range(self, "only_variant", "only_baseline")
        _check_range(self, "p_value", high=1)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Difference in a metric, variant minus baseline, paired by seed and example."""

    mean: float
    bootstrap: Interval  #: crossed bootstrap over seeds and examples
    t: Interval | None  #: t-interval over seeds; None for one seed, or if all seeds have the same nonzero difference
    p_value: (
        float | None
    )  #: below 0.05 if `interval` excludes zero; None without an interval; one seed: of McNemar's test
    p_holm: float | None  #: after Holm's correction over the study's variants
    #: results of older versions: "paired t over seeds"
    p_source: Literal["crossed over seeds and examples", "exact McNemar", "paired t over seeds"]
    mcnemar: list[McNemar]
    verdict: Verdict
    why: str  #: reason for the verdict, in one sentence with the numbers
    #: the interval that decides the verdict: 95%, or of the last round (`until`); None for one seed, and in older results
    interval: Interval | None = None
    examples: int | None = None  #: number of examples; None in results of older versions
    detectable: float | None = None  #: smallest true difference that the study finds with 80% power
    seeds_for_point: int | None = None  #: number of seeds that finds one point with 80% power on the same examples
    examples_for_point: int | None = None  #: number of examples that finds one point with 80% power and the same seeds
    resamples: int = 2000  #: number of bootstrap resamples; below 2,000 if these would take over a minute
    held_fixed: str = ""  #: quantities that are not recomputed for each resample (`Statistic.held_fixed`)

    def __post_init__(self) -> None:
        _check_range(self, "p_value", "p_holm", high=1)
        _check_range(self, "examples", "detectable", "seeds_for_point", "examples_for_point", "resamples")


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Costs of a variant, and ratios to the baseline, timed alternately. None: not measured."""

    parameters: int
    macs: int | None
    parameters_ratio: float
    macs_ratio: float | None
    train_time_ratio: Interval | None  #: seconds per training step
    inference_time_ratio: Interval | None  #: seconds per forward pass
    memory_ratio: float | None  #: peak memory of a training step
    train_seconds_per_step: float | None
    inference_seconds_per_batch: float | None
    peak_memory_bytes: int | None
    #: reasons by quantity ("training time", "inference time", "multiply-adds", "memory"), as far as they are known
    not_measured: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            lowest = value.low if isinstance(value, Interval) else value
            require(self, name, not (isinstance(lowest, int | float) and lowest < 0), "must not be negative")


@dataclass(frozen=True, kw_only=True)
class Chance:
    """Metrics of predictions that do not use the inputs, from the labels of the training data."""

    description: str  #: "always the most frequent class of the training data"
    values: dict[str, float]  #: by metric, on the examples that the study compares on


@dataclass(frozen=True, kw_only=True)
class EpochsToBaseline:
    """Epochs (1-based) until the baseline's best mean over seeds is reached; None if never reached.

    `ratio` and `speed_up` refer to the mean curves. They are None in results of older versions.
    """

    target: float  #: the best value of the baseline's mean curve
    by_seed: dict[int, int | None]
    of_mean_curve: int | None
    baseline_epoch: int | None = None  #: the first epoch at which the baseline's own mean curve reaches `target`
    ratio: float | None = None  #: of_mean_curve / baseline_epoch; below 1 the variant is faster
    speed_up: float | None = None  #: 1 / ratio

    def ratio_of(self, seed: int) -> float | None:
        """Return the ratio for the curve of one seed; None if the curve never reaches the target."""
        reached = self.by_seed.get(seed)
        return None if reached is None or self.baseline_epoch is None else reached / self.baseline_epoch


@dataclass(frozen=True, kw_only=True)
class VariantResult:
    """All results of one variant."""

    name: str
    spec: str  #: canonical graft specification; "none" for the host without grafts
    is_baseline: bool
    runs: list[RunSummary]
    last: dict[str, Spread]
    best: dict[str, Spread]  #: metrics at the best epoch of each seed (secondary)
    cost: Cost | None
    difference: Difference | None  #: None for the baseline
    epochs_to_baseline: EpochsToBaseline | None
    not_compared: str = ""  #: why there is no difference, although variant and baseline have runs with the same seed
    sections: list[Section] = field(default_factory=list)  #: the task's results besides metrics
    #: differences in the non-primary metrics that can be resampled; p_holm is corrected over variants, not over metrics
    other_differences: dict[str, Difference] = field(default_factory=dict)
    #: differences in the parts of metrics that the sections' columns name (`Column.parts_of`), by metric: one per row; None
    #: if the part is undefined for a seed or defined by fewer than two examples
    part_differences: dict[str, list[Interval | None]] = field(default_factory=dict)
    host: dict[str, Any] | None = None  #: name, args, ... of the host; None: the study's host
    recipe: dict[str, Any] = field(default_factory=dict)  #: dotted field -> value, if not the study's
    #: mean absolute change of an example's score from the baseline, divided by the mean absolute difference between the
    #: scores of two examples of the baseline; None if there are no scores or all are equal
    relative_change: float | None = None
    too_short: bool = False  #: whether the study is too short to tell the variant from the baseline


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Result of a variant at a rung of successive halving."""

    variant: str
    epoch: int  #: epoch of the rung
    score: float | None  #: mean over seeds of the primary metric after this epoch; None if it is NaN
    promoted: bool  #: whether training continued past the rung


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A variant with a failed run, which successive halving excluded from then on."""

    variant: str
    arrivals: int  #: number of standings at the time of the failure


@dataclass(frozen=True, kw_only=True)
class HalvingResult:
    """Decisions of successive halving, and the scores that they are based on."""

    eta: int
    rungs: list[int]  #: epochs after which variants are compared
    epochs: int  #: number of epochs of a complete run
    metric: str
    higher_is_better: bool
    standings: list[Standing] = field(default_factory=list)  #: in the order of arrival at the rungs
    lost: list[Lost] = field(default_factory=list)
    stopped: dict[str, int] = field(default_factory=dict)  #: stopped variant -> epoch of its last rung


#: "unlikely to be decided": given up, because a decision within the maximum number of seeds is unlikely
Decision = Literal["better", "worse", "within the margin", "unlikely to be decided", "undecided"]


@dataclass(frozen=True, kw_only=True)
class RoundVariant:
    """Test of a variant after a round of seeds."""

    variant: str
    tests: int  #: number of variants that Holm's correction counts in this test
    level: float  #: level of the test, corrected for rounds and variants
    interval: Interval | None  #: with confidence 1 - `level`; None if the noise between seeds cannot be estimated
    p_value: float | None  #: not corrected: at most `level` if the interval excludes zero
    decision: Decision

    def __post_init__(self) -> None:
        _check_range(self, "level", "p_value", high=1)


@dataclass(frozen=True, kw_only=True)
class Round:
    """A round of seeds, after which all undecided variants were tested."""

    seeds: int  #: number of seeds of each undecided variant and of the baseline
    runs: int  #: number of finished runs, of all rounds so far
    spent: float  #: probability of a false call that was spent so far
    variants: list[RoundVariant]


@dataclass(frozen=True, kw_only=True)
class UntilResult:
    """Rounds of a study with `--until decided`."""

    rounds: list[Round]
    most_seeds: int  #: maximum number of seeds
    margin: float | None = None  #: in the unit of the stored metric (accuracy: fraction of 1)
    budget: float | None = None  #: seconds of training
    failed: list[str] = field(default_factory=list)  #: variants with a failed run, which later rounds leave out

    def last(self, name: str) -> tuple[int, RoundVariant] | None:
        """Return the number of seeds and the test of the last round that tested the variant."""
        for each in reversed(self.rounds):
            for test in each.variants:
                if test.variant == name:
                    return each.seeds, test
        return None


@dataclass(frozen=True, kw_only=True)
class ConditionVariant:
    """Result of a variant under a condition."""

    value: Spread | None  #: the suite's metric over seeds, after averaging over noise seeds; None: no run was evaluated
    difference: Difference | None  #: None for the baseline or without a common seed; not corrected for conditions
    reason: str = ""  #: reason why there are no numbers


@dataclass(frozen=True, kw_only=True)
class ConditionResult:
    """Results under a condition of a suite, or their mean over the severities of a kind."""

    name: str
    label: str
    variants: list[ConditionVariant]  #: in the study's order
    noise_seeds: int = 0  #: number of noise seeds over which scores are averaged; 0: not random
    kind: str = ""
    severity: int | None = None


@dataclass(frozen=True, kw_only=True)
class SuiteResult:
    """Results of all variants under a suite."""

    name: str
    title: str
    data: str  #: evaluation data
    metric: str
    higher_is_better: bool
    examples: int
    conditions: list[ConditionResult]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """The result of a study, as returned by `attngraft.read_study` and `attngraft.study.compare`."""

    title: str
    created: str  #: time of creation, ISO 8601 in UTC
    version: str
    command: str  #: command line that repeats the study
    task: str
    metric: str  #: the primary metric
    higher_is_better: bool
    host: dict[str, Any]  #: name, args, pretrained; the host of the baseline and of all variants without `host`
    data: dict[str, Any]  #: the task's facts
    recipe: dict[str, Any]  #: resolved recipe, without the changes of individual variants
    environment: dict[str, Any]
    seeds: list[int]
    epochs: int
    variants: list[VariantResult]
    notes: list[str] = field(default_factory=list)  #: warnings for the reader (one seed, missing runs, ...)
    metrics: dict[str, Metric] = field(default_factory=dict)  #: labels and units; default label: the name
    halving: HalvingResult | None = None  #: None: halving was not used
    until: UntilResult | None = None  #: None: the number of seeds was fixed
    steps: int | None = None  #: number of updates of a run, if the recipe counts updates instead of epochs
    folds: int | None = None  #: folds of cross-validation; `seeds` then have one run per fold. None: one run per seed
    judged_weights: Literal["last", "best"] = "last"  #: epoch whose weights are compared
    judged_split: Literal["val", "test"] = "val"  #: split on which variants are compared
    light_curves: bool = False  #: whether curves use cheaper inference than the compared metrics
    suites: list[SuiteResult] = field(default_factory=list)  #: results under the study's suites
    chance: Chance | None = None  #: None: the task does not define it
    too_short: list[str] = field(default_factory=list)  #: why the study is too short to tell, and what to change
    format: int = FORMAT
    folder: Path | None = field(default=None, compare=False, repr=False)  #: the study's folder; not in results.json

    def to_frame(self, by: Literal["variant", "run"] = "variant") -> pandas.DataFrame:
        """Return the result as a pandas DataFrame.

        Args:
            by: "variant" for one row per variant, with the columns of results.csv; "run" for one row per variant and seed,
                with the metrics of the compared epoch (`last_...`) and of the best epoch (`best_...`).

        Raises:
            UsageError: pandas is not installed, or `by` is another value.
        """
        from attngraft.results.storage import csv_rows, run_rows

        rows = {"variant": csv_rows, "run": run_rows}
        if by not in rows:
            raise UsageError(f'to_frame: by={by!r} must be "variant" or "run"')
        try:
            import pandas  # optional
        except ImportError:
            raise UsageError("to_frame requires pandas; run pip install pandas") from None
        return pandas.DataFrame(rows[by](self))

    def show(self) -> None:
        """Show the report: in a notebook below the cell, elsewhere in the web browser.

        Raises:
            UsageError: the study's folder is unknown or has no report, or there is no web browser.
        """
        if self.folder is None:
            raise UsageError("this result has no folder; read it with attngraft.read_study(folder)")
        page = self.folder / REPORT_FILE
        if not page.is_file():
            raise UsageError(f"{page}: no report; run attngraft compare --report-only --out {self.folder}")
        show_page(page)

    def _repr_html_(self) -> str:
        from attngraft.results import wording

        style = wording.metric_format(self)
        header = ("variant", style.title, "difference", wording.interval_name(self), "verdict", "parameters")
        rows = []
        for variant in self.variants:
            spread, difference, cost = variant.last.get(self.metric), variant.difference, variant.cost
            rows.append(
                (
                    wording.shown(variant.name),
                    wording.spread_text(spread.mean, spread.deviation, style) if spread else wording.ABSENT,
                    style.change(difference.mean) if difference else "",
                    style.interval(wording.deciding_interval(difference)) if difference else "",
                    wording.verdict_text(self, variant),
                    wording.si(cost.parameters) if cost else "not measured",
                )
            )
        return html_table(
            wording.shown(self.title),
            header,
            rows,
            notes=filter(None, [*wording.outcome(self), wording.chance_text(self)]),
        )
