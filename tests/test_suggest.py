"""Values and names in messages are short, and cannot control a terminal."""

import json
import time
from typing import Any

import pytest

from attngraft.suggest import cut, did_you_mean, first_line, one_line, quoted, text_lines, visible


def test_similar_names_are_suggested_unless_the_word_is_long() -> None:
    assert did_you_mean("cb_", ["cb_s", "bisa"]) == " (did you mean cb_s?)"
    assert did_you_mean("x" * 100_000, ["x" * 100_000]) == ""


@pytest.mark.parametrize("value", [1, -2.5, None, "it's", [1, "a", {"b": (True,)}], {"z": 1, "a": 2}])
def test_short_values_are_quoted_in_full(value: Any) -> None:
    assert quoted(value) == repr(value)


@pytest.mark.parametrize(
    "value",
    ["x" * 10**7, [0] * 10**7, dict.fromkeys(range(10**6)), 10**10_000, [[["x" * 10**7] * 9] * 9] * 9, b"x" * 10**6],
    ids=["text", "list", "mapping", "integer", "nested", "bytes"],
)
def test_long_values_are_cut_before_they_are_quoted(value: Any) -> None:
    before = time.perf_counter()
    assert len(quoted(value)) <= 80
    assert time.perf_counter() - before < 1
    assert cut("x" * 100) == "x" * 77 + "..."


def test_first_lines_of_errors() -> None:
    assert first_line(ValueError("wrong\nbut safe")) == "wrong"
    assert first_line(ValueError("wrong:\n  a\n  b")) == "wrong: a"
    assert first_line(ValueError()) == one_line(ValueError(" \n")) == "ValueError"
    assert one_line(ValueError("x" * 1000)) == f"ValueError: {'x' * 197}..."


@pytest.mark.parametrize("code", [0, 7, 8, 0x0D, 0x1B, 0x7F, 0x9B, 0x200E, 0x2028, 0x202E, 0x2066, 0xD800, 0xDCFF])
def test_control_characters_become_visible_and_json_keeps_its_value(code: int) -> None:
    text = f"a{chr(code)}b\t\n"
    assert visible(text) == f"a\\u{code:04x}b\t\n"
    assert json.loads(visible(json.dumps([text], ensure_ascii=False))) == [text]


def test_other_characters_are_unchanged() -> None:
    text = "é 日本 ×\u00a0👩\u200d🔬 שלום"
    assert visible(text) == text


def test_lines_end_where_editors_end_them() -> None:
    assert text_lines("a\r\nb\x0cc\rd\u2028e\n\nf\n") == ["a", "b\x0cc", "d\u2028e", "", "f"]
    assert text_lines("") == []
