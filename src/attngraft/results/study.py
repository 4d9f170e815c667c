"""The result of a study as plain data: written to results.json, read by the report."""

from dataclasses import dataclass, field
from typing import Any, Literal

from attngraft.results.sections import Metric, Section

FORMAT = 1

Verdict = Literal["better", "worse", "inside the noise"]  #: "inside the noise": no significant difference
Curve = dict[str, list[float]]  #: "epoch" and, per metric ("train/loss", "val/top1"), one value per epoch


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A point estimate and its 95% interval."""

    point: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One variant trained with one seed."""

    seed: int
    folder: str  #: relative to the study's folder
    last: dict[str, float]  #: metrics at the last epoch, which are compared
    best: dict[str, float]  #: metrics at the epoch with the best primary metric
    best_epoch: int
    curve: Curve
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Mean and sample standard deviation over seeds; the deviation is None with one seed."""

    mean: float
    deviation: float | None


@dataclass(frozen=True, kw_only=True)
class McNemar:
    """Exact McNemar test of one seed, with the numbers of examples that only one of the two models gets right."""

    seed: int
    only_variant: int
    only_baseline: int
    p_value: float


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A variant's primary metric minus the baseline's, paired by seed and example, at the last epoch."""

    mean: float
    bootstrap: Interval  #: crossed over seeds and examples
    t: Interval | None  #: over seeds; None with one seed, and if all seeds agree exactly on a nonzero difference
    p_value: float | None  #: paired t over seeds, None if `t` is; McNemar's with one seed
    p_holm: float | None  #: corrected over the study's variants
    p_source: Literal["paired t over seeds", "exact McNemar"]
    mcnemar: list[McNemar]
    verdict: Verdict
    why: str  #: one sentence that can be checked against the numbers


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Costs of a variant. Ratios are to the baseline, measured side by side in one run; None if not measured."""

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


@dataclass(frozen=True, kw_only=True)
class EpochsToBaseline:
    """Epochs (1-based) until the baseline's best mean over seeds is reached; None if it never is.

    `ratio` and `speed_up` are of mean curves; they are None in results written before they were computed.
    """

    target: float  #: the best value of the baseline's mean curve
    by_seed: dict[int, int | None]
    of_mean_curve: int | None
    baseline_epoch: int | None = None  #: the first epoch at which the baseline's own mean curve reaches `target`
    ratio: float | None = None  #: of_mean_curve / baseline_epoch; below 1 the variant is faster
    speed_up: float | None = None  #: 1 / ratio

    def ratio_of(self, seed: int) -> float | None:
        """Return the same ratio for the curve of one seed; None if it never reaches the target."""
        reached = self.by_seed.get(seed)
        return None if reached is None or self.baseline_epoch is None else reached / self.baseline_epoch


@dataclass(frozen=True, kw_only=True)
class VariantResult:
    """All results of one variant."""

    name: str
    spec: str  #: canonical graft specification, "none" for the plain host
    is_baseline: bool
    runs: list[RunSummary]
    last: dict[str, Spread]
    best: dict[str, Spread]  #: secondary: best epoch by seed
    cost: Cost | None
    difference: Difference | None  #: None for the baseline
    epochs_to_baseline: EpochsToBaseline | None
    sections: list[Section] = field(default_factory=list)  #: the task's results beside its metrics
    host: dict[str, Any] | None = None  #: name, args, ... of a host other than the study's
    recipe: dict[str, Any] = field(default_factory=dict)  #: dotted fields that differ from the study's recipe


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A variant at a rung of successive halving."""

    variant: str
    epoch: int  #: the rung
    score: float | None  #: mean over seeds of the primary metric after that epoch; None if it is not a number
    promoted: bool  #: whether training was continued


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A variant with a failed run; successive halving continued without it."""

    variant: str
    arrivals: int  #: the number of standings at that time


@dataclass(frozen=True, kw_only=True)
class HalvingResult:
    """Decisions of successive halving, and the scores that they are based on."""

    eta: int
    rungs: list[int]  #: epochs after which variants were compared
    epochs: int  #: of a complete run
    metric: str
    higher_is_better: bool
    standings: list[Standing] = field(default_factory=list)  #: in the order in which variants reached the rungs
    lost: list[Lost] = field(default_factory=list)
    stopped: dict[str, int] = field(default_factory=dict)  #: the rung's epoch of every variant that was stopped


@dataclass(frozen=True, kw_only=True)
class ConditionVariant:
    """A variant under a condition."""

    value: Spread | None  #: the suite's metric over seeds, each a mean over noise seeds; None: no run was evaluated
    difference: Difference | None  #: None for the baseline, and if no seed has both; not corrected for conditions
    reason: str = ""  #: why there are no numbers


@dataclass(frozen=True, kw_only=True)
class ConditionResult:
    """A condition of a suite, or the mean over the severities of one kind."""

    name: str
    label: str
    variants: list[ConditionVariant]  #: in the study's order
    noise_seeds: int = 0  #: number of noise seeds that scores are averaged over; 0: nothing is random
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
    """The result of a study."""

    title: str
    created: str  #: ISO 8601, UTC
    version: str
    command: str  #: the command line that repeats the study
    task: str
    metric: str  #: the primary metric
    higher_is_better: bool
    host: dict[str, Any]  #: name, args, pretrained; of the baseline, and of all variants without a host of their own
    data: dict[str, Any]  #: the task's facts
    recipe: dict[
        str, Any
    ]  #: resolved; of the baseline, and of all variants except for the fields of `VariantResult.recipe`
    environment: dict[str, Any]
    seeds: list[int]
    epochs: int
    variants: list[VariantResult]
    notes: list[str] = field(default_factory=list)  #: warnings for the reader (one seed, runs missing, ...)
    metrics: dict[str, Metric] = field(default_factory=dict)  #: labels of metrics; others are labeled by their names
    halving: HalvingResult | None = None  #: None: no variant was to be stopped early
    suites: list[SuiteResult] = field(default_factory=list)  #: further evaluations of the finished runs
    format: int = FORMAT
