"""Whether a study was long enough for a verdict, and what to do next.

A study is too short to tell if one of these holds (`judged`):

- its runs have fewer than `FEWEST_UPDATES` updates;
- the baseline was still improving at the end: at the rate of its last epochs, a third more epochs would add more than
  `LATE_GAIN` of its whole gain;
- the baseline is hardly better than chance: it covers less than `CHANCE_MARGIN` of the way from chance to a perfect score.

For a single graft, it is also too short if the graft has hardly changed the baseline's predictions
(`VariantResult.relative_change` below `LEAST_CHANGE`): grafts that start as the identity may not have left it yet.
"""

import itertools
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from attngraft.results import wording
from attngraft.results.study import StudyResult, VariantResult

FEWEST_UPDATES = 100
LATE_GAIN = 0.1
CHANCE_MARGIN = 0.05
LEAST_CHANGE = 0.05
MANY_SEEDS = 10  #: with this number of seeds or more, no further seeds are recommended
MOST_NAMES = 4  #: largest number of variants named in a sentence


def judged(result: StudyResult) -> StudyResult:
    """Return the result with `too_short` set for the study and for each variant without a significant difference."""
    undecided = [] if wording.is_untrained(result) else [each for each in result.variants if _undecided(each)]
    if not undecided:
        return result
    unchanged = [variant for variant in undecided if hardly_changed(result, variant)]
    study = _study_reasons(result)
    short = {variant.name for variant in (undecided if study else unchanged)}
    return replace(
        result,
        too_short=[*study, *_change_reason(result, unchanged)],
        variants=[replace(variant, too_short=variant.name in short) for variant in result.variants],
    )


def _study_reasons(result: StudyResult) -> list[str]:
    """Return why the runs of the study are too short to tell, each with what to change; empty if they are not."""
    baseline = wording.baseline_of(result)
    if baseline is None or not baseline.runs:
        return []
    style, remedy, reasons = wording.metric_format(result), longer(result), []
    count, gain = updates(result), late_gain(result)
    if count is not None and count < FEWEST_UPDATES:
        per_epoch, smaller = "", ""
        if result.steps is None:
            per_epoch = f" in {wording.plural(result.epochs, 'epoch')}"
            smaller = ", or a smaller batch (--set train.batch_size)"
        reasons.append(
            f"The runs have only {wording.plural(count, 'update')}{per_epoch}, fewer than {FEWEST_UPDATES}; use {remedy}"
            f"{smaller}."
        )
    if gain is not None and gain > LATE_GAIN:
        reasons.append(
            f"The baseline was still improving at the end: at this rate, a third more epochs would add {100 * gain:.0f}% of "
            f"its whole gain in {style.label}; use {remedy}."
        )
    if _near_chance(result) and result.chance is not None:
        reached, chance = (
            f"{style.value(value)}{style.unit}"
            for value in (baseline.last[result.metric].mean, result.chance.values[result.metric])
        )
        reasons.append(
            f"The baseline's {style.label}, {reached}, is hardly better than chance, {chance} "
            f"({result.chance.description}); use {remedy}, or another learning rate (--set optimizer.lr)."
        )
    return reasons


def _change_reason(result: StudyResult, unchanged: Sequence[VariantResult]) -> list[str]:
    """Return why grafts that have hardly changed the predictions cannot be judged, in at most one sentence."""
    if not unchanged:
        return []
    shares = [f"{variant.name} ({100 * (variant.relative_change or 0):.1f}%)" for variant in unchanged]
    return [
        f"{_listed(shares)} {'has' if len(shares) == 1 else 'have'} hardly changed the baseline's predictions: the score of "
        f"an example changed by less than {100 * LEAST_CHANGE:.0f}% of the mean difference between two examples; use "
        f"{longer(result)}, or a higher learning rate for grafts (--set optimizer.graft_lr_scale=10)."
    ]


