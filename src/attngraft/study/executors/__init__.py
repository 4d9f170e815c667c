"""Who carries out the runs of a study: this process one after the other, several processes, or a Ray cluster.

`work` says what there is to do and what becomes of it, `trial` does it wherever that is, and each other module is one
way of handing it out. All that a run leaves is in its folder, so a study may change its executor whenever it is stopped.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attngraft.study.executors.processes import Processes
    from attngraft.study.executors.ray import Ray
    from attngraft.study.executors.serial import Serial
    from attngraft.study.executors.work import Executor

_HOMES = {"Executor": "work", "Processes": "processes", "Ray": "ray", "Serial": "serial"}

__all__ = ["Executor", "Processes", "Ray", "Serial"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'attngraft.study.executors' has no attribute {name!r}")
    return getattr(importlib.import_module(f"attngraft.study.executors.{_HOMES[name]}"), name)
