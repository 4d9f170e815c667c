"""`attngraft doctor`: what this machine has, and what works on it."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Report versions, devices, backends that work (and why others do not), and free disk.

    Examples:

        attngraft doctor

        attngraft doctor --json
    """
    import json
    import sys

    from rich.console import Console
    from rich.table import Table

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


def _versions() -> dict[str, str]:
    import platform
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in ("attngraft", "torch", "torchvision", "timm", "accelerate", "triton", "safetensors", "torchmetrics"):
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
