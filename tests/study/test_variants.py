"""Which variants a study has, what they are called, and where their runs lie."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attngraft.errors import ConfigError, GraftSpecError, UsageError
from attngraft.study.variants import read_variants, slug


def test_the_baseline_is_added_and_stands_first() -> None:
    assert [v.spec for v in read_variants(["cb_s", "cb"])] == ["none", "cb_s", "cb"]
    assert [v.name for v in read_variants(["cb_s", "none"])] == ["baseline", "cb_s"]
    assert [v.name for v in read_variants(["cb", {"name": "plain", "spec": None}])] == ["plain", "cb"]
    assert [v.is_baseline for v in read_variants([])] == [True]


def test_specifications_become_canonical() -> None:
    variants = read_variants(["cb_s@all  +horizontal", [{"graft": "vertical", "where": "first:1"}]])
    assert [v.spec for v in variants[1:]] == ["cb_s + horizontal", "vertical@first:1"]


@pytest.mark.parametrize(
    ("entries", "error", "message"),
    [
        (["cb_s", "cb_s@all"], UsageError, "given twice"),
        (["none", "none"], UsageError, "given twice"),
        ([{"name": "a", "spec": "cb"}, {"name": "a", "spec": "cb_s"}], UsageError, "called 'a'"),
        (["cb_x"], GraftSpecError, "cb_x"),
        ([{"name": "a"}], ConfigError, r"grafts\[0\]"),
        ([{"spec": "cb", "where": "all"}], ConfigError, "where"),
        ([{"name": "", "spec": "cb"}], ConfigError, "name"),
        ([{"name": "a\0b", "spec": "cb"}], ConfigError, r"grafts\[0\].name: 'a\\x00b' contains a control character"),
        ([3], ConfigError, r"grafts\[0\]"),
    ],
)
def test_refusals(entries: list[Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        read_variants(entries)


@given(st.text(min_size=1), st.text(min_size=1))
def test_slugs_are_safe_and_tell_names_apart(one: str, other: str) -> None:
    for name in (one, other):
        made = slug(name)
        assert made
        assert len(made) <= 80
        assert set(made) <= set("abcdefghijklmnopqrstuvwxyz0123456789_.-")
        assert made[0] not in "-."
        assert made[-1] not in "-."
    assert (slug(one) == slug(other)) == (one == other)


def test_plain_names_stay_readable() -> None:
    assert [slug(name) for name in ("baseline", "cb_s", "deit-3.a")] == ["baseline", "cb_s", "deit-3.a"]
    assert slug("cb@last:50%").startswith("cb-last-50-")
    assert slug("CB_S") != slug("cb_s")
    assert slug("con") != "con"
