"""Adapters for models of packages that attngraft can do without, imported where such a model is met or hosts are listed."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version

from torch import nn


@dataclass(frozen=True)
class Extra:
    """The adapters for one package's models."""

    extra: str  #: of attngraft, which installs the package
    names: tuple[str, ...]  #: of the adapters: `hf.vit` is registered by `attngraft.hosts.hf.vit`


#: a new family adds its name here
_HUGGING_FACE = (
    *("vit", "dinov2", "dinov3", "clip", "swin", "marian", "t5"),
    *("bert", "roberta", "electra", "distilbert", "modernbert"),
)
#: by package
OPTIONAL: Mapping[str, Extra] = {"transformers": Extra("hf", tuple(f"hf.{name}" for name in _HUGGING_FACE))}


@cache
def load(package: str) -> Mapping[str, str]:
    """Register the adapters for `package`; returns those that cannot be had, with the reason."""
    wanted, missing = OPTIONAL[package], {}
    remedy = f"pip install 'attngraft[{wanted.extra}]'"
    if importlib.util.find_spec(package) is None:
        return dict.fromkeys(wanted.names, f"needs {package}: {remedy}")
    for name in wanted.names:
        try:
            importlib.import_module(f"attngraft.hosts.{name}")
        except (ImportError, AttributeError) as error:  # modules and classes come and go with the release
            missing[name] = f"cannot read the models of {package} {version(package)} ({error}): {remedy}"
    return missing


def packages_of(modules: Iterable[nn.Module]) -> list[str]:
    """Those of `OPTIONAL` that a class of these modules, or one it comes from, belongs to."""
    kinds = {base for kind in {type(module) for module in modules} for base in kind.__mro__}
    homes = {kind.__module__.partition(".")[0] for kind in kinds}
    return [package for package in OPTIONAL if package in homes]
