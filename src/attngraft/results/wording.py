"""Formatting of numbers and sentences for the terminal, plots and pages.

All text is Latin-1, which any terminal can print; for plots and pages, `minus` inserts minus signs.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attngraft.results.sections import Metric
from attngraft.results.study import Difference, EpochsToBaseline, Interval, StudyResult, VariantResult
from attngraft.yaml_config import dump_line

ABSENT = "n/a"
_MINUS = re.compile(r"(?<![\w.)-])-(?=[\d.])")

LOSS = "loss"  #: metric that tasks with predicted probabilities report beside their primary metric
EMA = "ema/"  #: prefix of the moving average's metrics


# --- metrics and numbers ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class MetricFormat:
    """Format of a metric: label, unit, and a number of decimals that suits its magnitude in the study."""

    name: str
    label: str
    column: str  #: column heading
    unit: str  #: "%" or empty
    scale: float  #: factor that converts stored values to displayed values: 100 for fractions
    decimals: int

    def value(self, number: float | None) -> str:
        if number is None or not math.isfinite(number):
            return ABSENT
        return f"{self.scale * number:.{self.decimals}f}"

    def change(self, number: float | None) -> str:
        """Format a difference with its sign, or without a sign if it rounds to zero."""
        if number is None or not math.isfinite(number):
            return ABSENT
        text = f"{self.scale * number:+.{self.decimals}f}"
        return text[1:] if not text.strip("+-0.") else text

    def interval(self, interval: Interval | None) -> str:
        return ABSENT if interval is None else f"{self.change(interval.low)} to {self.change(interval.high)}"

    def bounds(self, interval: Interval) -> str:
        return f"[{self.change(interval.low)}, {self.change(interval.high)}]"

    @property
    def title(self) -> str:
        return f"{self.label} (%)" if self.unit else self.label

    @property
    def points(self) -> str:
        """Unit of differences: "points" for percentages."""
        return "points" if self.unit == "%" else ""


def metric_format(result: StudyResult, name: str | None = None) -> MetricFormat:
    """Return the format of metric `name` (default: the primary metric), based on its values in the study."""
    name = name or result.metric
    base = name.removeprefix(EMA)
    metrics = [metrics for variant in result.variants for run in variant.runs for metrics in (run.last, run.best)]
    values = [abs(each[name]) for each in metrics if name in each]
    largest = max((value for value in values if math.isfinite(value)), default=1.0)
    metric = result.metrics.get(base) or Metric(label=base.replace("_", " "))
    label, column = shown(metric.label), shown(metric.column or metric.label) + (" %" if metric.share else "")
    four_digits = max(0, min(5, 3 - math.floor(math.log10(largest)))) if largest > 0 else 2
    return MetricFormat(
        name=name,
        label=label if base == name else f"{label} of the moving average",
        column=column if base == name else f"EMA {column}",
        unit="%" if metric.share else "",
        scale=100.0 if metric.share and largest <= 1.0 else 1.0,
        decimals=2 if metric.share else four_digits,
    )


def judged_text(result: StudyResult) -> str:
    """Describe which weights are compared, and on which data: `at the last epoch (30)`."""
    if result.judged_weights == "last" and stopped_early(result):
        text = f"at the last epoch of each run (at most {result.epochs})"
    elif result.judged_weights == "last" and result.steps is not None:
        text = f"after {result.steps} updates"
    elif is_untrained(result):
        text = "without training"
    elif result.judged_weights == "last":
        text = "at the last epoch" if last_epoch(result) == "last epoch" else f"at the last epoch ({result.epochs})"
    elif result.judged_split == "val":
        return "with each run's best weights, chosen and evaluated on the same validation examples"
    else:
        text = "with each run's best weights on the validation split"
    return text if result.judged_split == "val" else f"{text}, evaluated on the test split"


def judged_column(result: StudyResult) -> str:
    """Return a short form of `judged_text` for a column heading: `epoch 30`, `best epoch, test`."""
    weights = last_epoch(result) if result.judged_weights == "last" else "best epoch"
    if result.judged_split == "val":
        return weights if result.judged_weights == "last" else f"{weights},\nchosen on these"
    return f"{weights}, test"


def held_fixed_text(result: StudyResult, *, other: bool = False) -> str:
    """Return sentences on quantities that the bootstrap does not recompute; empty if there are none.

    With `other`, they cover the non-primary metrics instead of the primary metric.
    """
    fixed: dict[str, str] = {}
    for variant in result.variants:
        primary = {} if variant.difference is None else {result.metric: variant.difference}
        for name, difference in (variant.other_differences if other else primary).items():
            if difference.held_fixed:
                fixed[metric_format(result, name).label] = difference.held_fixed
    return " ".join(f"The bootstrap interval of {label} holds {what} fixed." for label, what in fixed.items())


def metric_names(result: StudyResult) -> list[str]:
    """Return the names of all compared metrics, the primary metric first."""
    return list(dict.fromkeys([result.metric, *(name for variant in result.variants for name in variant.last)]))


def is_higher_better(result: StudyResult, name: str) -> bool:
    """Return whether higher values of a metric are better; `name` may be a moving average's metric."""
    base = name.removeprefix(EMA)
    if base == result.metric:
        return result.higher_is_better
    return result.metrics[base].higher_is_better if base in result.metrics else True


