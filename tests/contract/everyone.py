"""All classes that hold a host to the contract."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.contract import hf, timm, torch_nn, torchvision
from tests.contract.tester import HostContract

PACKAGES = (timm, hf, torch_nn, torchvision)


def contracts(*packages: ModuleType) -> Iterator[type[HostContract]]:
    """Those of `packages` (default: of all), in the order in which they are written; without what cannot be had here."""
    for package in packages or PACKAGES:
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            try:
                module = importlib.import_module(found.name)
            except pytest.skip.Exception:  # the models are of a later timm, or transformers is not there
                continue
            for name, value in vars(module).items():
                own = inspect.isclass(value) and value.__module__ == module.__name__
                if own and name.startswith("Test") and issubclass(value, HostContract):
                    yield value


def name_of(contract: type[HostContract]) -> str:
    """Short and only its own: timm's ViT and torchvision's have classes of one name."""
    package = contract.__module__.split(".")[-2]
    return contract.__name__ if package == "timm" else f"{package}-{contract.__name__}"
