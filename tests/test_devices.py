"""The device that models run on."""

from __future__ import annotations

import os

import pytest
import torch

from attngraft import devices
from attngraft.devices import accelerator_device, use_device
from attngraft.errors import UsageError


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """One visible CUDA device, unless CUDA_VISIBLE_DEVICES is empty."""
    monkeypatch.setenv("ACCELERATE_USE_CPU", "false")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    monkeypatch.delenv("LOCAL_RANK", raising=False)

    def available() -> torch.device | None:
        return torch.device("cuda") if os.environ["CUDA_VISIBLE_DEVICES"] else None

    monkeypatch.setattr(devices, "_available", available)


def test_a_numbered_device_is_the_only_visible_one() -> None:
    use_device(None)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,7"
    use_device("cuda:1")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "7"
    assert accelerator_device() == torch.device("cuda")


def test_the_cpu() -> None:
    use_device("cpu")
    assert accelerator_device() is None
    use_device("cuda")
    assert accelerator_device() == torch.device("cuda")


@pytest.mark.parametrize("name", ["cuda:2", "mps", "xpu", "toaster"])
def test_a_device_that_is_not_there_changes_nothing(name: str) -> None:
    with pytest.raises(UsageError, match=f"--device {name}: "):
        use_device(name)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,7"


def test_a_launcher_assigns_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(UsageError, match="the launcher assigns devices"):
        use_device("cuda:1")
