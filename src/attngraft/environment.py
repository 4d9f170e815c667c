"""Environment of a run: versions, commit, device, threads."""

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from attngraft._version import __version__

_PACKAGES = ("torch", "torchvision", "timm", "accelerate", "numpy", "safetensors")


def environment(device: torch.device, *, processes: int = 1) -> dict[str, Any]:
    """Return the environment of this process as plain values."""
    names = {"cuda": lambda: torch.cuda.get_device_name(device), "cpu": _cpu_name}
    return {
        "attngraft": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "platform": platform.platform(),
        "machine": platform.machine(),
        "device": str(device),
        "device_name": names.get(device.type, lambda: device.type)(),
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


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


@cache
def _commit() -> str | None:
    """Return the commit of the package's checkout, with `+` for uncommitted changes; None outside a checkout."""
    source = Path(__file__).resolve()
    root = next((parent for parent in source.parents if (parent / ".git").exists()), None)
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
