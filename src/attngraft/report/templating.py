"""What all pages share: templates whose every value is escaped, and the themes as variables of style sheets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngraft.drawing.theme import THEMES

if TYPE_CHECKING:
    from jinja2 import Environment


def environment() -> Environment:
    """Templates of this package; a name that is not given is an error, not nothing."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("attngraft.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def css_themes() -> dict[str, str]:
    """By theme's name, its colors as declarations of CSS variables."""
    return {theme.name: " ".join(f"--{role}: {color};" for role, color in theme.colors.items()) for theme in THEMES}