def shown(text: object) -> str:
    """Return `text` as one line without control characters, which would break terminals and XML parsers."""
    return "".join(c if c.isprintable() else " " if c in "\t\n\r" else "�" for c in str(text))


def shorten(text: object, width: int) -> str:
    """Shorten `text` to `width` characters by cutting the middle (specifications differ at both ends)."""
    line = shown(text)
    if len(line) <= width:
        return line
    head = (width - 2) * 3 // 5
    return f"{line[:head]}..{line[len(line) - (width - 2 - head) :]}"


def minus(text: str) -> str:
    """Replace hyphens before negative numbers (not in "top-1") with minus signs, for plots and pages."""
    return _MINUS.sub("−", text)


def signed(number: float, decimals: int) -> str:
    """Format a difference for HTML pages, with its sign unless it rounds to zero."""
    text = f"{number:+.{decimals}f}"
    return minus(text if text.strip("+-0.") else text[1:])


def ratio(number: float | None, *, exact: bool = False) -> str:
    """Format a ratio to the baseline; with `exact`, with enough digits to show any difference from 1."""
    if number is None or not math.isfinite(number):
        return ABSENT
    return f"{number:.{4 if exact and 0 < abs(number - 1) < 0.005 else 2}f}×"


def p_value(number: float | None) -> str:
    if number is None or not math.isfinite(number):
        return ABSENT
    return "<0.001" if number < 0.001 else f"{number:.{3 if number < 0.1 else 2}f}"


def si(number: float | None, unit: str = "") -> str:
    """Format a number with three digits and an SI prefix: 5.72M, 1.26G."""
    if number is None or not math.isfinite(number):
        return ABSENT
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            scaled = number / size
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f}{prefix}{unit}"
    return f"{number:g}{unit}"


def size(number: int | None) -> str:
    """Format a number of bytes in MiB or GiB."""
    if number is None:
        return ABSENT
    return f"{number / 2**30:.2f} GiB" if number >= 2**30 else f"{number / 2**20:.1f} MiB"


def duration(seconds: float | None) -> str:
    """Format a time with a suitable unit, from microseconds to hours."""
    if seconds is None or not math.isfinite(seconds):
        return ABSENT
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def spread_text(mean: float | None, deviation: float | None, style: MetricFormat) -> str:
    """Format mean ± deviation over seeds, or only the mean if the deviation is None."""
    if mean is None or not math.isfinite(mean):
        return ABSENT
    return style.value(mean) if deviation is None else f"{style.value(mean)} ± {style.value(deviation)}"


# --- hosts and variants -----------------------------------------------------------------------------------------------


def baseline_of(result: StudyResult) -> VariantResult | None:
    return next((variant for variant in result.variants if variant.is_baseline), None)


def has_other_hosts(result: StudyResult) -> bool:
    return any(variant.host is not None for variant in result.variants)


