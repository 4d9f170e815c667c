"""`attngraft doctor`: what this machine has and what works on it; or what is found in a model."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer


def doctor(
    host: Annotated[
        str | None, typer.Option("--host", metavar="MODEL", help="Look into this timm model instead of the machine.")
    ] = None,
    host_arg: Annotated[
        list[str] | None, typer.Option("--host-arg", metavar="NAME=VALUE", help="For the host's factory; repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Report versions, devices, backends that work (and why others do not), and free disk.

    With --host: which sites and stages a model has, which grafts fit where, and what attends in it that no adapter reads.

    Examples:

        attngraft doctor

        attngraft doctor --json

        attngraft doctor --host swin_tiny_patch4_window7_224

        attngraft doctor --host xcit_nano_12_p16_224 --host-arg depth=2
    """
    import json
    import sys

    from rich.console import Console
    from rich.table import Table

    if host is not None:
        _look_into(host, host_arg or [], as_json=as_json)
        return
    findings = {"versions": _versions(), "devices": _devices(), "backends": _backends(), "disk": _disk()}
    if as_json:
        typer.echo(json.dumps(findings, indent=2))
        return
    console = Console(width=None if sys.stdout.isatty() else 140)
    for title, entries in findings.items():
        table = Table(title=title, title_justify="left", show_header=False)
        for name, value in entries.items():
            table.add_row(name, str(value))
        console.print(table)


def _look_into(name: str, host_arg: list[str], *, as_json: bool) -> None:
    import dataclasses
    import json
    import sys

    import torch
    from rich.console import Console

    from attngraft.cli.values import assignments
    from attngraft.models.create import create_host
    from attngraft.models.examine import examine

    arguments = assignments(host_arg, option="--host-arg")
    with torch.device("meta"):
        model = create_host(name, **arguments).eval()
    found = examine(model)
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(found), indent=2))
        return
    console = Console(width=None if sys.stdout.isatty() else 160)
    for line in _in_tables(found):
        console.print(line)


def _in_tables(found: Any) -> Iterator[Any]:
    from rich.markup import escape
    from rich.table import Table

    yield escape(f"{found.model}: " + (f"read by {found.adapter}" if found.adapter else found.refusal))
    if found.sites:
        table = Table("sites", "modules", "shape", "stages", "missing", title="sites", title_justify="left")
        for paths, first in _alike(found.sites):
            missing = "\n".join(f"{', '.join(stages)}: {reason}" for reason, stages in _by_reason(first.missing))
            stages = ", ".join(first.stages) or "-"
            stages += f"\nto be recorded: {', '.join(first.record_tensors)}" if first.record_tensors else ""
            table.add_row(*map(escape, (paths, first.module, first.shape, stages, missing or "-")))
        yield table
        table = Table("graft", "sites", "at", "elsewhere", title="grafts, with default options", title_justify="left")
        for row in _fits(found.sites, found.grafts):
            table.add_row(*map(escape, row))
        yield table
    if found.not_run:
        yield escape(f"{found.model} was not run ({found.not_run}): below is what names a softmax in its code")
    if found.unread:
        table = Table("path", "module", "softmax", "forward takes", "holds", title_justify="left")
        table.title = "what attends and is no site: an adapter would have to read it (see: writing a host)"
        for each in found.unread:
            arguments, children = ", ".join(each.arguments), ", ".join(each.children)
            table.add_row(*map(escape, (each.path, each.module, each.how, arguments, children or "-")))
        yield table


def _fits(sites: Any, grafts: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Graft, how many sites take it, which do where not all or none do, and why the others do not."""
    for graft, fit in grafts.items():
        at = "\n".join(_runs(sites, fit.taken)) if fit.taken and fit.refused else "all" if fit.taken else "-"
        yield graft, str(fit), at, "\n".join(dict.fromkeys(fit.refused.values())) or fit.nowhere or "-"


def _runs(sites: Any, taken: Sequence[str]) -> Iterator[str]:
    """The taken sites; those that follow each other among the sites of the same name but for its numbers, as one."""
    import re
    from itertools import groupby

    named: dict[str, list[str]] = {}
    for site in sites:
        named.setdefault(re.sub(r"\d+", "*", site.path), []).append(site.path)
    for paths in named.values():
        runs = [list(run) for takes, run in groupby(paths, key=set(taken).__contains__) if takes]
        if runs:
            yield ", ".join(_as_range(run) for run in runs)


def _as_range(paths: Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{paths[0]} to {paths[-1]} ({len(paths)})"


def _by_reason(missing: Mapping[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Stages that are missing for the same reason, together."""
    for reason in dict.fromkeys(missing.values()):
        yield reason, [stage for stage, why in missing.items() if why == reason]


def _alike(sites: Any) -> Iterator[tuple[str, Any]]:
    """Neighbours that differ in nothing but their numbers, as one row: (paths, the first of them)."""
    import dataclasses
    import re

    def form(site: Any) -> Any:
        return re.sub(r"\d+", "*", site.path), dataclasses.replace(site, path="")

    groups: dict[str, list[Any]] = {}
    for site in sites:
        groups.setdefault(repr(form(site)), []).append(site)
    for alike in groups.values():
        yield _as_range([site.path for site in alike]), alike[0]


def _versions() -> dict[str, str]:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version(), "platform": platform.platform()}
    packages = "attngraft torch torchvision timm transformers accelerate triton safetensors torchmetrics"
    for package in packages.split():
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def _devices() -> dict[str, Any]:
    import torch

    found: dict[str, Any] = {"cpu threads": torch.get_num_threads()}
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found[f"cuda:{index}"] = f"{properties.name}, {properties.total_memory / 2**30:.1f} GiB"
    if not torch.cuda.is_available():
        found["cuda"] = "none usable" if torch.version.cuda else "this torch is built without CUDA"
    if torch.backends.mps.is_available():
        found["mps"] = "usable"
    return found


def _backends() -> dict[str, str]:
    import torch

    from attngraft.dispatch import ENVIRONMENT, registered_ops, triton_obstacle
    from attngraft.mechanisms.registry import graft_types

    graft_types()  # the mechanisms register their operations
    probe = torch.empty(0, device="cuda" if torch.cuda.is_available() else "cpu")
    found = {"triton": triton_obstacle(probe) or "works", f"{ENVIRONMENT} is": os.environ.get(ENVIRONMENT) or "not set"}
    return found | {name: ", ".join(op.backends) for name, op in registered_ops().items()}


def _disk() -> dict[str, str]:
    import shutil
    import tempfile
    from pathlib import Path

    places = {"here": Path.cwd(), "temporary files": Path(tempfile.gettempdir())}
    return {name: f"{shutil.disk_usage(path).free / 2**30:.1f} GiB free ({path})" for name, path in places.items()}
