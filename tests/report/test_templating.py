"""Escaping and undefined names in templates."""

from __future__ import annotations

import pytest
from jinja2 import UndefinedError

from attngraft.report.templating import environment


def test_values_are_escaped_and_undefined_names_are_errors() -> None:
    template = environment().from_string("<p>{{ text }}</p>")
    assert template.render(text="<b>&") == "<p>&lt;b&gt;&amp;</p>"
    with pytest.raises(UndefinedError):
        template.render()
