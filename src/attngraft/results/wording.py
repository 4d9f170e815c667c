"""Numbers and sentences, said the same way in the terminal, the plots and the page.

Everything here is plain text of Latin-1 characters, so that it prints on any terminal; the page makes it typographic.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attngraft.results.sections import Metric
from attngraft.results.study import Difference, Interval, StudyResult, VariantResult, Verdict
from attngraft.yaml_config import dump_line

ABSENT = "n/a"
_MINUS = re.compile(r"(?<![\w.)-])-(?=[\d.])")

EMA = "ema/"  #: prefix of the moving average's metrics


@dataclass(frozen=True, kw_only=True)
class MetricFormat:
    """How one metric of one study is written: its name in prose, its unit, and as many decimals as its size needs."""

    name: str
    label: str
    column: str  #: over a column of a table
    unit: str  #: "%" or nothing
    scale: float  #: written value per stored value: 100 for shares
    decimals: int

    def value(self, number: float | None) -> str:
        if number is None or not math.isfinite(number):
            return ABSENT
        return f"{self.scale * number:.{self.decimals}f}"

    def change(self, number: float | None) -> str:
        """A difference, always with its sign; one that rounds to zero has none."""
        if number is None or not math.isfinite(number):
            return ABSENT
        text = f"{self.scale * number:+.{self.decimals}f}"
        return text[1:] if not text.strip("+-0.") else text

    def interval(self, interval: Interval | None) -> str:
        return ABSENT if interval is None else f"{self.change(interval.low)} to {self.change(interval.high)}"

    @property
    def title(self) -> str:
        return f"{self.label} (%)" if self.unit else self.label

    @property
    def points(self) -> str:
        """What a difference is counted in: percentages differ by points."""
        return "points" if self.unit == "%" else ""


def metric_format(result: StudyResult, name: str | None = None) -> MetricFormat:
    """How `name` (default: the study's primary metric) is written, from the values that the study holds."""
    name = name or result.metric
    base = name.removeprefix(EMA)
    largest = max((abs(v) for v in _values(result, name) if math.isfinite(v)), default=1.0)
    said = result.metrics.get(base) or Metric(label=base.replace("_", " "))
    share, label = said.share, shown(said.label)
    scale = 100.0 if share and largest <= 1.0 else 1.0
    column = f"{shown(said.column or said.label)}{' %' if share else ''}"
    return MetricFormat(
        name=name,
        label=label if base == name else f"{label} of the moving average",
        column=column if base == name else f"EMA {column}",
        unit="%" if share else "",
        scale=scale,
        decimals=2 if share else _decimals(largest),
    )


def _decimals(largest: float) -> int:
    """Four digits in all."""
    return max(0, min(5, 3 - math.floor(math.log10(largest)))) if largest > 0 else 2


def _values(result: StudyResult, name: str) -> Iterable[float]:
    for variant in result.variants:
        for run in variant.runs:
            yield from (metrics[name] for metrics in (run.last, run.best) if name in metrics)


def metric_names(result: StudyResult) -> list[str]:
    """Every metric reported at the last epoch, the primary one first, the others in the order they appear."""
    found = dict.fromkeys([result.metric])
    for variant in result.variants:
        found.update(dict.fromkeys(variant.last))
    return list(found)


def shown(text: object) -> str:
    """`text` on one line without characters that a terminal or an XML parser would stumble over."""
    return "".join(c if c.isprintable() else " " if c in "\t\n\r" else "�" for c in str(text))


def shorten(text: object, width: int) -> str:
    """`text` in at most `width` characters, with its middle left out: specifications differ at both ends."""
    line = shown(text)
    if len(line) <= width:
        return line
    head = (width - 2) * 3 // 5
    return f"{line[:head]}..{line[len(line) - (width - 2 - head) :]}"


def minus(text: str) -> str:
    """`text` with true minus signs before its numbers (not in "top-1"), for plots and pages."""
    return _MINUS.sub("−", text)


def ratio(number: float | None, *, exact: bool = False) -> str:
    """A ratio to the baseline. An `exact` one (a count, not a measurement) keeps the digits that tell it from 1."""
    if number is None or not math.isfinite(number):
        return ABSENT
    return f"{number:.{4 if exact and 0 < abs(number - 1) < 0.005 else 2}f}×"


def p_value(number: float | None) -> str:
    if number is None or not math.isfinite(number):
        return ABSENT
    return "<0.001" if number < 0.001 else f"{number:.{3 if number < 0.1 else 2}f}"


def si(number: float | None, unit: str = "") -> str:
    """Three digits and an SI prefix: 5.72M, 1.26G."""
    if number is None or not math.isfinite(number):
        return ABSENT
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            scaled = number / size
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f}{prefix}{unit}"
    return f"{number:g}{unit}"


def size(number: int | None) -> str:
    """Bytes as MiB or GiB."""
    if number is None:
        return ABSENT
    return f"{number / 2**30:.2f} GiB" if number >= 2**30 else f"{number / 2**20:.1f} MiB"


def duration(seconds: float | None) -> str:
    """A time from microseconds to days, with the unit that suits it."""
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


def baseline_of(result: StudyResult) -> VariantResult | None:
    return next((variant for variant in result.variants if variant.is_baseline), None)


def has_other_hosts(result: StudyResult) -> bool:
    """Whether some variant stands on another host than the study's."""
    return any(variant.host is not None for variant in result.variants)


def compared_things(result: StudyResult) -> str:
    """What kinds of variants the study sets against its baseline."""
    if not has_other_hosts(result):
        return "attention grafts"
    return "hosts" if all(variant.spec == "none" for variant in result.variants) else "hosts and attention grafts"


