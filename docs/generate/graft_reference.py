"""The graft reference: what can be written in a specification, read from the registered grafts."""

from __future__ import annotations

from attngraft import create_model, plan
from attngraft.grafting.catalog import GraftInfo, list_grafts, list_hosts, list_presets
from attngraft.mechanisms.registry import graft_types
from docs.generate.fields import fields_of
from docs.generate.markdown import table

_OPENING = """# Grafts and hosts

This page is generated from what is registered. A specification reads `name(option=value)@where`, joined by `+`; see
[where a graft can stand](../guide/specifications.md). `attngraft plan HOST SPEC` says what one would do to your model.

## Hosts
"""

EXAMPLE = "vit_small_patch16_224"

WITH_MAPS = "swin_tiny_patch4_window7_224"  #: for grafts that stand in for an attention on a map

_COST = f"""What each adds to `{EXAMPLE}`, at all its sites, with default options. A multiply-add is one MAC.
"""
_INSTEAD = f"""What stands in for a block's whole attention, on `{WITH_MAPS}`, at all its sites: what it has and needs
more or less than the attention that it takes the place of.
"""


def graft_reference() -> str:
    """The page."""
    parts = [_OPENING, table(("adapter", "models"), ((f"`{host.name}`", host.summary) for host in list_hosts()))]
    parts += ["## Grafts\n", _COST, _costs(), _INSTEAD, _instead()]
    for info in list_grafts():
        parts += _section(info)
    parts.append("## Presets\n")
    parts.append(table(("name", "stands for"), ((f"`{name}`", f"`{text}`") for name, text in list_presets().items())))
    return "\n".join(parts)


def _section(info: GraftInfo) -> list[str]:
    options = graft_types()[info.name].Options
    start = "starts as the identity" if info.identity else "does not start as the identity"
    stages = ", ".join(f"`{stage}`" for stage in info.stages)
    parts = [f"### {info.name}\n", f"{info.summary[0].upper()}{info.summary[1:]}.\n", f"Source: {info.source}.\n"]
    parts.append(f"Stands at {stages}; with default options it {start}.\n")
    if info.options:
        rows = ((f"`{doc.name}`", doc.kind, doc.default, doc.comment) for doc in fields_of(options))
        parts.append(table(("option", "values", "default", "what"), rows))
    return parts


def _costs() -> str:
    """Every graft planned on the example: nothing is run, shapes are enough."""
    model = create_model(EXAMPLE)
    whole = sum(parameter.numel() for parameter in model.parameters())
    rows = []
    for info in list_grafts():
        if info.stages == ("space",):
            continue
        report = plan(model, info.name)
        share = f"{report.parameters:,} ({report.parameters / whole:.2%})" if report.parameters else "none"
        macs = _macs(report.macs) if report.macs else "none"
        start = "yes" if info.identity else ""
        rows.append((f"[{info.name}](#{info.name})", str(len(report.entries)), share, macs, start))
    return table(("graft", "sites", "parameters", "MACs per image", "starts as the identity"), rows)


def _instead() -> str:
    """Those that park what they take the place of."""
    model = create_model(WITH_MAPS)
    rows = []
    for info in list_grafts():
        if info.stages != ("space",):
            continue
        report = plan(model, info.name)
        more = report.parameters - sum(sum(entry.parked.values()) for entry in report.entries)
        rows.append((f"[{info.name}](#{info.name})", str(len(report.entries)), f"{more:+,}", _macs(report.macs or 0)))
    return table(("graft", "sites", "parameters", "MACs per image"), rows)


def _macs(count: int) -> str:
    return f"{count / 1e9:.3g}G" if abs(count) >= 1e9 else f"{count / 1e6:.3g}M"
