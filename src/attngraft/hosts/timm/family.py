"""Base class of timm's adapters."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from timm.models._features import FeatureDictNet, FeatureListNet
from torch import Tensor, nn

from attngraft.attention import plain_class
from attngraft.hosts.adapter import norm_state, own_state, random_images
from attngraft.hosts.family import BlockFamily, ShapeProbe, Sites

__all__ = ["FEATURE_NETS", "ShapeProbe", "Sites", "TimmFamily", "image_size"]

#: what `features_only=True` creates: no model class, only blocks
FEATURE_NETS = (FeatureListNet, FeatureDictNet)


class TimmFamily(BlockFamily):
    """A family of timm's models, also as made by `features_only=True`."""

    @classmethod
    def find_class(cls, name: str) -> type[nn.Module]:
        module, _, kind = name.rpartition(".")
        found: type[nn.Module] = getattr(importlib.import_module(f"timm.models.{module}"), kind)
        return found

    def recognizes(self, model: nn.Module) -> bool:
        if type(model) not in FEATURE_NETS:
            return type(model) in self.models
        # blocks shared with other families do not count
        own = [kind for kind in self.blocks if kind.__module__ == self.models[0].__module__]
        return any(plain_class(module) in own for module in model.modules())

    def canonical(self, path: str) -> str:
        """Undo the renaming of `features_only`: `stages_0` is `stages.0`."""
        return re.sub(r"^([a-z]+)_(\d+)(?=\.|$)", r"\1.\2", path)

    def example_inputs(self, model: nn.Module, *, batch: int) -> tuple[Tensor, ...]:
        return random_images(model, image_size(model), batch=batch)

    def forget(self, model: nn.Module) -> None:
        """Clear attention biases gathered in evaluation mode.

        They may have a graph, which cannot be copied, and older timm (1.0.26) updates them only after training: averaged
        weights would be evaluated with old biases.
        """
        for module in cast(Iterable[Any], model.modules()):
            if hasattr(module, "attention_bias_cache"):
                module.attention_bias_cache = {}

    def parts(self, model: nn.Module) -> Mapping[str, tuple[str, ...]]:
        names = getattr(model, "pretrained_cfg", {}).get("classifier") or "head"
        heads = (names,) if isinstance(names, str) else tuple(names)
        return {"head": own_state(model, *heads, "fc_norm"), "norms": norm_state(model)}


def image_size(model: nn.Module) -> tuple[int, int, int]:
    """Return (channels, rows, columns) of the images that a timm model was created for."""
    first = next(module for module in model.modules() if isinstance(module, nn.Conv2d))
    sizes = (getattr(module, "img_size", None) for module in model.modules())  # of the model or its patch embedding
    size = next((size for size in sizes if size), None)
    if size is None:
        size = cast(Mapping[str, Any], getattr(model, "pretrained_cfg", {})).get("input_size", (3, 224, 224))[-2:]
    rows, columns = (size, size) if isinstance(size, int) else size
    return first.in_channels, rows, columns
