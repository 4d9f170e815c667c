"""Where-clauses: segments, ancestors, inclusive ranges, counts of sites with the hook point."""

from __future__ import annotations

import itertools
import random

import pytest

from attngraft.attention import AttentionGeometry, MlpGeometry
from attngraft.grafting.where import Where, covering, matches, parse_where, unmatched_hint
from attngraft.hosts import Site


def mlp(path: str) -> Site:
    return Site(path=path, kind="mlp", geometry=MlpGeometry(dim=8, hidden=16))


def attention(path: str, *, cross: bool = False) -> Site:
    geometry = AttentionGeometry(dim=8, heads=2, key_width=4, value_width=4, cross=cross)
    return Site(path=path, kind="attention", geometry=geometry)


BLOCKS = [mlp(f"blocks.{index}.mlp") for index in range(12)]
#: an encoder-decoder whose names for attention differ by side
PAIR = [
    *(attention(f"encoder.{index}.SelfAttention") for index in range(2)),
    mlp("encoder.1.fc"),
    attention("decoder.0.attn"),
    attention("decoder.0.enc", cross=True),
    attention("decoder.1.attn"),
    attention("decoder.1.enc", cross=True),
    mlp("decoder.1.fc"),
]
#: paths with a segment of the same name
NAMED = [
    attention("layer.0.attention.self"),
    attention("layer.0.crossattention.self", cross=True),
    attention("layer.1.attention"),
]


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


@pytest.mark.parametrize(
    ("text", "sites", "expected"),
    [
        ("encoder.self", PAIR, [0, 1]),
        ("decoder.self", PAIR, [3, 5]),
        ("decoder.cross", PAIR, [4, 6]),
        ("decoder.1.cross", PAIR, [6]),
        ("decoder.0-1.self, encoder.1.fc", PAIR, [2, 3, 5]),
        ("*.cross", PAIR, [4, 6]),
        ("cross", PAIR, [4, 6]),
        ("self", PAIR, [0, 1, 3, 5]),
        ("decoder", PAIR, [3, 4, 5, 6, 7]),
        ("encoder.cross", PAIR, []),
        ("encoder.self.0", PAIR, []),
        ("layer.*.*.self", NAMED, [0, 1]),
        ("layer.0.crossattention.self", NAMED, [1]),
        ("layer.self", NAMED, [0, 2]),
        ("layer.cross", NAMED, [1]),
    ],
)
def test_the_last_segment_selects_self_or_cross_attention(text: str, sites: list[Site], expected: list[int]) -> None:
    """A segment of the path takes precedence."""
    where = parse_where(text)
    assert where.select(sites) == expected and where.unmatched(sites) == ([] if expected else [text])


@pytest.mark.parametrize(
    ("pattern", "sites", "hint"),
    [
        ("block.11", BLOCKS, "similar paths: blocks.11, "),
        ("zzz", BLOCKS, "similar paths: blocks.0.mlp, blocks.1.mlp, blocks.2.mlp, blocks.3.mlp"),
        ("decoder.cros", PAIR, "similar paths: decoder.cross, "),
        ("encoder.cross", PAIR, "similar paths: decoder.cross, "),
        ("encoder.cross", PAIR[:2], "this model has no cross-attention; write encoder, or use an encoder-decoder"),
        ("blocks.1.self", BLOCKS, "self selects attention sites, but these sites are MLPs; write blocks.1"),
    ],
)
def test_a_pattern_without_a_match_gets_a_hint(pattern: str, sites: list[Site], hint: str) -> None:
    assert unmatched_hint(pattern, sites).startswith(hint)


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
        chosen = Where("patterns", patterns=covering(paths[:count], paths[count:])).select(
            [mlp(path) for path in paths]
        )
        assert chosen == list(range(count))
