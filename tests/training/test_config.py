from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from attngraft.errors import ConfigError
from attngraft.yaml_config import apply_overrides, differing_fields, dump_yaml, merge, parse_yaml, read_yaml

texts = st.text(st.characters(codec="utf-8", exclude_characters="\x85\u2028\u2029\ufeff"), max_size=12)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
plain = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=8
)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-3", 1e-3), ("5E4", 5e4), ("1.", 1.0), ("-2", -2), ("no", "no"), ("on", "on"), ("true", True), ("null", None)],
)
def test_scalars_are_what_people_mean(text: str, value: Any) -> None:
    parsed = parse_yaml(text, source="test")
    assert parsed == value
    assert type(parsed) is type(value)


@given(plain)
def test_what_is_written_is_read_back(value: Any) -> None:
    assert parse_yaml(dump_yaml(value), source="test") == value


@given(st.dictionaries(texts, texts, max_size=4))
def test_plain_yaml_reads_it_too(value: dict[str, str]) -> None:
    assert yaml.safe_load(dump_yaml(value)) == value


def test_errors_name_file_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("seed: 1\ntrain: {batch_size: 2\nhost: 3\n")
    with pytest.raises(ConfigError, match=r"r\.yaml, line \d+, column \d+: not valid YAML"):
        read_yaml(path)
    path.write_text("seed: 1\nseed: 2\n")
    with pytest.raises(ConfigError, match=r"r\.yaml, line 2, column 1: .*'seed' occurs twice"):
        read_yaml(path)
    path.write_text("- 1\n")
    with pytest.raises(ConfigError, match="expected sections"):
        read_yaml(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_yaml(tmp_path / "absent.yaml")
    path.write_text("")
    assert read_yaml(path) == {}


def test_merge_goes_into_sections_and_replaces_the_rest() -> None:
    base = {"a": {"b": 1, "c": [1, 2]}, "d": 4}
    assert merge(base, {"a": {"c": [3]}, "d": {"e": 5}}) == {"a": {"b": 1, "c": [3]}, "d": {"e": 5}}
    assert base == {"a": {"b": 1, "c": [1, 2]}, "d": 4}


def test_overrides_set_single_fields_and_whole_sections() -> None:
    config = {"a": {"b": 1, "c": 2}, "d": None}
    changed = apply_overrides(config, ["a.b=1e-3", "d.e.f=[1, x]", "g=text=with=signs"])
    assert changed == {"a": {"b": 1e-3, "c": 2}, "d": {"e": {"f": [1, "x"]}}, "g": "text=with=signs"}
    assert apply_overrides(config, ["a={z: 1}"])["a"] == {"z": 1}
    assert config == {"a": {"b": 1, "c": 2}, "d": None}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.b", "write it as section.field=value"),
        ("a..b=1", "write it as section.field=value"),
        ("a.b.c=1", "b is 1, not a section"),
        ("a={", "not valid YAML"),
    ],
)
def test_wrong_overrides_are_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        apply_overrides({"a": {"b": 1}}, [text])
    assert f"--set {text}" in str(caught.value)


def test_differing_fields_are_dotted() -> None:
    left, right = {"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 1, "c": 4}, "e": 5}
    assert differing_fields(left, right) == ["a.c (2 -> 4)", "d (3 -> None)", "e (None -> 5)"]