def host_of(variant: VariantResult) -> str:
    """The variant's own host and its arguments in one line; empty where it stands on the study's."""

    return "" if variant.host is None else host_label(variant.host)


def made_of(variant: VariantResult) -> str:
    """What a variant is, where its name does not say it: its specification, with its host if that is not the study's."""
    spec = "" if variant.spec == variant.name else variant.spec
    if variant.host is None:
        return spec
    host = host_of(variant)
    if variant.spec != "none":
        return f"{host} + {variant.spec}"
    return "" if host == variant.name else host


def seed_deviation_known(result: StudyResult) -> bool:
    return len(result.seeds) > 1


def headline(result: StudyResult) -> str:
    """The study in one sentence."""
    grafted = [variant for variant in result.variants if not variant.is_baseline]
    compared = [variant.difference.verdict for variant in grafted if variant.difference is not None]
    noun = "variant" if has_other_hosts(result) else "graft"
    if not grafted:
        return "Only the baseline was run: there is nothing to compare it with."
    if not compared:
        return "No variant could be compared with the baseline."
    if not seed_deviation_known(result):
        return f"One seed: the noise between seeds is unknown, so no {noun} is called better or worse."
    if all(variant.difference is None or no_difference(variant.difference) for variant in grafted):
        sentence = (
            f"{f'The {noun} makes' if len(compared) == 1 else f'{_all(compared, noun)} make'} no difference at all."
        )
    elif len(compared) == 1:
        sentence = f"The {noun} is {_standing(compared[0])}."
    elif len(set(compared)) == 1:
        sentence = f"{_all(compared, noun)} are {_standing(compared[0])}."
    else:
        order: tuple[Verdict, ...] = ("better", "worse", "inside the noise")
        parts = [f"{compared.count(v)} {'is' if compared.count(v) == 1 else 'are'} {v}" for v in order if v in compared]
        sentence = f"Of {len(compared)} {noun}s compared, {', '.join(parts[:-1])} and {parts[-1]}."
    early = {} if result.halving is None else result.halving.stopped
    stopped = sum(variant.difference is None and variant.name in early for variant in grafted)
    missing = len(grafted) - len(compared) - stopped
    if stopped:
        sentence += f" {plural(stopped, 'variant')} {'was' if stopped == 1 else 'were'} stopped early."
    return sentence + (f" {plural(missing, 'variant')} could not be compared." if missing else "")


def _all(variants: Sequence[object], noun: str) -> str:
    """Several variants, as the subject of a sentence."""
    return f"Both {noun}s" if len(variants) == 2 else f"All {len(variants)} {noun}s"


def _standing(verdict: Verdict) -> str:
    return verdict if verdict == "inside the noise" else f"{verdict} than the baseline"


def difference_sentence(difference: Difference, style: MetricFormat) -> str:
    """The difference with its intervals, to stand after a variant's name."""
    intervals = [f"bootstrap {style.interval(difference.bootstrap)}"]
    if difference.t is not None:
        intervals.append(f"t {style.interval(difference.t)}")
    counted = f"{style.points} of {style.label}" if style.points else f"in {style.label}"
    return f"{style.change(difference.mean)} {counted} (95% intervals: {', '.join(intervals)})"


def reason(difference: Difference, *, seeds: int) -> str:
    """Why the verdict is what it is, from the intervals alone. (`Difference.why` says it with the stored numbers, which
    are not those of a report that writes shares in percent.)"""
    bootstrap, t = difference.bootstrap, difference.t
    if no_difference(difference):
        return "No difference at all: every example is scored exactly alike in every seed."
    if difference.verdict != "inside the noise":
        return f"Both intervals lie {'above' if bootstrap.low > 0 else 'below'} zero."
    if t is None and seeds == 1:
        return "With one seed, the noise between seeds is unknown; the interval is over examples only."
    if t is None and difference.p_source == "exact McNemar":
        return "Only one seed is finished here and at the baseline: the noise between seeds is unknown so far."
    if t is None:
        return "All seeds differ by exactly the same, which is chance and says nothing of the noise between seeds."
    names = [name for name, each in (("bootstrap", bootstrap), ("t", t)) if each.low <= 0 <= each.high]
    if len(names) == 1:
        return f"The {names[0]} interval contains zero, though the other does not."
    return "Both intervals contain zero."


def no_difference(difference: Difference) -> bool:
    """Whether the two scored every example of every seed alike: only then has the bootstrap no width around 0."""
    bootstrap = difference.bootstrap
    return bootstrap.point == bootstrap.low == bootstrap.high == 0


def spread_text(mean: float | None, deviation: float | None, style: MetricFormat) -> str:
    """Mean ± deviation over seeds; without a deviation the mean alone."""
    if mean is None or not math.isfinite(mean):
        return ABSENT
    return style.value(mean) if deviation is None else f"{style.value(mean)} ± {style.value(deviation)}"


def epochs_text(variant: VariantResult, epochs: int) -> str:
    """The epochs that each seed needed to reach the baseline's best mean: "5, 6, >12" (not within 12)."""
    by_seed = variant.epochs_to_baseline.by_seed if variant.epochs_to_baseline else {}
    if not by_seed:
        return ABSENT
    return ", ".join(f">{epochs}" if by_seed[seed] is None else str(by_seed[seed]) for seed in sorted(by_seed))


def host_label(host: Mapping[str, Any]) -> str:
    """A host in one line, from `StudyHost.plain`: `deit_tiny_patch16_224: {depth: 4}`; equal hosts have equal lines."""
    text = f"{host['name']}: {dump_line(host['args'])}" if host.get("args") else str(host["name"])
    if "weights" in host:
        return f"{text}, weights {host['weights']}"
    return text if "pretrained" not in host else f"{text}, {'pretrained' if host['pretrained'] else 'random values'}"
