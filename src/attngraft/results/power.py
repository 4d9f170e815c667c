"""What a study could have found, and what it takes to find more, from its measured variance components.

Power is the probability that the interval of `attngraft.results.crossed` excludes zero for a true difference. It is computed
for normal means, and for the distribution of the seeds' estimated variance, which matters with few seeds. The components are
estimates, too: with three seeds, the results are good to a factor of about two.
"""

from collections.abc import Callable

import numpy as np
from scipy import optimize, special

from attngraft.results.crossed import Components, half_length
from attngraft.results.study import StudyResult
from attngraft.results.wording import metric_format

POWER = 0.8
MOST_SEEDS, MOST_EXAMPLES = 1000, 10_000_000  #: larger numbers are not proposed
_LEVELS = (np.arange(200) + 0.5) / 200  #: quantiles of the seeds' estimated variance


def power(found: Components, difference: float, *, seeds: int | None = None, examples: int | None = None) -> float:
    """Return the probability that a study excludes zero for a true `difference`.

    Args:
        found: measured variance components; negative estimates count as zero.
        difference: the true difference.
        seeds: number of seeds; that of `found` by default.
        examples: number of examples; that of `found` by default.
    """
    seeds, examples = seeds or found.seed_count, examples or found.example_count
    seed_means = max(found.seeds, 0.0) + found.rest / examples
    of_examples = max(found.examples, 0.0)
    estimated = seed_means * special.chdtri(seeds - 1, _LEVELS) / (seeds - 1)
    half = half_length(estimated, of_examples, seeds, examples)
    deviation = (seed_means / seeds + of_examples / examples) ** 0.5
    return float(
        np.mean(special.ndtr((difference - half) / deviation) + special.ndtr((-difference - half) / deviation))
    )


def detectable(found: Components) -> float | None:
    """Return the smallest true difference that the study finds with 80% power; None if its noise is zero or unknown."""
    if not _has_noise(found):
        return None
    high = 4 * (found.seed_means / found.seed_count) ** 0.5 + 1e-12
    while power(found, high) < POWER:
        high *= 2
    return float(optimize.brentq(lambda difference: power(found, difference) - POWER, 0.0, high))


def seeds_to_find(found: Components, difference: float) -> int | None:
    """Return the number of seeds that finds `difference` with 80% power on the same number of examples.

    None: noise is zero or unknown, or `MOST_SEEDS` are not enough.
    """
    return _smallest(lambda number: power(found, difference, seeds=number), MOST_SEEDS) if _has_noise(found) else None


def examples_to_find(found: Components, difference: float) -> int | None:
    """Return the number of examples that finds `difference` with 80% power and the same number of seeds.

    None: noise is zero or unknown, or `MOST_EXAMPLES` are not enough.
    """
    if not _has_noise(found):
        return None
    return _smallest(lambda number: power(found, difference, examples=number), MOST_EXAMPLES)


def _has_noise(found: Components) -> bool:
    return min(found.seed_count, found.example_count) > 1 and found.seed_means > 0


def _smallest(power_of: Callable[[int], float], most: int) -> int | None:
    """Return the smallest number from 2 to `most` whose power is sufficient; power increases with the number."""
    if power_of(most) < POWER:
        return None
    low, high = 1, most  # the power of `low` is insufficient, that of `high` is sufficient
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power_of(middle) >= POWER else (middle, high)
    return high


# --- text -------------------------------------------------------------------------------------------------------------


def power_sentences(result: StudyResult) -> str:
    """Return what this study could have found, and what it takes to find one point; empty if unknown."""
    found = [each.difference for each in result.variants if each.difference is not None and each.difference.detectable]
    if not found:
        return ""
    style = metric_format(result)
    sizes = sorted(each.detectable for each in found if each.detectable is not None)
    low, high = (style.value(size) for size in (sizes[0], sizes[-1]))
    unit = style.points or f"in {style.label}"
    text = f"This study finds differences of {low if low == high else f'{low} to {high}'} {unit} in 80% of cases."
    if not style.points or style.scale * sizes[-1] <= 1:
        return text
    seeds, examples = ([getattr(each, f"{name}_for_point") for each in found] for name in ("seeds", "examples"))
    ways = []
    if all(seeds):
        ways.append(f"{max(seeds)} seeds on the same examples")
    if all(examples):
        ways.append(f"{_rounded_up(max(examples)):,} examples with the same seeds")
    if ways:
        return f"{text} Finding 1 point takes about {' or '.join(ways)}."
    return f"{text} To find 1 point, both more seeds and more examples are necessary."


def _rounded_up(number: int) -> int:
    """Round up to two significant digits."""
    unit = 10 ** max(0, len(str(number)) - 2)
    return -(-number // unit) * unit
