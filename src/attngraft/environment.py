"""What a run ran on: versions, commit, device, threads."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from attngraft._version import __version__

_PACKAGES = ("torch", "torchvision", "timm", "accelerate", "numpy", "safetensors")


def environment(device: torch.device, *, processes: int = 1) -> dict[str, Any]:
    """The environment of this process as plain values."""
    return {
        "attngraft": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "machine": platform.machine(),
        "device": str(device),
        "device_name": _device_name(device),
        "cuda": torch.version.cuda,
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "processes": processes,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "cpu":
        return _cpu_name()
    return device.type


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """The commit of the package's source, where it runs from a git checkout; `+` where that has changes."""
    here = Path(__file__).resolve()
    root = next((parent for parent in here.parents if (parent / ".git").exists()), None)
    if root is None or not (root / "src" / "attngraft").is_dir():
        return None
    commit = _git(root, "rev-parse", "HEAD")
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    return commit and commit + ("+" if changed else "")


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
