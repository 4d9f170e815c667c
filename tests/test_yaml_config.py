"""Hostile YAML ends at once with an error that names the file; other YAML is read as YAML 1.2."""

from pathlib import Path

import pytest

from attngraft import yaml_config
from attngraft.errors import ConfigError
from attngraft.yaml_config import TEXT_LIMIT, apply_overrides, parse_yaml, read_yaml


def _chain(first: str, following: str) -> str:
    """Return 12 anchors, each of which holds nine aliases of the one before."""
    return first + "".join(f"a{i}: &a{i} {following.format(','.join([f'*a{i - 1}'] * 9))}\n" for i in range(1, 13))


_HOSTILE = {
    "aliases": (_chain("a0: &a0 [x, x, x]\n", "[{}]"), "line 7, .*use fewer aliases"),
    "merged aliases": (_chain("a0: &a0 {k: 1}\n", "{{<<: [{}]}}"), "use fewer aliases"),
    "aliases of a long text": (f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 50)}]", "use fewer aliases"),
    "a chain of aliases": (
        "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 100)),
        "line 50, .*nested more than 50",
    ),
    "an alias of itself": ("a: &a [*a]", r"line 1, .*the alias \*a is inside"),
    "a merged alias of itself": ("a: &a {<<: *a}", r"line 1, .*the alias \*a is inside"),
    "an unknown alias": ("a: *b", "line 1, .*undefined alias"),
    "open brackets": ("[" * 100_000, "line 1, .*nesting depth"),
    "lists in lists": ("- " * 5000 + "x", "line 1, .*nested more than 50"),
    "sections in sections": ("".join(" " * i + "a:\n" for i in range(1000)), "line 51, .*nested more than 50"),
    "digits": ("x: " + "1" * 5000, "line 1, .*at most 100 digits"),
    "hexadecimal digits": ("x: 0x" + "f" * 5000, "line 1, .*at most 100 digits"),
    "a long text": ("x" * (TEXT_LIMIT + 1), "1,048,577 characters, more than 1,048,576"),
    "an object": ("!!python/object/apply:os.getcwd []", "line 1, .*constructor"),
    "a set": ("x: !!set {a}", "line 1, .*constructor"),
    "a damaged date": ("x: !!timestamp y", "line 1, .*constructor"),
    "no boolean": ("x: !!bool y", "does not fit its tag"),
    "no integer": ('x: !!int ""', "does not fit its tag"),
    "no number": ("x: !!float y", "does not fit its tag"),
    "a list as a key": ("? [1]\n: 2", "line 1, .*a key must be a word"),
    "a long key": ("k" * 900 + ": 1\n" + "k" * 900 + ": 2", "line 2, .*occurs twice"),
    "a tab": ("x:\n\ty: 1", "line 2, .*a tab in the indentation; use spaces"),
    "a null byte": ("x: \0", "control characters"),
    "not a mapping to merge": ("<<: 3", "line 1, .*for merging"),
}


@pytest.mark.parametrize("case", _HOSTILE)
def test_hostile_texts_are_refused_by_file_and_line(case: str, tmp_path: Path) -> None:
    text, message = _HOSTILE[case]
    file = tmp_path / "recipe.yaml"
    file.write_text(text)
    if len(text) > TEXT_LIMIT:
        with pytest.raises(ConfigError, match="recipe.yaml: cannot be read: has 1.0 MB, more than"):
            read_yaml(file)
        file = Path("--set")
    with pytest.raises(ConfigError, match=f"(?s)^{file}.*{message}") as refused:
        parse_yaml(text, source=str(file))
    assert len(str(refused.value)) < 400


def test_mappings_that_are_merged_early_may_override_keys() -> None:
    text = "x: {mid: &m {<<: &b {lr: 1}, lr: 2}}\ntop: {<<: *m, other: *b}"
    assert parse_yaml(text, source="a") == {"x": {"mid": {"lr": 2}}, "top": {"lr": 2, "other": {"lr": 1}}}


@pytest.mark.parametrize(
    "override", ["x" * 5000, ".".join("a" * 500) + "=1", "a." + "b" * 5000 + "=1", "a.b=" + "[" * 5000]
)
def test_messages_on_overrides_are_short(override: str) -> None:
    with pytest.raises(ConfigError, match="^--set ") as refused:
        apply_overrides({"a": ["long"] * 10_000}, [override])
    assert len(str(refused.value)) < 500


def test_numbers() -> None:
    text = "[10, -5, +5, 0, 1_000, 0x10, 010, 1:30, 0b1]"
    assert parse_yaml(text, source="x") == [10, -5, 5, 0, 1000, 16, "010", "1:30", "0b1"]


@pytest.mark.parametrize("items", [3, 100_000])
def test_a_text_is_parsed_once(items: int, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"names: [{'a,' * items}]"
    first = parse_yaml(text, source="x")
    monkeypatch.setattr(yaml_config.yaml, "load", None)
    first["names"].append("b")
    assert parse_yaml(text, source="x") == {"names": ["a"] * items}
