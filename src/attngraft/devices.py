"""The device that models run on."""

import os

import torch

from attngraft.errors import UsageError


def accelerator_device() -> torch.device | None:
    """Return the device that models run on; None for the CPU: without an accelerator, or as `use_device` requested."""
    if os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "t", "yes", "y", "on"):
        return None
    return _available()


def use_device(name: str | None) -> None:
    """Make this process and the processes that it starts use one device; None changes nothing.

    Sets environment variables that accelerate and CUDA read, so call it before anything is computed.

    Args:
        name: cpu, cuda, cuda:N (numbered as in CUDA_VISIBLE_DEVICES, if that is set), mps or another accelerator of torch.

    Raises:
        UsageError: there is no such device, or a launcher has assigned devices to its processes.
    """
    if name is None:
        return
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"--device {name}: not a device; use cpu, cuda, cuda:N or mps") from None
    if "LOCAL_RANK" in os.environ:
        raise UsageError(f"--device {name}: the launcher assigns devices to its processes; remove --device")
    if device.type == "cpu":
        os.environ["ACCELERATE_USE_CPU"] = "true"
        return
    os.environ.pop("ACCELERATE_USE_CPU", None)
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    if device.type == "cuda" and device.index is not None:  # before CUDA starts, which reads it once
        visible = [each.strip() for each in (before or "").split(",") if each.strip()]
        named = visible[device.index : device.index + 1] if before is not None else [str(device.index)]
        os.environ["CUDA_VISIBLE_DEVICES"] = named[0] if named else ""
    found = _available()
    if found is None or found.type != device.type or (device.type != "cuda" and device.index):
        if before is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = before
        else:
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        raise UsageError(f"--device {name}: this machine has no such device; attngraft doctor lists its devices")


def _available() -> torch.device | None:
    return torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
