"""BiXT, the bi-directional cross-attention transformer: its parts, the model, and its names with timm.

| file | contents |
|---|---|
| tokenizers.py | images to tokens, and local patch interaction |
| positions.py | position codes of one grid, or of any |
| layers.py | blocks and layers, from `mechanisms.bixt` |
| latent_model.py | base class of models of latents and tokens, with their initialization |
| model.py | the network |
| baselines.py | the paper's baselines |
| registration.py | all of these by name |

Importing this package only registers the names: classes are imported, and their operations registered, on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from attngraft.models.bixt import registration

if TYPE_CHECKING:
    from attngraft.models.bixt.baselines import Iterative, Sequential
    from attngraft.models.bixt.model import BiXT

_HOMES = {"BiXT": "model", "Iterative": "baselines", "Sequential": "baselines"}

__all__ = ["BiXT", "Iterative", "Sequential", "registration"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