def has_other_recipes(result: StudyResult) -> bool:
    return any(variant.recipe for variant in result.variants)


def compared_things(result: StudyResult) -> str:
    """Return what the study compares with its baseline: hosts, grafts, recipes, or several of these."""
    grafts = any(variant.spec != "none" for variant in result.variants)
    kinds = {"hosts": has_other_hosts(result), "attention grafts": grafts, "recipes": has_other_recipes(result)}
    return listed([kind for kind, there in kinds.items() if there]) or "attention grafts"


def recipe_text(changed: Mapping[str, Any]) -> str:
    """Return `VariantResult.recipe` on one line: "schedule.epochs=60, train.drop_path=0.2"."""
    return ", ".join(f"{name}={_plain(value)}" for name, value in changed.items())


def recipe_rows(result: StudyResult, variant: VariantResult) -> list[tuple[str, str, str]]:
    """Return (name, variant's value, study's value) for each recipe field that the variant changes."""
    rows = []
    for name, value in variant.recipe.items():
        common: Any = result.recipe
        for key in name.split("."):
            common = common.get(key) if isinstance(common, Mapping) else None
        rows.append((name, _plain(value), _plain(common)))
    return rows


def _plain(value: Any) -> str:
    """Return a value as YAML on one line, with whole floats formatted as integers."""
    return dump_line([int(value) if isinstance(value, float) and value.is_integer() else value])[1:-1]


def epochs_of(variant: VariantResult, result: StudyResult) -> int:
    """Return the number of epochs of the variant's runs."""
    return int(variant.recipe.get("schedule.epochs", result.epochs))


def is_untrained(result: StudyResult) -> bool:
    """Return whether the study compares models without training (`--epochs 0`)."""
    return result.steps is None and all(epochs_of(variant, result) == 0 for variant in result.variants)


def last_epoch(result: StudyResult) -> str:
    """Return "epoch 30", "update 1000", "no training", or "last epoch" if runs differ."""
    if is_untrained(result):
        return "no training"
    if result.steps is not None:
        same = all(variant.recipe.get("schedule.steps", result.steps) == result.steps for variant in result.variants)
        return f"update {result.steps}" if same else "last update"
    if stopped_early(result):
        return "last epoch"
    same = all(epochs_of(variant, result) == result.epochs for variant in result.variants)
    return f"epoch {result.epochs}" if same else "last epoch"


def stopped_early(result: StudyResult) -> bool:
    """Return whether a stage's patience ended any run before its last epoch."""
    return result.steps is None and any(
        run.curve.get("step") and run.curve["epoch"][-1] < epochs_of(variant, result)
        for variant in result.variants
        for run in variant.runs
    )


