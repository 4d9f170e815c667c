"""`attngraft doctor`: versions, devices and backends of this machine, or sites and grafts of a model."""

import dataclasses
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from attngraft.cli.output import counts_displayed, echo, output_console, print_json
from attngraft.cli.values import HOST, HOST_ARG, assignments


def doctor(
    host: Annotated[
        str | None, typer.Option("--host", metavar="MODEL", help=f"Examine this host instead of the machine. {HOST}")
    ] = None,
    host_arg: Annotated[list[str] | None, typer.Option("--host-arg", metavar="NAME=VALUE", help=HOST_ARG)] = None,
    verify: Annotated[
        Path | None,
        typer.Option("--verify", metavar="FOLDER", help="Check the files of a run, a study or an exported model."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Report versions, devices, backends that work (and why others do not), and free disk space.

    With --verify: compares the files of a run, a study with its runs, or an exported model with their checksums, and metrics
    with predictions; exits with 1 if a file is damaged.

    With --host: the model's sites and hook points, which grafts fit where, and attention modules that no adapter supports.

    Examples:

        attngraft doctor

        attngraft doctor --json

        attngraft doctor --host swin_tiny_patch4_window7_224

        attngraft doctor --verify ./flowers-study

        attngraft doctor --host xcit_nano_12_p16_224 --host-arg depth=2
    """

    if verify is not None:
        _verify(verify, as_json=as_json)
        return
    if host is not None:
        _examine(host, host_arg or [], as_json=as_json)
        return
    findings = {"versions": _versions(), "devices": _devices(), "backends": _backends(), "disk": _disk()}
    if as_json:
        print_json(findings)
        return
    console = output_console()
    for title, entries in findings.items():
        table = Table(title=title, title_justify="left", show_header=False)
        for name, value in entries.items():
            table.add_row(name, str(value))
        console.print(table)


def _verify(folder: Path, *, as_json: bool) -> None:
    from attngraft.study.verify import verify

    with counts_displayed():
        found = verify(folder)
    if as_json:
        print_json(dataclasses.asdict(found))
    else:
        for line in (*found.problems, *found.notes):
            echo(line)
        echo(f"{folder}: {found.files} files with checksums; problems: {len(found.problems)}")
    if found.problems:
        raise typer.Exit(1)


def _examine(name: str, host_arg: list[str], *, as_json: bool) -> None:
    from attngraft.models.create import create_host
    from attngraft.models.examine import examine
    from attngraft.models.trust import trusting
    from attngraft.tensors import meta_device

    arguments = assignments(host_arg, option="--host-arg")
    with trusting(name), meta_device():
        model = create_host(name, **arguments).eval()
    found = examine(model)
    if as_json:
        content = dataclasses.asdict(found)
        for site in content["sites"]:  # keep the JSON keys of earlier releases
            site["stages"], site["taps"] = site.pop("hook_points"), site.pop("record_tensors")
        print_json(content)
        return
    console = output_console(160, highlight=True)
    for line in _tables(found):
        console.print(line)


def _tables(found: Any) -> Iterator[Any]:
    yield escape(f"{found.model}: " + (f"supported by {found.adapter}" if found.adapter else found.refusal))
    if found.sites:
        titles = ("sites", "modules", "shape", "hook points", "missing")
        table = Table(*titles, title="sites", title_justify="left")
        for paths, first in _merged(found.sites):
            reasons = dict.fromkeys(first.missing.values())
            missing = "\n".join(
                f"{', '.join(point for point, why in first.missing.items() if why == reason)}: {reason}"
                for reason in reasons
            )
            points = ", ".join(first.hook_points) or "-"
            points += f"\nrecordable: {', '.join(first.record_tensors)}" if first.record_tensors else ""
            table.add_row(*map(escape, (paths, first.module, first.shape, points, missing or "-")))
        yield table
        table = Table("graft", "sites", "fits", "refused", title="grafts, with default options", title_justify="left")
        for graft, fit in found.grafts.items():
            taken = (
                "\n".join(_runs(found.sites, fit.taken)) if fit.taken and fit.refused else "all" if fit.taken else "-"
            )
            refused = "\n".join(dict.fromkeys(fit.refused.values())) or fit.nowhere or "-"
            table.add_row(*map(escape, (graft, str(fit), taken, refused)))
        yield table
    if found.not_run:
        yield escape(f"{found.model} could not be run ({found.not_run}); modules whose code contains a softmax:")
    if found.unread:
        table = Table("path", "module", "softmax", "arguments of forward", "children", title_justify="left")
        table.title = "attention without a site; a host adapter could support it (see: Writing a host)"
        for each in found.unread:
            arguments, children = ", ".join(each.arguments), ", ".join(each.children)
            table.add_row(*map(escape, (each.path, each.module, each.how, arguments, children or "-")))
        yield table


def _runs(sites: Any, taken: Sequence[str]) -> Iterator[str]:
    """Yield lines of the paths in `taken`, as ranges of consecutive sites whose paths differ only in numbers."""
    named: dict[str, list[str]] = {}
    for site in sites:
        named.setdefault(re.sub(r"\d+", "*", site.path), []).append(site.path)
    for paths in named.values():
        runs = [list(run) for takes, run in groupby(paths, key=set(taken).__contains__) if takes]
        if runs:
            yield ", ".join(_as_range(run) for run in runs)


def _as_range(paths: Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{paths[0]} to {paths[-1]} ({len(paths)})"


def _merged(sites: Any) -> Iterator[tuple[str, Any]]:
    """Yield (range of paths, first site) for each group of sites that differ only in the numbers of their paths."""
    groups: dict[str, list[Any]] = {}
    for site in sites:
        form = re.sub(r"\d+", "*", site.path), dataclasses.replace(site, path="")
        groups.setdefault(repr(form), []).append(site)
    for group in groups.values():
        yield _as_range([site.path for site in group]), group[0]


def _versions() -> dict[str, str]:
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
    from attngraft.mechanisms import bixt  # noqa: F401 - registers its operations
    from attngraft.mechanisms.registry import graft_types

    graft_types()  # imports the mechanisms with grafts, which register their operations
    probe = torch.empty(0, device="cuda" if torch.cuda.is_available() else "cpu")
    found = {"triton": triton_obstacle(probe) or "works", f"{ENVIRONMENT} is": os.environ.get(ENVIRONMENT) or "not set"}
    return found | {name: ", ".join(op.backends) for name, op in registered_ops().items()}


def _disk() -> dict[str, str]:
    folders = {"here": Path.cwd(), "temporary files": Path(tempfile.gettempdir())}
    return {name: f"{shutil.disk_usage(path).free / 2**30:.1f} GiB free ({path})" for name, path in folders.items()}
