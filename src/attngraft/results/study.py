"""The result of a study as plain data, which is written to results.json and shown by the report."""

from dataclasses import dataclass, field
from typing import Any, Literal

from attngraft.results.sections import Metric, Section

FORMAT = 1

Verdict = Literal["better", "worse", "inside the noise"]  #: "inside the noise": no significant difference
Curve = dict[str, list[float]]  #: "epoch", "step" if updates are counted, "train/loss", "val/top1", ...: by evaluation


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A point estimate and its 95% interval."""

    point: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run: one variant trained with one seed."""

    seed: int
    folder: str  #: relative to the study's folder
    last: dict[
        str, float
    ]  #: metrics that are compared: at the last epoch, unless `StudyResult` names other weights or data
    best: dict[str, float]  #: metrics at the epoch with the best primary metric
    best_epoch: int
    curve: Curve
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Mean and sample standard deviation over seeds; the deviation is None for one seed."""

    mean: float
    deviation: float | None


@dataclass(frozen=True, kw_only=True)
class McNemar:
    """Exact McNemar test for one seed, with the numbers of examples that only one of the models classifies correctly."""

    seed: int
    only_variant: int
    only_baseline: int
    p_value: float


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A variant's metric minus the baseline's, paired by seed and example, at the last epoch."""

    mean: float
    bootstrap: Interval  #: crossed bootstrap over seeds and examples
    t: Interval | None  #: over seeds; None for one seed, and if all seeds have the same nonzero difference
    p_value: float | None  #: of the paired t-test over seeds (None if `t` is), or, for one seed, of McNemar's test
    p_holm: float | None  #: corrected for the number of variants in the study
    p_source: Literal["paired t over seeds", "exact McNemar"]
    mcnemar: list[McNemar]
    verdict: Verdict
    why: str  #: reason for the verdict, in one sentence with the numbers
    resamples: int = 2000  #: of the bootstrap; fewer if 2,000 would take over a minute for this metric
    held_fixed: str = ""  #: quantities that are not recomputed for each resample (`Statistic.held_fixed`)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Costs of a variant; ratios are to the baseline, measured side by side in one run, None if not measured."""

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

    `ratio` and `speed_up` refer to mean curves; they are None in results of older versions, which did not compute them.
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
    not_compared: str = ""  #: why there is no difference, although both have runs with the same seed
    sections: list[Section] = field(default_factory=list)  #: the task's results in addition to metrics
    #: differences of the other metrics that can be resampled; p_holm is corrected for the variants, not for the metrics
    other_differences: dict[str, Difference] = field(default_factory=dict)
    host: dict[str, Any] | None = None  #: name, args, ... of the host, if it is not the study's
    recipe: dict[str, Any] = field(default_factory=dict)  #: dotted fields that differ from the study's recipe


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Result of a variant at a rung of successive halving."""

    variant: str
    epoch: int  #: epoch of the rung
    score: float | None  #: mean over seeds of the primary metric after this epoch; None if it is NaN
    promoted: bool  #: whether training was continued


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A variant with a failed run, without which successive halving continued."""

    variant: str
    arrivals: int  #: number of standings at the time of the failure


@dataclass(frozen=True, kw_only=True)
class HalvingResult:
    """Decisions of successive halving, and the underlying scores."""

    eta: int
    rungs: list[int]  #: epochs after which variants are compared
    epochs: int  #: number of epochs of a complete run
    metric: str
    higher_is_better: bool
    standings: list[Standing] = field(default_factory=list)  #: in the order of arrival at the rungs
    lost: list[Lost] = field(default_factory=list)
    stopped: dict[str, int] = field(default_factory=dict)  #: variants that were stopped -> epoch of the rung


@dataclass(frozen=True, kw_only=True)
class ConditionVariant:
    """Result of a variant under a condition."""

    value: Spread | None  #: the suite's metric over seeds, averaged over noise seeds; None: no run was evaluated
    difference: Difference | None  #: None for the baseline or without a common seed; not corrected for conditions
    reason: str = ""  #: reason why there are no numbers


@dataclass(frozen=True, kw_only=True)
class ConditionResult:
    """Results under a condition of a suite, or their mean over the severities of a kind."""

    name: str
    label: str
    variants: list[ConditionVariant]  #: in the study's order
    noise_seeds: int = 0  #: number of noise seeds that scores are averaged over; 0: not random
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
    created: str  #: time of creation, ISO 8601 in UTC
    version: str
    command: str  #: command line that repeats the study
    task: str
    metric: str  #: the primary metric
    higher_is_better: bool
    host: dict[str, Any]  #: name, args, pretrained; used by the baseline and by all variants without their own host
    data: dict[str, Any]  #: the task's facts
    recipe: dict[str, Any]  #: resolved recipe, before the changes of single variants
    environment: dict[str, Any]
    seeds: list[int]
    epochs: int
    variants: list[VariantResult]
    notes: list[str] = field(default_factory=list)  #: warnings for the reader (one seed, missing runs, ...)
    metrics: dict[str, Metric] = field(default_factory=dict)  #: labels of metrics; the default is their name
    halving: HalvingResult | None = None  #: None: halving was not used
    steps: int | None = None  #: updates of a run, where the recipe counts them instead of epochs
    judged_weights: Literal["last", "best"] = "last"  #: weights that are compared, of the last or the best epoch
    judged_split: Literal["val", "test"] = "val"  #: split that they are compared on
    light_curves: bool = False  #: whether the curves are from a cheaper inference than the compared metrics
    suites: list[SuiteResult] = field(default_factory=list)  #: evaluations of the finished runs under suites
    format: int = FORMAT