def listed(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def host_label(host: Mapping[str, Any]) -> str:
    """Return a unique label of a host (`StudyHost.plain`): `deit_tiny_patch16_224: {depth: 4}`."""
    text = f"{host['name']}: {dump_line(host['args'])}" if host.get("args") else str(host["name"])
    if "weights" in host:
        return f"{text}, weights {host['weights']}"
    return text if "pretrained" not in host else f"{text}, {'pretrained' if host['pretrained'] else 'random values'}"


def host_text(host: Mapping[str, Any], *, input_size: Sequence[int] = ()) -> str:
    """Return a host with the arguments that change it: `vit_tiny_patch16_224 (patch_size=4, depth=3)`.

    Leaves out nested arguments, such as a configuration of transformers, and `img_size` if there is an `input_size`.
    """
    arguments = [
        f"{name}={_plain(value)}"
        for name, value in (host.get("args") or {}).items()
        if not isinstance(value, Mapping) and not (name == "img_size" and input_size)
    ]
    return str(host.get("name", "unnamed")) + (f" ({', '.join(arguments)})" if arguments else "")


def model_size(*, parameters: int | None, input_size: Sequence[int]) -> str:
    """Return what is known of a model's size: `90.9k parameters, 32 × 32 pixels`."""
    parts = [] if parameters is None else [f"{si(parameters)} parameters"]
    return ", ".join(parts + ([f"{input_size[1]} × {input_size[2]} pixels"] if input_size else []))


def model_text(host: Mapping[str, Any], *, parameters: int | None, input_size: Sequence[int]) -> str:
    """Describe a model as it was trained: its host with arguments, and its size."""
    size = model_size(parameters=parameters, input_size=input_size)
    return ", ".join(part for part in (host_text(host, input_size=input_size), size) if part)


def study_model(result: StudyResult) -> str:
    """Describe the study's host as it was trained, from the costs of the baseline and the facts about the data."""
    baseline = baseline_of(result)
    cost = baseline.cost if baseline else None
    return model_text(result.host, parameters=cost.parameters if cost else None, input_size=image_size(result.data))


def image_size(facts: Mapping[str, Any]) -> Sequence[int]:
    """Return channels, height and width of the input images in `facts`; empty for other inputs."""
    size = (facts.get("input") or {}).get("size")
    return size if isinstance(size, list | tuple) and len(size) == 3 else ()


def variant_details(variant: VariantResult) -> str:
    """Return a variant's specification, host and recipe changes on one line; empty if equal to its name."""
    model = variant.spec
    if variant.host is not None:
        host = host_label(variant.host)
        model = host if variant.spec == "none" else f"{host} + {variant.spec}"
    if recipe := recipe_text(variant.recipe):
        return "" if variant.name == f"{model} with {recipe}" else f"{model} with {recipe}"
    return "" if model == variant.name else model


def stopped_text(result: StudyResult, name: str) -> str:
    """Return `stopped after epoch 3` for a variant stopped by halving, otherwise an empty string."""
    stopped = {} if result.halving is None else result.halving.stopped
    return f"stopped after epoch {stopped[name]}" if name in stopped else ""


def until_text(result: StudyResult, name: str) -> str:
    """Return `decided after 5 seeds` for a variant of a study with `--until decided`, otherwise an empty string."""
    last = None if result.until is None else result.until.last(name)
    if last is None:
        return ""
    what = {"undecided": "undecided", "unlikely to be decided": "given up"}.get(last[1].decision, "decided")
    return f"{what} after {plural(last[0], 'seed')}"


# --- differences and verdicts -----------------------------------------------------------------------------------------


def headline(result: StudyResult) -> str:
    """Return the study's outcome in one sentence."""
    grafted = [variant for variant in result.variants if not variant.is_baseline]
    compared = [variant for variant in grafted if variant.difference is not None]
    verdicts = [verdict_text(result, variant) for variant in compared]
    grafts = not has_other_hosts(result) and all(variant.spec != "none" for variant in grafted)
    noun, count = "graft" if grafts else "variant", len(verdicts)
    if not grafted:
        return "Only the baseline was run: there is nothing to compare it with."
    if not verdicts:
        return "No variant could be compared with the baseline."
    everyone = f"The {noun}" if count == 1 else f"Both {noun}s" if count == 2 else f"All {count} {noun}s"
    if set(verdicts) == {TOO_SHORT}:
        sentence = "This study is too short to tell."
    elif all(variant.difference is None or identical(variant.difference) for variant in grafted):
        examples = next((each.difference.examples for each in grafted if each.difference is not None), None)
        sentence = f"No difference could be seen{_in_examples(examples)}: {everyone[0].lower()}{everyone[1:]} "
        sentence += f"{'has' if count == 1 else 'have'} exactly the baseline's scores."
    elif len(result.seeds) == 1:
        return f"One seed: the noise between seeds is unknown, so no {noun} is called better or worse."
    elif len(set(verdicts)) == 1:
        verdict = _NO_DIFFERENCE if verdicts[0] == "inside the noise" else f"{verdicts[0]} than the baseline"
        sentence = f"{everyone} {'is' if count == 1 else 'are'} {verdict}."
    else:
        order = {"better": "better", "worse": "worse", "inside the noise": _NO_DIFFERENCE}
        counts = [(verdicts.count(verdict), text) for verdict, text in order.items() if verdict in verdicts]
        parts = [f"{n} {'is' if n == 1 else 'are'} {text}" for n, text in counts]
        if TOO_SHORT in verdicts:
            parts.append(f"for {verdicts.count(TOO_SHORT)} the study is too short to tell")
        sentence = f"Of {count} {noun}s compared, {', '.join(parts[:-1])} and {parts[-1]}."
    stopped = sum(variant.difference is None and bool(stopped_text(result, variant.name)) for variant in grafted)
    missing = len(grafted) - count - stopped
    if stopped:
        sentence += f" {plural(stopped, 'variant')} {'was' if stopped == 1 else 'were'} stopped early."
    return sentence + (f" {plural(missing, 'variant')} could not be compared." if missing else "")


def outcome(result: StudyResult) -> list[str]:
    """Return the headline, and why the study is too short to tell, if it is."""
    return [headline(result), *map(shown, result.too_short)]


def verdict_text(result: StudyResult, variant: VariantResult) -> str:
    """Return the verdict on a variant, "too short to tell", or why there is none."""
    if variant.is_baseline:
        return "baseline"
    if variant.difference is None:
        return "stopped early" if stopped_text(result, variant.name) else "not compared"
    return TOO_SHORT if variant.too_short else variant.difference.verdict


def chance_value(result: StudyResult) -> float | None:
    """Return the primary metric by chance; None if it is unknown."""
    return None if result.chance is None else result.chance.values.get(result.metric)


def chance_text(result: StudyResult) -> str:
    """Return "Chance: 10.86% (always ...)."; empty if it is unknown."""
    value, style = chance_value(result), metric_format(result)
    if value is None or result.chance is None:
        return ""
    return f"Chance: {style.value(value)}{style.unit} ({shown(result.chance.description)})."


TOO_SHORT = "too short to tell"
_NO_DIFFERENCE = "inside the noise (no significant difference)"


def _in_examples(examples: int | None) -> str:
    return "" if examples is None else f" in {examples:,} example{'' if examples == 1 else 's'}"


def deciding_interval(difference: Difference) -> Interval:
    """Return the interval to show: of the verdict or, without one, the bootstrap interval."""
    return difference.interval or difference.bootstrap


def interval_note(difference: Difference) -> str:
    """Return what `deciding_interval` covers, if not seeds and examples: "examples only"; otherwise empty."""
    if difference.interval is not None:
        return ""
    return "examples only" if difference.t is None else "bootstrap"  # the latter: from an older version


def interval_name(result: StudyResult) -> str:
    """Return the name of the intervals that decide verdicts.

    Those of `--until decided` have the level of their round; before the first round is complete, they are not corrected.
    """
    return "corrected interval" if result.until is not None and result.until.rounds else "95% interval"


def difference_sentence(difference: Difference, style: MetricFormat, *, named: str = "95% interval") -> str:
    """Return the difference with its interval, worded to follow a variant's name; `named` is from `interval_name`."""
    unit = f"{style.points} of {style.label}" if style.points else f"in {style.label}"
    note = interval_note(difference)
    interval = style.interval(deciding_interval(difference)) + (f", {note}" if note else "")
    return f"{style.change(difference.mean)} {unit} ({named} {interval})"


def loss_sentence(result: StudyResult, variant: VariantResult) -> str:
    """Return a variant's difference in the loss with interval and verdict; empty if it is primary or not compared."""
    difference = variant.other_differences.get(LOSS)
    if difference is None:
        return ""
    style = metric_format(result, LOSS)
    verdict = TOO_SHORT if variant.too_short and difference.verdict == "inside the noise" else difference.verdict
    interval = style.interval(deciding_interval(difference))
    return f"{style.change(difference.mean)} in {style.label} (95% interval: {interval}; lower is better): {verdict}"


def reason(difference: Difference, *, seeds: int) -> str:
    """Return the reason for the verdict, without the numbers (fractions) in `Difference.why`."""
    interval, t = difference.interval, difference.t
    if identical(difference):
        seen = f"No difference could be seen{_in_examples(difference.examples)}"
        return f"{seen}: all examples have the same score in all seeds."
    if interval is not None:
        where = "lies above" if interval.low > 0 else "lies below" if interval.high < 0 else "contains"
        if where != "contains" and difference.verdict == "inside the noise":  # `--until decided` without a test
            return f"{difference.why[0].upper()}{difference.why[1:]}."
        return f"The interval {where} zero."
    if t is None and seeds == 1:
        return "With one seed, the noise between seeds is unknown; the interval is over examples only."
    if t is None and difference.p_source == "exact McNemar":
        return "Only one seed is finished for both this variant and the baseline: the noise between seeds is unknown so far."
    if difference.examples == 1:
        return "With one example, the noise between examples is unknown."
    if t is None:
        return "All seeds differ by exactly the same amount, by chance, so the noise between seeds is unknown."
    return (
        "Verdict of an older version: better or worse if the bootstrap interval and the t-interval exclude zero. Run "
        "attngraft compare --report-only to update it."
    )


def identical(difference: Difference) -> bool:
    """Return whether all scores are equal in all seeds; only then is the bootstrap interval [0, 0]."""
    bootstrap = difference.bootstrap
    return bootstrap.point == bootstrap.low == bootstrap.high == 0


# --- epochs to the baseline's best ------------------------------------------------------------------------------------


def epochs_text(variant: VariantResult, epochs: int) -> str:
    """Return the epoch at which each seed reaches the baseline's best mean: "5, 6, >12" (not within 12)."""
    by_seed = variant.epochs_to_baseline.by_seed if variant.epochs_to_baseline else {}
    if not by_seed:
        return ABSENT
    return ", ".join(f">{epochs}" if by_seed[seed] is None else str(by_seed[seed]) for seed in sorted(by_seed))


def epochs_compared(result: StudyResult) -> list[tuple[int, VariantResult, EpochsToBaseline]]:
    """Return (index, variant, epochs) for each variant whose epochs can be compared with the baseline's."""
    return [
        (index, variant, variant.epochs_to_baseline)
        for index, variant in enumerate(result.variants)
        if not variant.is_baseline
        if variant.epochs_to_baseline is not None and variant.epochs_to_baseline.baseline_epoch is not None
    ]


def epochs_ratio_text(reached: EpochsToBaseline, epochs: int) -> str:
    """Return "25% fewer epochs", "8% more epochs", "as many epochs", or "not within 12 epochs"."""
    if reached.ratio is None:
        return f"not within {epochs} epochs"
    percent = round(100 * abs(reached.ratio - 1))
    return f"{percent}% {'fewer' if reached.ratio < 1 else 'more'} epochs" if percent else "as many epochs"


def added_parameters(variant: VariantResult) -> str:
    """Return the added parameters in percent of the baseline's ("+0.37%"); empty if not measured."""
    if variant.cost is None:
        return ""
    text = f"{100 * (variant.cost.parameters_ratio - 1):+.2f}"
    return f"{text if text.strip('+-0.') else '0'}%"


def not_measured(result: StudyResult) -> str:
    """Return which costs were not measured and why, in one sentence; empty if all were or no reason is known."""
    costs = [variant.cost for variant in result.variants if variant.cost is not None]
    reasons = {what: why for cost in costs for what, why in cost.not_measured.items()}
    texts = [f"{what} ({shown(why)})" for what, why in reasons.items()]
    return f"Not measured: {listed(texts)}." if texts else ""


def epochs_sentence(variant: VariantResult, reached: EpochsToBaseline, epochs: int) -> str:
    """Describe the epochs to the baseline's best: "cb_s: 25% fewer epochs (9 instead of 12; by seed 8, never)"."""
    seeds = ", ".join(str(reached.by_seed[seed] or "never") for seed in sorted(reached.by_seed))
    means = "" if reached.of_mean_curve is None else f"{reached.of_mean_curve} instead of {reached.baseline_epoch}; "
    more = added_parameters(variant)
    text = f"{variant.name}: {epochs_ratio_text(reached, epochs)} ({means}by seed {seeds})"
    return text + (f"; parameters {more}" if more else "")
