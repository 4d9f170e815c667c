"""The analyses that can be asked for by name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from attngraft.analysis.ask import Analysis
from attngraft.errors import UsageError
from attngraft.suggest import did_you_mean

#: name -> module of `analysis.asked` that holds it as ANALYSIS, in the order in which they are listed
ANALYSES: Mapping[str, str] = {
    "entropy": "entropy",
    "entropy-maps": "entropy_maps",
    "distance": "distance",
    "scaling": "scaling",
    "class-token": "class_token",
    "curves": "curves",
    "confusion": "confusion",
    "gates": "gates",
    "cka": "cka",
    "rollout": "rollout",
    "sides": "sides",
    "importance": "importance",
    "structure": "structure",
    "latents": "latents",
    "symmetry": "symmetry",
    "filters": "filters",
    "ghost": "ghost",
    "receptive-field": "receptive_field",
}


def analysis(name: str) -> Analysis:
    """
    Raises:
        UsageError: there is none of this name.
    """
    if name not in ANALYSES:
        raise UsageError(f"{name!r} is no analysis{did_you_mean(name, ANALYSES)}; there are {', '.join(ANALYSES)}")
    found: Analysis = import_module(f"attngraft.analysis.asked.{ANALYSES[name]}").ANALYSIS
    return found


def analyses() -> list[Analysis]:
    """All of them."""
    return [analysis(name) for name in ANALYSES]
