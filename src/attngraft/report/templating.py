"""Page templates; all values are escaped, and undefined names raise an error."""

import base64
import hashlib
from functools import partial
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from attngraft.drawing.theme import css_themes
from attngraft.results import wording


def environment() -> Environment:
    """Return the Jinja environment with this package's templates and number-formatting filters."""
    templates = Environment(
        loader=PackageLoader("attngraft.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(
        minus=wording.minus,
        ratio=wording.ratio,
        count=partial(wording.ratio, exact=True),
        p=wording.p_value,
        si=wording.si,
        size=wording.size,
        duration=wording.duration,
        shown=wording.shown,
        shorten=wording.shorten,
        sentence_case=lambda text: text[:1].upper() + text[1:],
    )
    return templates


def render(template: str, **context: Any) -> str:
    """Render a page from `template`, with the color themes as additional variables."""
    return environment().get_template(template).render(themes=css_themes(), **context)


def script(*names: str) -> dict[str, str]:
    """Return a page's `script` and its `script_hash`, which the page's content security policy allows to run."""
    templates = environment()
    loader = templates.loader
    source = "\n".join(loader.get_source(templates, name)[0] for name in names) if loader else ""
    return {"script": source, "script_hash": base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}
