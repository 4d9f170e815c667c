"""What a study found, as plain data: written to results.json, read by everything that draws."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from attngraft.results.sections import Metric, Section

FORMAT = 1

Verdict = Literal["better", "worse", "inside the noise"]
Curve = dict[str, list[float]]  #: "epoch" and, per metric ("train/loss", "val/top1"), one value per epoch


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A point and its 95% interval."""

    point: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One variant trained with one seed."""

    seed: int
    folder: str  #: relative to the study's folder
    last: dict[str, float]  #: metrics at the last epoch: what is compared
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
    """The exact test of one seed: how many examples only the variant, or only the baseline, gets right."""

    seed: int
    only_variant: int
    only_baseline: int
    p_value: float


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A variant's primary metric minus the baseline's, paired by seed and example, at the last epoch."""

    mean: float
    bootstrap: Interval  #: crossed over seeds and examples
    t: Interval | None  #: over seeds; None with one seed, and where all seeds agree exactly on a difference
    p_value: float | None  #: paired t over seeds, None where t is; McNemar's with one seed
    p_holm: float | None  #: corrected over the study's variants
    p_source: Literal["paired t over seeds", "exact McNemar"]
    mcnemar: list[McNemar]
    verdict: Verdict
    why: str  #: one sentence that a reader can check against the numbers


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a variant costs. Ratios are to the baseline, measured side by side in one run; None where not measured."""

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
    """Epochs (1-based) until the baseline's best mean over seeds is reached; None where it never is.

    `ratio` and `speed_up` are of mean curves; those of results from before they were counted are None.
    """

    target: float  #: the best value of the baseline's mean curve
    by_seed: dict[int, int | None]
    of_mean_curve: int | None
    baseline_epoch: int | None = None  #: the first epoch at which the baseline's own mean curve is at `target`
    ratio: float | None = None  #: of_mean_curve / baseline_epoch; below 1 the variant is sooner
    speed_up: float | None = None  #: 1 / ratio

    def ratio_of(self, seed: int) -> float | None:
        """The same ratio for one seed's curve; None where that seed never reaches the target."""
        reached = self.by_seed.get(seed)
        return None if reached is None or self.baseline_epoch is None else reached / self.baseline_epoch


@dataclass(frozen=True, kw_only=True)
class VariantResult:
    name: str
    spec: str  #: canonical graft specification, "none" for the host as it is
    is_baseline: bool
    runs: list[RunSummary]
    last: dict[str, Spread]
    best: dict[str, Spread]  #: secondary: best epoch by seed
    cost: Cost | None
    difference: Difference | None  #: None for the baseline
    epochs_to_baseline: EpochsToBaseline | None
    sections: list[Section] = field(default_factory=list)  #: what the task says beside its metrics
    host: dict[str, Any] | None = None  #: name, args, ... of a host that is not the study's


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A variant at a rung of successive halving."""

    variant: str
    epoch: int  #: the rung
    score: float | None  #: mean over seeds of the primary metric after that epoch; None where it is not a number
    promoted: bool  #: whether it went on


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A variant with a run that failed, for which successive halving did not wait."""

    variant: str
    arrivals: int  #: how many standings there were then


@dataclass(frozen=True, kw_only=True)
class HalvingResult:
    """What successive halving decided, and all that it decided by."""

    eta: int
    rungs: list[int]  #: epochs after which variants were compared
    epochs: int  #: of a run that goes to its end
    metric: str
    higher_is_better: bool
    standings: list[Standing] = field(default_factory=list)  #: in the order in which variants came to the rungs
    lost: list[Lost] = field(default_factory=list)
    stopped: dict[str, int] = field(default_factory=dict)  #: variants that were left at a rung: its epoch


@dataclass(frozen=True, kw_only=True)
class ConditionVariant:
    """A variant under a condition."""

    value: Spread | None  #: the suite's metric over seeds, each a mean over noise seeds; None: no run was evaluated
    difference: Difference | None  #: None for the baseline, and where no seed has both; never corrected for conditions
    reason: str = ""  #: why there are no numbers


@dataclass(frozen=True, kw_only=True)
class ConditionResult:
    """A condition of a suite, or the mean over the severities of one kind."""

    name: str
    label: str
    variants: list[ConditionVariant]  #: in the order of the study's
    noise_seeds: int = 0  #: over which scores are means; 0: nothing is random
    kind: str = ""
    severity: int | None = None


@dataclass(frozen=True, kw_only=True)
class SuiteResult:
    """What became of all variants under a suite."""

    name: str
    title: str
    data: str  #: what it was evaluated on
    metric: str
    higher_is_better: bool
    examples: int
    conditions: list[ConditionResult]
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    title: str
    created: str  #: ISO 8601, UTC
    version: str
    command: str  #: the command line that makes it again
    task: str
    metric: str  #: the primary metric
    higher_is_better: bool
    host: dict[str, Any]  #: name, args, pretrained; of the baseline, and of all variants that have no other
    data: dict[str, Any]  #: the task's facts
    recipe: dict[str, Any]  #: resolved
    environment: dict[str, Any]
    seeds: list[int]
    epochs: int
    variants: list[VariantResult]
    notes: list[str] = field(default_factory=list)  #: what a reader must know (one seed, runs missing, ...)
    metrics: dict[str, Metric] = field(default_factory=dict)  #: what metrics are called; others go by their names
    halving: HalvingResult | None = None  #: None: every run was to go to its end
    suites: list[SuiteResult] = field(default_factory=list)  #: what else was asked of the finished runs
    format: int = FORMAT
