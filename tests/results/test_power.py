"""Power from variance components, against simulated studies."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attngraft.results.crossed import Components, components, half_length
from attngraft.results.power import POWER, detectable, examples_to_find, power, power_sentences, seeds_to_find
from tests.report import studies


def study(*, seeds: int, examples: int, of_seeds: float, of_examples: float, rest: float = 1.0) -> Components:
    return Components(
        mean=0.0,
        seed_count=seeds,
        example_count=examples,
        seed_means=of_seeds + rest / examples,
        examples=of_examples,
        rest=rest,
    )


def simulated_power(found: Components, difference: float, *, seeds: int, examples: int, studies: int = 1500) -> float:
    """Share of simulated studies whose interval excludes zero."""
    generator = np.random.default_rng(0)
    table = generator.normal(0, found.rest**0.5, (studies, seeds, examples)) + difference
    table += generator.normal(0, found.seeds**0.5, (studies, seeds, 1))
    table += generator.normal(0, found.examples**0.5, (studies, 1, examples))
    by_seed, by_example = table.mean(axis=2), table.mean(axis=1)
    mean = by_seed.mean(axis=1)
    rest = ((table - by_seed[:, :, None] - by_example[:, None] + mean[:, None, None]) ** 2).sum(axis=(1, 2))
    rest /= (seeds - 1) * (examples - 1)
    of_examples = by_example.var(axis=1, ddof=1) - rest / seeds
    half = half_length(by_seed.var(axis=1, ddof=1), of_examples, seeds, examples)
    return float(np.mean(np.abs(mean) > half))


CASES = (
    study(seeds=3, examples=60, of_seeds=0.01, of_examples=0.2),
    study(seeds=5, examples=40, of_seeds=0.0, of_examples=0.0),
    study(seeds=10, examples=50, of_seeds=0.1, of_examples=0.5),
)


@pytest.mark.parametrize("found", CASES)
def test_the_smallest_difference_is_found_in_80_percent_of_studies(found: Components) -> None:
    smallest = detectable(found)
    assert smallest is not None
    assert power(found, smallest) == pytest.approx(POWER, abs=1e-6)
    share = simulated_power(found, smallest, seeds=found.seed_count, examples=found.example_count)
    assert share == pytest.approx(POWER, abs=0.04)


def test_more_seeds_or_examples_find_it() -> None:
    found = study(seeds=4, examples=40, of_seeds=0.004, of_examples=0.02)
    seeds, examples = seeds_to_find(found, 0.25), examples_to_find(found, 0.25)
    assert seeds is not None
    assert examples is not None
    for size in ({"seeds": seeds, "examples": 40}, {"seeds": 4, "examples": examples}):
        assert simulated_power(found, 0.25, **size) == pytest.approx(power(found, 0.25, **size), abs=0.04)
    assert power(found, 0.25, seeds=seeds - 1) < POWER <= power(found, 0.25, seeds=seeds)
    assert power(found, 0.25, examples=examples - 1) < POWER <= power(found, 0.25, examples=examples)


def test_one_kind_alone_may_never_be_enough() -> None:
    assert seeds_to_find(study(seeds=3, examples=50, of_seeds=0.0, of_examples=1.0), 0.1) is None
    assert examples_to_find(study(seeds=3, examples=50, of_seeds=1.0, of_examples=0.0), 0.1) is None


def test_no_noise_is_no_estimate() -> None:
    for table in (np.zeros((3, 5)), np.array([[0.0, 1, 1]]), np.array([[0.0, 1], [1, 0]])):
        found = components(table)
        assert detectable(found) is None
        assert seeds_to_find(found, 0.01) is None
        assert examples_to_find(found, 0.01) is None


def test_negative_estimates_count_as_zero() -> None:
    found = study(seeds=3, examples=50, of_seeds=-0.01, of_examples=-0.1)
    assert power(found, 0.3) == power(study(seeds=3, examples=50, of_seeds=0.0, of_examples=0.0), 0.3)


def test_what_could_have_been_found() -> None:
    result = studies.usual(names=("none", "cb_s"))
    found = result.variants[1].difference
    assert found is not None

    def said(**changed: Any) -> str:
        variant = replace(result.variants[1], difference=replace(found, **changed))
        return power_sentences(replace(result, variants=[result.variants[0], variant]))

    assert said(detectable=0.0234, seeds_for_point=7, examples_for_point=21_345) == (
        "This study finds differences of 2.34 points in 80% of cases. "
        "Finding 1 point takes about 7 seeds on the same examples or 22,000 examples with the same seeds."
    )
    assert said(detectable=0.0234, seeds_for_point=None, examples_for_point=987).endswith(
        "Finding 1 point takes about 990 examples with the same seeds."
    )
    assert "both more seeds and more examples" in said(detectable=0.02, seeds_for_point=None, examples_for_point=None)
    assert said(detectable=0.009) == "This study finds differences of 0.90 points in 80% of cases."
    assert said(detectable=None) == ""
    assert power_sentences(studies.one_seed()) == ""
    assert "in perplexity" in power_sentences(studies.translation())
