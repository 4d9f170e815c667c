"""Random numbers by key, and generators that are restored."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from attngraft.tasks.seeding import generator, seeded


def _draw() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))


def test_draws_depend_on_the_key_alone() -> None:
    with seeded("a", 0, 1, 2):
        first = _draw()
    random.seed(5)
    np.random.seed(5)
    torch.manual_seed(5)
    with seeded("a", 0, 1, 2):
        assert _draw() == first
    others = [("b", 0, 1, 2), ("a", 1, 1, 2), ("a", 0, 2, 2), ("a", 0, 1, 3), ("a", 0, 2, 1), ("a", -1, 1, 2)]
    for stream, *key in others:
        with seeded(stream, *key):
            assert all(new != old for new, old in zip(_draw(), first, strict=True))


@pytest.mark.parametrize("fails", [False, True])
def test_generators_are_put_back(fails: bool) -> None:
    def drawn(*, inside: bool) -> tuple[float, float, float]:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        _draw()
        if inside:
            try:
                with seeded("x", 3):
                    _draw()
                    if fails:
                        raise KeyError
            except KeyError:
                pass
        return _draw()

    assert drawn(inside=True) == drawn(inside=False)


def test_a_generator_of_its_own_for_every_example() -> None:
    keys = [(s, e, i) for s in (0, 1, 2**64 - 2) for e in (0, 1) for i in (-1, 0, 1, 2**33)]
    draws = [tuple(generator(*key).random(3)) for key in keys]
    assert len(set(draws)) == len(keys)
    assert tuple(generator(1, 0, 1).random(3)) == draws[keys.index((1, 0, 1))]
