"""Where-clauses: segments, ancestors, inclusive ranges, counts of sites with the hook point."""

from __future__ import annotations

import itertools
import random

import pytest

from attngraft.grafting.where import Where, covering, matches, near_paths, parse_where

BLOCKS = [f"blocks.{index}.mlp" for index in range(12)]


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("layers.0", "layers.0.blocks.1.attn", True),
        ("layers.0", "layers.01.blocks.1.attn", False),
        ("layers.0.blocks.1.attn", "layers.0.blocks.1.attn", True),
        ("layers.0.blocks.1.attn.qkv", "layers.0.blocks.1.attn", False),
        ("blocks.1", "blocks.11.attn", False),
        ("blocks.6-11", "blocks.11.attn", True),
        ("blocks.6-11", "blocks.12.attn", False),
        ("layers.2.blocks.1-3", "layers.2.blocks.3.mlp", True),
        ("blocks.000000-999999", "blocks.12.attn", True),
        (f"blocks.0-{'9' * 5000}", "blocks.12.attn", False),
        ("*.*.attn", "blocks.3.attn", True),
        ("blocks.?", "blocks.10.attn", False),
        ("attn", "blocks.3.attn", False),
    ],
)
def test_matching(pattern: str, path: str, expected: bool) -> None:
    assert matches(pattern, path) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", list(range(12))),
        ("first:2", [0, 1]),
        ("last:4", [8, 9, 10, 11]),
        ("last:50%", [6, 7, 8, 9, 10, 11]),
        ("last:1%", [11]),
        ("first:100", list(range(12))),
        ("first:100%", list(range(12))),
        ("blocks.6-11", [6, 7, 8, 9, 10, 11]),
        ("blocks.0, blocks.3-4", [0, 3, 4]),
    ],
)
def test_selection(text: str, expected: list[int]) -> None:
    assert parse_where(text).select(BLOCKS) == expected


def test_half_of_an_odd_number_rounds_up() -> None:
    assert parse_where("last:50%").select(BLOCKS[:5]) == [2, 3, 4]


def test_near_paths_suggest_ancestors_and_fall_back_to_the_first() -> None:
    assert "blocks.11" in near_paths("block.11", BLOCKS)
    assert near_paths("zzz", BLOCKS) == BLOCKS[:4]


@pytest.mark.parametrize(
    ("wanted", "others", "expected"),
    [
        (["encoder.0.attn", "encoder.1.attn"], ["decoder.0.attn"], ("encoder",)),
        (["blocks.0.attn", "blocks.2.attn", "blocks.10.attn"], ["blocks.3.attn"], ("blocks.0-2", "blocks.10")),
        (["s.0.a.0", "s.1.a.0", "s.1.a.1"], ["s.0.b", "s.1.b"], ("s.0-1.a",)),
        (["s.0.a.0", "s.1.a.0", "s.1.a.1"], ["s.0.a.1", "s.1.b"], ("s.0.a.0", "s.1.a")),
    ],
)
def test_patterns_that_cover(wanted: list[str], others: list[str], expected: tuple[str, ...]) -> None:
    assert covering(wanted, others) == expected


def test_what_covers_matches_nothing_else() -> None:
    draw = random.Random(0)
    for _ in range(300):
        paths = [".".join(path) for path in itertools.product(["a", "b"], "0123", ["x", "y"])]
        draw.shuffle(paths)
        count = draw.randint(1, 15)
        chosen = Where("patterns", patterns=covering(paths[:count], paths[count:])).select(paths)
        assert chosen == list(range(count))