def updates(result: StudyResult) -> int | None:
    """Return the number of updates of the baseline's longest run; None if their number is unknown.

    If the recipe counts epochs, it is computed from the sizes of the data and of a batch.
    """
    baseline = wording.baseline_of(result)
    curves = [run.curve for run in baseline.runs] if baseline else []
    if steps := [curve["step"][-1] for curve in curves if curve.get("step")]:
        return int(max(steps))
    examples, size = result.data.get("sizes"), result.recipe.get("train", {}).get("batch_size")
    if not curves or not isinstance(examples, Mapping) or "train" not in examples or not size:
        return None
    return int(max(curve["epoch"][-1] for curve in curves)) * max(1, examples["train"] // size)


def late_gain(result: StudyResult) -> float | None:
    """Return the gain of another third of the epochs, at the baseline's rate at the end, as a share of its whole gain.

    The rate is the Theil-Sen slope of the mean curve over the last third of the evaluations, at least three; it counts as
    zero if its 90% interval contains zero. The whole gain is measured from chance or, if that is unknown, from the first
    evaluation. None: too few evaluations, no gain, or the runs were stopped by patience.
    """
    baseline, key = wording.baseline_of(result), f"val/{result.metric}"
    if baseline is None or not baseline.runs or wording.stopped_early(result):
        return None
    curve = baseline.runs[0].curve
    values = np.array([list(each) for each in zip(*(run.curve.get(key, []) for run in baseline.runs), strict=False)])
    chance = wording.chance_value(result)
    if len(values) < (4 if chance is None else 2) or not np.isfinite(values).all():
        return None
    mean = (1 if result.higher_is_better else -1) * values.mean(axis=1)
    place = np.asarray(curve.get("step") or curve["epoch"], dtype=float)[: len(mean)]
    start = mean[0] if chance is None else (1 if result.higher_is_better else -1) * chance
    gain, last = mean[-1] - start, max(3, math.ceil(len(mean) / 3))
    if gain <= 0:
        return None
    from scipy.stats import theilslopes  # slow to import

    slope, _, low, _ = theilslopes(mean[-last:], place[-last:], alpha=0.9)
    return float(slope * place[-1] / 3 / gain) if low > 0 else 0.0


def above_chance(result: StudyResult) -> float | None:
    """Return how far the baseline is on the way from chance to a perfect score (`Metric.best`)."""
    baseline, chance = wording.baseline_of(result), wording.chance_value(result)
    if baseline is None or chance is None or result.metric not in baseline.last:
        return None
    metric = result.metrics.get(result.metric)
    perfect = metric.best if metric is not None else None
    if perfect is None:
        perfect = 1.0 if result.higher_is_better else 0.0
    if chance == perfect:
        return None
    return (baseline.last[result.metric].mean - chance) / (perfect - chance)


def _near_chance(result: StudyResult) -> bool:
    covered = above_chance(result)
    return covered is not None and covered < CHANCE_MARGIN


def hardly_changed(result: StudyResult, variant: VariantResult) -> bool:
    """Return whether a graft has hardly changed the baseline's predictions, although training could change them."""
    if variant.spec == "none" or variant.host is not None or variant.relative_change is None:
        return False
    trained = variant.recipe.get("train.parameters", result.recipe.get("train", {}).get("parameters"))
    nothing_to_train = trained == "head" or (variant.cost is not None and variant.cost.parameters_ratio == 1)
    return variant.relative_change < LEAST_CHANGE and not nothing_to_train


def longer(result: StudyResult) -> str:
    """Return the options of `attngraft compare` that train long enough to tell, as far as this can be foreseen."""
    count, factor = updates(result), 2
    if count is not None and count < FEWEST_UPDATES:
        factor = max(factor, math.ceil(FEWEST_UPDATES / max(1, count)))
    if _near_chance(result) or any(hardly_changed(result, each) for each in result.variants if _undecided(each)):
        factor = max(factor, 4)
    if result.steps is not None:
        return f"--set schedule.steps={factor * result.steps}"
    budget = re.search(r"--time-budget[ =](?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?\b", result.command)
    if budget is None or not any(budget.groups()):
        return f"--epochs {factor * result.epochs}"
    hours, minutes, seconds = (int(number or 0) for number in budget.groups())
    return f"--epochs {factor * result.epochs} --time-budget {factor * (60 * (60 * hours + minutes) + seconds)}s"


# --- what to do next --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class NextStep:
    """A recommendation, and the command that follows it."""

    text: str
    command: str


def next_steps(result: StudyResult) -> list[NextStep]:
    """Return at most three recommendations: complete the study, take a variant, train longer, add seeds, or none."""
    folder = result.folder or Path("STUDY")
    grafted = [variant for variant in result.variants if not variant.is_baseline]
    compared = [variant for variant in grafted if variant.difference is not None]
    if not grafted:
        return [NextStep(text="Compare the host with a graft.", command=_again(folder, "--graft cb_s"))]
    if wording.is_untrained(result):
        text = "Nothing was trained. To compare the models after training, set a number of epochs."
        return [NextStep(text=text, command=_again(folder, "--epochs 30", out=f"{folder}-trained"))]
    steps = []
    if incomplete(result):
        steps.append(NextStep(text="Some runs are missing. Train them first.", command=_again(folder)))
    better = [variant for variant in compared if variant.difference and variant.difference.verdict == "better"]
    short = [variant for variant in compared if variant.too_short]
    open_ones = [each for each in compared if _undecided(each) and _may_be_decided(result, each)]
    noise = [each for each in open_ones if each not in short and not _identical(each)]
    if better:
        best = max(better, key=lambda variant: abs(variant.difference.mean) if variant.difference else 0.0)
        steps.append(_take(result, folder, best, f"Take {best.name}, which is better than the baseline{_price(best)}."))
    if short:
        names = "all variants" if len(short) == len(compared) else _listed([each.name for each in short])
        text = f"Train longer: the study is too short to tell for {names}."
        steps.append(NextStep(text=text, command=_again(folder, longer(result), out=f"{folder}-longer")))
    more = _more_seeds(result)
    if noise and more is not None:
        names = _listed([variant.name for variant in noise])
        text = f"Add seeds to decide on {names}; finished runs are kept.{_loss_hint(noise)}"
        steps.append(NextStep(text=text, command=_again(folder, more)))
    if not better and not short and (baseline := wording.baseline_of(result)) is not None:
        reason = "no variant is better" if compared else "no variant could be compared with it"
        for_now = " for now" if noise and more is not None else ""
        steps.append(_take(result, folder, baseline, f"Keep the baseline{for_now}: {reason}."))
    return [step for step in steps if step.command][:3]


def incomplete(result: StudyResult) -> bool:
    """Return whether any run is missing from the study's result, ignoring variants that were stopped early or decided."""
    if result.until is not None:
        return bool(result.until.failed) or not result.until.rounds
    stopped = {} if result.halving is None else result.halving.stopped
    return any(len(variant.runs) < len(result.seeds) for variant in result.variants if variant.name not in stopped)


def _may_be_decided(result: StudyResult, variant: VariantResult) -> bool:
    """Return whether further seeds may decide on a variant: with `--until decided`, if a further round would test it."""
    if result.until is None:
        return True
    last = result.until.last(variant.name)
    return last is not None and last[1].decision == "undecided" and variant.name not in result.until.failed


def _more_seeds(result: StudyResult) -> str | None:
    """Return the option that adds seeds; None if the study already has `MANY_SEEDS`.

    With `--until decided`, the same command continues the rounds, if the budget allows it; None if there are no more. A
    finished study of two seeds or more can be its first round.
    """
    have = len(result.seeds)
    if result.until is not None:
        budget = result.until.budget
        if have >= result.until.most_seeds:
            return None
        return "" if budget is None else f"--budget {2 * budget:.0f}s"
    wanted = 5 if have < 3 else MANY_SEEDS
    if have >= wanted:
        return None
    other_plan = result.halving is not None or result.folds is not None or "--time-budget" in result.command
    if have > 1 and not other_plan and not wording.is_untrained(result):
        return "--until decided"
    if result.seeds == list(range(have)):
        return f"--seeds {wanted}"
    unused = (seed for seed in itertools.count() if seed not in result.seeds)
    return f"--seeds {','.join(map(str, [*result.seeds, *itertools.islice(unused, wanted - have)]))}"


def _undecided(variant: VariantResult) -> bool:
    return variant.difference is not None and variant.difference.verdict == "inside the noise"


def _identical(variant: VariantResult) -> bool:
    return variant.difference is not None and wording.identical(variant.difference)


def _take(result: StudyResult, folder: Path, variant: VariantResult, text: str) -> NextStep:
    """Return the export of the variant's best run (its first fold); the command is empty if no run is finished."""
    sign = 1 if result.higher_is_better else -1
    scores = {run.folder: sign * run.last.get(result.metric, math.nan) for run in variant.runs}
    if not scores:
        return NextStep(text=text, command="")
    run = max(scores, key=lambda name: -math.inf if math.isnan(scores[name]) else scores[name])
    fold = "" if result.folds is None else "fold0"
    return NextStep(text=text, command=f"attngraft export {_quoted(folder / run / fold)} --out model")


def _price(variant: VariantResult) -> str:
    """Return what the variant costs in time, as far as it was measured."""
    ratios = [] if variant.cost is None else [variant.cost.train_time_ratio, variant.cost.inference_time_ratio]
    texts = [
        f"{wording.ratio(ratio.point)} the {what} time"
        for what, ratio in zip(("training", "inference"), ratios, strict=False)
        if ratio is not None
    ]
    return f", at {wording.listed(texts)}" if texts else ""


def _loss_hint(variants: Sequence[VariantResult]) -> str:
    losses = {variant.name: variant.other_differences.get(wording.LOSS) for variant in variants}
    decided = [
        f"{loss.verdict} for {name}" for name, loss in losses.items() if loss and loss.verdict != "inside the noise"
    ]
    return f" The loss is already {_listed(decided)}." if decided else ""


def _listed(texts: Sequence[str]) -> str:
    left_out = len(texts) - MOST_NAMES
    return wording.listed(texts if left_out <= 0 else [*texts[:MOST_NAMES], f"{left_out} more"])


def _again(folder: Path, options: str = "", *, out: str = "") -> str:
    words = [f"attngraft compare --study {_quoted(folder / 'study.yaml')}", options]
    return " ".join(filter(None, [*words, f"--out {_quoted(out)}" if out else ""]))


def _quoted(path: Path | str) -> str:
    return shlex.quote(str(path))
