"""Specifications: any text is parsed or raises GraftSpecError, and canonical texts are parsed back unchanged."""

from __future__ import annotations

import json
import timeit
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from attngraft.errors import GraftSpecError
from attngraft.grafting.spec import MAX_LENGTH, GraftSpec, OptionError, Term, build_options, parse
from attngraft.grafting.where import Where
from attngraft.mechanisms.registry import graft_types
from tests.grafting import toys  # noqa: F401 - registers the toy grafts

segments = st.one_of(
    st.sampled_from(["blocks", "layers", "attn", "mlp", "*", "0", "11", "stage?"]),
    st.tuples(st.integers(0, 20), st.integers(0, 20)).map(lambda pair: f"{min(pair)}-{max(pair)}"),
)
patterns = st.lists(segments, min_size=1, max_size=4).map(".".join)
wheres = st.one_of(
    st.just(Where()),
    st.builds(Where, st.sampled_from(["first", "last"]), st.integers(1, 100), st.booleans()),
    st.lists(patterns.filter(lambda p: p != "all"), min_size=1, max_size=3).map(
        lambda p: Where("patterns", patterns=tuple(p))
    ),
)


#: of quotes, backslashes, words that mean something, and what separates
texts = st.one_of(
    st.text(max_size=12),
    st.text("'\"\\ ,)(+@=ab1.\n", max_size=12),
    st.sampled_from(
        ["none", "None", "true", "True", "false", "", "1", "1.5", "-3", "1e5", "a b", "it's", "\\", "word"]
    ),
)


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values that an option with this annotation may have."""
    arms = get_args(hint)
    if get_origin(hint) is Literal:
        return st.sampled_from(arms)
    if get_origin(hint) in (Union, UnionType):
        return st.one_of(*(values_of(arm) for arm in arms))
    return {
        type(None): st.none(),
        bool: st.booleans(),
        int: st.integers(1, 8) | st.sampled_from([0, -1, 10**17, 10**18, -(10**18), 10**30, 10**399]),
        float: st.floats(0, 1) | st.floats(-10, 10) | st.floats(allow_nan=False, allow_infinity=False),
        str: texts,
    }[hint]


@st.composite
def terms(draw: st.DrawFn, names: st.SearchStrategy[str] | None = None) -> Term:
    """A term of any graft; every option is drawn or left to its default."""
    graft_type = graft_types()[draw(st.sampled_from(sorted(graft_types())) if names is None else names)]
    hints = get_type_hints(graft_type.Options)
    values = draw(st.fixed_dictionaries({}, optional={name: values_of(hint) for name, hint in hints.items()}))
    while True:
        try:
            return Term(graft_type.name, build_options(graft_type, values), draw(wheres))
        except OptionError:  # a value out of range, or choices that do not go together: one of them less
            values.pop(draw(st.sampled_from(sorted(values))))


@given(st.lists(terms(), max_size=4))
def test_what_is_formatted_reads_back_the_same(found: list[Term]) -> None:
    spec = GraftSpec(tuple(found))
    assert parse(str(spec)) == spec
    assert parse(spec.to_list()) == spec


@given(terms(st.just("toy_words")), terms())
def test_every_kind_of_value_reads_back_the_same(odd: Term, other: Term) -> None:
    """Also between other terms: what stands in quotes ends no option, no term and no place."""
    for found in ((odd,), (odd, other), (other, odd)):
        spec = GraftSpec(found)
        assert parse(str(spec)) == spec
        assert parse(spec.to_list()) == spec
        assert parse(json.loads(json.dumps(spec.to_list()))) == spec
        assert parse(yaml.safe_load(yaml.safe_dump(spec.to_list()))) == spec


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["graft", "where", "options", "x"]), inner, max_size=3)
        ),
    )
)
def test_any_list_is_read_or_refused(found: object) -> None:
    if isinstance(found, str | None):
        return
    try:
        spec = parse(found)  # type: ignore[arg-type]
    except GraftSpecError as error:
        assert str(error)
    else:
        assert isinstance(spec, GraftSpec)


def test_the_forms_mean_the_same() -> None:
    text = parse("cb_s(init=0.5)@blocks.6-11 + horizontal")
    listed = parse([{"graft": "cb_s", "where": "blocks.6-11", "options": {"init": 0.5}}, {"graft": "horizontal"}])
    assert text == listed
    assert str(text) == "cb_s(init=0.5)@blocks.6-11 + horizontal"
    assert str(parse(None)) == str(parse("none")) == str(parse("  none ")) == "none"
    assert not parse(None)


def test_defaults_and_spaces_do_not_matter() -> None:
    assert parse("cb(context=mean)") == parse(" cb ( ) @ all ") == parse("cb")
    assert str(parse("cb(context=mean)")) == "cb"


def test_presets_stand_for_specifications() -> None:
    assert parse("cb_deeper_half") == parse("cb@last:50%")
    assert parse([{"graft": "cb_deeper_half"}]) == parse("cb@last:50%")
    with pytest.raises(GraftSpecError, match="takes neither options nor"):
        parse("cb_deeper_half@blocks.0")


@pytest.mark.parametrize(
    ("text", "message", "column"),
    [
        ("cbs", "did you mean cb_s", 0),
        ("cb_s(inti=1)", "did you mean init", 5),
        ("cb_s(init=x)", "init: expected a finite number, found 'x'", 5),
        ("cb_s(init=1, init=2)", "given twice", 13),
        ("cb(context=median)", "'median' is not a choice.*; allowed: mean, max, class", 3),
        ("cb@first:0", "at least 1 site", 3),
        ("cb@first:x", "a number of sites or a percentage", 3),
        ("cb@middle:2", "'first' or 'last'", 3),
        ("cb@blocks.9-3", "is reversed", 3),
        ("cb@blocks..3", "not valid in a path", 3),
        (f"cb@blocks.{'9' * 5000}-{'9' * 5001}", "numbers of a range .* at most 6 digits", 3),
        ("horizontal + cb@blocks.0,blocks.0-1000000", "numbers of a range .* at most 6 digits", 16),
        ("cb +", "expected a graft name, found the end", 4),
        ("cb cb", "unexpected 'c': after a graft", 3),
        ("cb_s(init=1", "after the last option", 11),
        ("cb_s(init='x", "no closing quote", 10),
        ("none + cb", "cannot be combined", 0),
        ("cb_s(init=nan)", "expected a finite number", 5),
        ("cb_s(init=1e999)", "finite", 5),
        ("cb_s(init=-3.5e38)", "largest float32", 5),
        (f"cb_s(init={'9' * 400})", "finite", 5),
        (f"cb_s(init={'9' * 5000})", "at most 400 digits", 10),
        ("se(reduction=1e30)", "expected a whole number", 3),
        ("", "expected a graft name, found the end", 0),
    ],
)
def test_errors_point_at_the_character(text: str, message: str, column: int) -> None:
    with pytest.raises(GraftSpecError, match=message) as caught:
        parse(text)
    assert caught.value.position == column
    if text:
        assert str(caught.value).splitlines()[-1] == "  " + " " * column + "^"


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(GraftSpecError) as caught:
        parse("attention")
    assert all(name in str(caught.value) for name in ("cb_s", "horizontal", "vertical", "se"))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([{"where": "all"}], "entry 1 .* needs a key 'graft'"),
        ([{"graft": "cb"}, {"graft": "cbb"}], "unknown graft 'cbb'"),
        ([{"graft": "cb", "wher": "all"}], "unknown key 'wher'"),
        ([{"graft": "cb_s", "options": {"init": "x"}}], r"entry 1 \(cb_s\): init"),
        ([{"graft": "cb_s", "options": [1]}], "options must be a mapping"),
        ([{"graft": "cb", "where": f"blocks.0-{'9' * 5000}"}], r"entry 1 \(cb\): numbers of a range"),
        (
            [{"graft": "cb_s", "options": {"init": 10**400}}],
            r"entry 1 \(cb_s\): init: expected a finite number, found 1000",
        ),
        (3, "not int"),
    ],
)
def test_errors_of_lists_name_the_entry(entries: object, message: str) -> None:
    with pytest.raises(GraftSpecError, match=message):
        parse(entries)  # type: ignore[arg-type]


_TERM = "cb_s(init=0.5)@blocks.0-3"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (" + ".join([_TERM] * 101), "at most 100 grafts"),
        ("cb_s@" + "a" * MAX_LENGTH, "at most 20,000 characters"),
        ("x" * 5000, "unknown graft 'xxx"),
        ("cb_s" + " " * 5000 + "!", "unexpected '!'"),
        (f"cb_s({'x' * 5000}=1)", "unknown option 'xxx"),
        (f"cb_s({'x' * 5000}=1, {'x' * 5000}=1)", "given twice"),
        (f"cb_s(init={'x' * 5000})", "init"),
        (f"cb_s(init='{'x' * 5000}", "no closing quote"),
        (f"cb_s@{'x' * 5000}-1", "not valid in a path pattern"),
        (f"cb_s@{'x' * 5000}:1", "expected 'first' or 'last'"),
        (f"cb_s@first:{'1' * 5000}", "expected a number of sites"),
        (f"cb_s@last:200%{' ' * 5000}", "at most 100%"),
    ],
)
def test_errors_quote_the_part_of_a_long_text_around_the_character(text: str, message: str) -> None:
    with pytest.raises(GraftSpecError, match=message) as caught:
        parse(text)
    *_, line, caret = str(caught.value).splitlines()
    position = caught.value.position
    assert position is not None
    assert len(line) <= 82
    assert len(str(caught.value)) < 1200  # an unknown graft lists all
    assert position == len(text) or line[caret.index("^")] == text[position]


@pytest.mark.parametrize("entries", [["cb_s"] * 101, [{"graft": "cb_s"}] * 101, [" + ".join(["cb_s"] * 60)] * 2])
def test_a_list_has_at_most_100_grafts(entries: list[object]) -> None:
    with pytest.raises(GraftSpecError, match="at most 100 grafts; entry"):
        parse(entries)  # type: ignore[arg-type]


@pytest.mark.parametrize("where", [["a"] * 10_000, {"a": 1}, None, 10**5000, "a" * 30_000], ids=range(5))
def test_where_of_a_list_is_short_text(where: object) -> None:
    with pytest.raises(GraftSpecError, match=r"^entry 1 \(cb_s\): ") as caught:
        parse([{"graft": "cb_s", "where": where}])
    assert len(str(caught.value)) < 300


def test_reading_takes_time_linear_in_the_text() -> None:
    parse(_TERM)

    def seconds(terms: int) -> float:
        text = " + ".join([_TERM + " " * 100] * terms)
        return min(timeit.repeat(lambda: parse(text), number=1, repeat=3))

    assert seconds(100) < 30 * seconds(10)
