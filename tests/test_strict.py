"""Strict dataclasses: what is read, and what each refusal says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attngraft.errors import ConfigError
from attngraft.strict import FieldError, read


@dataclass(frozen=True)
class Inner:
    rate: float = 0.1
    span: tuple[float, float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        if self.rate < 0:
            raise FieldError("rate", "must not be negative")


@dataclass(frozen=True)
class Outer:
    name: str
    count: int = 1
    flag: bool = False
    mode: Literal["a", "bee"] = "a"
    limit: float | None = None
    either: int | tuple[str, ...] = 0
    inner: Inner = field(default_factory=Inner)
    extra: dict[str, Any] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)


def test_reads_every_kind_of_field() -> None:
    outer = read(
        Outer,
        {
            "name": "x",
            "count": 3,
            "flag": True,
            "mode": "bee",
            "limit": 2,
            "either": ["p", "q"],
            "inner": {"rate": "1e-3", "span": [0, 1]},
            "extra": {"k": [1]},
            "words": ["w"],
        },
        where="top",
    )
    assert outer == Outer("x", 3, True, "bee", 2.0, ("p", "q"), Inner(0.001, (0.0, 1.0)), {"k": [1]}, ["w"])
    assert isinstance(outer.limit, float)


def test_a_list_of_texts_may_be_one_text_with_commas() -> None:
    outer = read(Outer, {"name": "x,y", "words": "cat, red fox", "either": "p,q"}, where="top")
    assert (outer.name, outer.words, outer.either) == ("x,y", ["cat", "red fox"], ("p", "q"))
    with pytest.raises(ConfigError, match=r"top\.inner\.span: expected a list, found '0,1'"):
        read(Outer, {"name": "x", "inner": {"span": "0,1"}}, where="top")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, r"top\.name: missing"),
        ({"name": "x", "cuont": 1}, r"top\.cuont: unknown field \(did you mean count\?\); allowed: name, count"),
        ({"name": 1}, r"top\.name: expected text, found 1"),
        ({"name": "x", "count": True}, r"top\.count: expected a whole number, found True"),
        ({"name": "x", "count": 1.5}, r"top\.count: expected a whole number"),
        ({"name": "x", "flag": 1}, r"top\.flag: expected true or false"),
        ({"name": "x", "limit": float("nan")}, r"top\.limit: expected a finite number, found nan"),
        ({"name": "x", "limit": "much"}, r"top\.limit: expected a finite number, found 'much'"),
        ({"name": "x", "mode": "be"}, r"top\.mode: 'be' is not a choice \(did you mean bee\?\); allowed: a, bee"),
        ({"name": "x", "inner": {"rate": -1}}, r"top\.inner\.rate: must not be negative"),
        ({"name": "x", "inner": {"span": [1]}}, r"top\.inner\.span: expected 2 values, found 1"),
        ({"name": "x", "inner": {"span": [1, "b"]}}, r"top\.inner\.span\[1\]: expected a finite number"),
        ({"name": "x", "inner": None}, r"top\.inner: expected a section of fields, found nothing"),
        ({"name": "x", "either": "s"}, r"top\.either: expected a whole number, found 's'; or expected a list"),
        ({"name": "x", "extra": {1: 2}}, r"top\.extra: expected a mapping with text keys"),
        ({"name": "x", "words": "w"}, r"top\.words: expected a list, found 'w'; write \[w\]"),
        ([], r"top: expected a section of fields, found \[\]"),
    ],
)
def test_refusals_name_the_dotted_field(values: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(Outer, values, where="top")


values = st.sampled_from(
    [None, True, 3, -1, 0.5, float("inf"), "", "bee", [], [1, 2], ["a"], {}, {"rate": 2}, {"rate": []}]
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(["name", "count", "mode", "limit", "inner", "words", "x"]), values))
def test_any_mapping_is_read_or_refused_with_one_error(given_values: dict[str, Any]) -> None:
    try:
        outer = read(Outer, given_values, where="top")
    except ConfigError as error:
        message = str(error)
    else:
        message = f"top: {outer.name}"
    assert message.startswith("top")


_LONG = "x" * 100_000


@pytest.mark.parametrize(
    "values",
    [
        _LONG,
        [0] * 100_000,
        {_LONG: 1},
        {"name": _LONG.split("x")},
        {"name": "a", "count": 10**5000},
        {"name": "a", "count": -(2**64)},
        {"name": "a", "count": _LONG},
        {"name": "a", "limit": 10**5000},
        {"name": "a", "mode": _LONG},
        {"name": "a", "flag": {_LONG: {_LONG: _LONG}}},
        {"name": "a", "either": {_LONG: 1}},
        {"name": "a", "extra": {1: _LONG}},
        {"name": "a", "inner": {_LONG: 1}},
        {"name": "a", "inner": {"span": [_LONG, 0]}},
        {"name": "a", "inner": {"span": [0] * 100_000}},
        {"name": "a", "words": [[_LONG]]},
    ],
)
def test_messages_quote_the_start_of_long_values(values: Any) -> None:
    with pytest.raises(ConfigError, match="^top") as refused:
        read(Outer, values, where="top")
    assert len(str(refused.value)) < 400


@dataclass(frozen=True)
class Strict:
    name: str = ""
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.name:
            raise FieldError("name", f"must not be {self.name!r}")
        if self.names:
            raise ValueError(f"names must not be {', '.join(self.names)}")


@pytest.mark.parametrize("values", [{"name": _LONG}, {"names": [_LONG, "y" * 5000]}])
def test_messages_of_a_class_quote_the_start_of_long_texts(values: Any) -> None:
    with pytest.raises(ConfigError, match=r"must not be '?x{70,80}.*\.\.\.") as refused:
        read(Strict, values, where="top")
    assert len(str(refused.value)) < 400
