"""What all pages share: escaping, names that must be there, colors of both themes."""

from __future__ import annotations

import pytest
from jinja2 import UndefinedError

from attngraft.drawing.theme import DARK, LIGHT
from attngraft.report.templating import css_themes, environment


def test_values_are_escaped_and_none_is_forgotten() -> None:
    template = environment().from_string("<p>{{ text }}</p>")
    assert template.render(text="<b>&") == "<p>&lt;b&gt;&amp;</p>"
    with pytest.raises(UndefinedError):
        template.render()


def test_both_themes_say_the_same_names() -> None:
    themes = css_themes()
    assert set(themes) == {"light", "dark"}
    assert f"--surface: {LIGHT.surface};" in themes["light"]
    assert f"--surface: {DARK.surface};" in themes["dark"]
    names = [[part.partition(":")[0] for part in text.split("; ")] for text in themes.values()]
    assert names[0] == names[1]
