"""Studies: variants of a host trained under one recipe with several seeds, and compared.

    config = study_from_dict({"host": "vit_tiny_patch16_224", "grafts": ["cb_s"], "data": "digits", "out": "study"})
    result = compare(config)

`config` says what is compared, `schedule` and `estimate` what that takes, `conduct` carries it out, `collect` reads what
came out with the help of `statistics` and `verdict`, and `result` is all of it as plain data.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attngraft.results.storage import load_result
    from attngraft.results.study import StudyResult
    from attngraft.study.conduct import Tools, compare, incomplete, prepare, report_only
    from attngraft.study.config import StudyConfig, read_study, study_from_dict

_HOMES = {
    "StudyConfig": "config",
    "StudyResult": "attngraft.results.study",
    "Tools": "conduct",
    "compare": "conduct",
    "incomplete": "conduct",
    "load_result": "attngraft.results.storage",
    "prepare": "conduct",
    "read_study": "config",
    "report_only": "conduct",
    "study_from_dict": "config",
}

__all__ = [
    "StudyConfig",
    "StudyResult",
    "Tools",
    "compare",
    "incomplete",
    "load_result",
    "prepare",
    "read_study",
    "report_only",
    "study_from_dict",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'attngraft.study' has no attribute {name!r}")
    home = _HOMES[name]
    return getattr(importlib.import_module(home if "." in home else f"attngraft.study.{home}"), name)
