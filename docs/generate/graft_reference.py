"""The graft reference: what can be written in a specification, read from the registered grafts."""

from __future__ import annotations

import textwrap

from attngraft.grafting.catalog import list_grafts, list_hosts, list_presets
from attngraft.mechanisms.registry import graft_types
from docs.generate.fields import comments_of
from docs.generate.markdown import docstring, table

_OPENING = """# Grafts and hosts

This page is generated from what is registered. A specification reads `name(option=value)@where`, joined by `+`; see
[where a graft can stand](../guide/specifications.md). `attngraft plan HOST SPEC` says what one would do to your model.

## Hosts
"""


def graft_reference() -> str:
    """The page."""
    parts = [_OPENING, table(("adapter", "models"), ((f"`{host.name}`", host.summary) for host in list_hosts()))]
    parts.append("## Grafts\n")
    for info in list_grafts():
        options = graft_types()[info.name].Options
        parts += [f"### {info.name}\n", f"{info.summary[0].upper()}{info.summary[1:]}.\n", f"Source: {info.source}.\n"]
        start = "starts as the identity" if info.identity else "does not start as the identity"
        parts.append(
            f"Stands at {', '.join(f'`{stage}`' for stage in info.stages)}; with default options it {start}.\n"
        )
        if info.options:
            comments = comments_of(options)
            parts.append(textwrap.dedent(docstring(options)) + "\n")
            rows = [(f"`{n}`", info.choices[n], f"`{v}`", comments.get(n, "")) for n, v in info.options.items()]
            parts.append(table(("option", "values", "default", "what"), rows))
    parts.append("## Presets\n")
    parts.append(table(("name", "stands for"), ((f"`{name}`", f"`{text}`") for name, text in list_presets().items())))
    return "\n".join(parts)
