"""Graft better attention into an existing transformer, and measure whether it helps on your data.

    model = timm.create_model("swin_tiny_patch4_window7_224", pretrained=True)
    report = attngraft.graft(model, "cb_s@last:50% + horizontal")  # in place; host weights untouched
    attngraft.save_grafts(model, "mine.safetensors")               # only the grafts, plus a manifest
    attngraft.ungraft(model)                                       # the host, bit for bit

This module is lazy: names are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from attngraft import _moved
from attngraft._version import __version__

if TYPE_CHECKING:
    from attngraft.attention import Graft, GraftType
    from attngraft.errors import AttngraftError, GraftFileError, GraftSpecError, HostError, RecordError
    from attngraft.export.hf import from_pretrained, save_pretrained
    from attngraft.export.hf_trainer import GraftCheckpoints
    from attngraft.export.hub import push_to_hub
    from attngraft.grafting.apply import graft, pin_unused, ungraft
    from attngraft.grafting.catalog import list_grafts, list_hosts
    from attngraft.grafting.io import load_grafts, save_grafts
    from attngraft.grafting.plan import plan
    from attngraft.grafting.report import GraftReport
    from attngraft.grafting.sets import graft_set
    from attngraft.hosts.adapter import HostAdapter
    from attngraft.hosts.registry import register_host
    from attngraft.mechanisms.registry import register_graft
    from attngraft.models.create import create_model
    from attngraft.recording.record import record
    from attngraft.results.storage import read_study
    from attngraft.saved.folder import load

_HOMES = {
    "AttngraftError": "errors",
    "Graft": "attention",
    "GraftCheckpoints": "export.hf_trainer",
    "GraftFileError": "errors",
    "GraftReport": "grafting.report",
    "GraftSpecError": "errors",
    "GraftType": "attention",
    "HostAdapter": "hosts.adapter",
    "HostError": "errors",
    "RecordError": "errors",
    "create_model": "models.create",
    "from_pretrained": "export.hf",
    "graft": "grafting.apply",
    "graft_set": "grafting.sets",
    "list_grafts": "grafting.catalog",
    "list_hosts": "grafting.catalog",
    "load": "saved.folder",
    "load_grafts": "grafting.io",
    "pin_unused": "grafting.apply",
    "plan": "grafting.plan",
    "push_to_hub": "export.hub",
    "read_study": "results.storage",
    "record": "recording.record",
    "register_graft": "mechanisms.registry",
    "register_host": "hosts.registry",
    "save_grafts": "grafting.io",
    "save_pretrained": "export.hf",
    "ungraft": "grafting.apply",
}

__all__ = [
    "AttngraftError",
    "Graft",
    "GraftCheckpoints",
    "GraftFileError",
    "GraftReport",
    "GraftSpecError",
    "GraftType",
    "HostAdapter",
    "HostError",
    "RecordError",
    "__version__",
    "create_model",
    "from_pretrained",
    "graft",
    "graft_set",
    "list_grafts",
    "list_hosts",
    "load",
    "load_grafts",
    "pin_unused",
    "plan",
    "push_to_hub",
    "read_study",
    "record",
    "register_graft",
    "register_host",
    "save_grafts",
    "save_pretrained",
    "ungraft",
]


_moved.install()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'attngraft' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"attngraft.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
