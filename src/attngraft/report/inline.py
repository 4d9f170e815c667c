"""A matplotlib SVG made part of a page: its colors become the page's, its ids unique, and it carries its description."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from markupsafe import Markup

from attngraft.drawing.theme import Theme

_REFERENCES = re.compile(r"url\(#([^)]*)\)")
_COLORS = re.compile(r"#[0-9a-f]{6}\b")


def inline_svg(text: str, *, name: str, alt: str, theme: Theme) -> Markup:
    """`text`, drawn in `theme`, for use inside HTML.

    Colors of the theme become `var(--role)`, so the page decides between light and dark; ids are prefixed by `name`;
    namespaces, metadata and style sheets, which would reach beyond the drawing, go; fonts are left to the page.
    """
    variables = {color: f"var(--{role})" for role, color in theme.colors.items()}
    root = ElementTree.fromstring(text)
    for parent in list(root.iter()):
        for child in list(parent):
            if _local(child.tag) in ("metadata", "style"):
                parent.remove(child)
    for element in root.iter():
        element.tag = _local(element.tag)
        element.attrib = {
            _local(key): _attribute(_local(key), value, name=name, variables=variables)
            for key, value in element.attrib.items()
        }
    view = root.get("viewBox", "")
    root.attrib = {"viewBox": view, "role": "img", "aria-label": alt, "stroke-linejoin": "round"}
    return Markup(ElementTree.tostring(root, encoding="unicode", short_empty_elements=False))


def _attribute(key: str, value: str, *, name: str, variables: dict[str, str]) -> str:
    if key == "id":
        return f"{name}-{value}"
    if key == "href" and value.startswith("#"):
        return f"#{name}-{value[1:]}"
    value = _REFERENCES.sub(rf"url(#{name}-\1)", value)
    return _COLORS.sub(lambda found: variables.get(found[0], found[0]), value) if key == "style" else value


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]
