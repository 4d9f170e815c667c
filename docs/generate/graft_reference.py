"""Graft reference, generated from the registered grafts."""

from __future__ import annotations

from attngraft import create_model, plan
from attngraft.grafting.catalog import GraftInfo, list_grafts, list_hosts, list_presets
from attngraft.mechanisms.registry import graft_types
from docs.generate.fields import fields_of
from docs.generate.markdown import table

_OPENING = """# Grafts and hosts

This page lists the hosts that can be grafted, and all grafts with their options and costs. It is generated from the
registered grafts and hosts. [Specifications](../guide/specifications.md) describes how to write a specification, and
`attngraft plan HOST SPEC` shows its effect on your model.

## Hosts
"""

EXAMPLE = "vit_small_patch16_224"

WITH_MAPS = "swin_tiny_patch4_window7_224"  #: for grafts that replace an attention module on a map

#: grafts that require an option on this host
_REQUIRED = {"lsa": "lsa(shift=host)"}

_COST = f"""The table shows what each graft adds to `{EXAMPLE}` at all its sites, with default options.
One multiply-add is one MAC.
"""
_REPLACEMENTS = f"""The following grafts replace a block's whole attention. The table shows parameters and MACs relative
to the replaced attention, on `{WITH_MAPS}` at all its sites, with default options (`lsa`: with `shift=host`).
"""


def graft_reference() -> str:
    """Return the page."""
    parts = [_OPENING, table(("adapter", "models"), ((f"`{host.name}`", host.summary) for host in list_hosts()))]
    parts += ["## Grafts\n", _COST, _costs(), _REPLACEMENTS, _replacements()]
    for info in list_grafts():
        parts += _section(info)
    parts.append("## Presets\n")
    parts.append(table(("name", "short for"), ((f"`{name}`", f"`{text}`") for name, text in list_presets().items())))
    return "\n".join(parts)


def _section(info: GraftInfo) -> list[str]:
    options = graft_types()[info.name].Options
    start = "starts as the identity" if info.identity else "does not start as the identity"
    points = ", ".join(f"`{point}`" for point in info.hook_points)
    parts = [f"### {info.name}\n", f"{info.summary[0].upper()}{info.summary[1:]}.\n", f"Source: {info.source}.\n"]
    parts.append(f"Hook points: {points}; with default options the graft {start}.\n")
    if info.options:
        rows = ((f"`{doc.name}`", doc.kind, doc.default, doc.comment) for doc in fields_of(options))
        parts.append(table(("option", "values", "default", "description"), rows))
    return parts


def _costs() -> str:
    """Return the table of costs of each graft, computed from the shapes of the example host."""
    model = create_model(EXAMPLE)
    total = sum(parameter.numel() for parameter in model.parameters())
    rows = []
    for info in list_grafts():
        if info.hook_points == ("space",):
            continue
        report = plan(model, info.name)
        share = f"{report.parameters:,} ({report.parameters / total:.2%})" if report.parameters else "none"
        macs = _macs(report.macs) if report.macs else "none"
        start = "yes" if info.identity else ""
        rows.append((f"[{info.name}](#{info.name})", str(len(report.entries)), share, macs, start))
    return table(("graft", "sites", "parameters", "MACs per image", "starts as the identity"), rows)


def _replacements() -> str:
    """Return the table of grafts that replace an attention module."""
    model = create_model(WITH_MAPS)
    rows = []
    for info in list_grafts():
        if info.hook_points != ("space",):
            continue
        report = plan(model, _REQUIRED.get(info.name, info.name))
        more = report.parameters - sum(sum(entry.detached.values()) for entry in report.entries)
        rows.append((f"[{info.name}](#{info.name})", str(len(report.entries)), f"{more:+,}", _macs(report.macs or 0)))
    return table(("graft", "sites", "parameters", "MACs per image"), rows)


def _macs(count: int) -> str:
    return f"{count / 1e9:.3g}G" if abs(count) >= 1e9 else f"{count / 1e6:.3g}M"
