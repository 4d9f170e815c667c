"""What the families of `transformers` share: layers found by their class, sizes from the configuration."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from attngraft.attention import is_graft, plain_class
from attngraft.hosts.adapter import HostAdapter, Site, norm_state, own_state, random_images

#: tokens of an example of text
LENGTH = 12


class TransformersFamily(HostAdapter):
    """An adapter that finds its layers by class, wherever they stand in the model.

    A model with a head holds the one without under a name of its own (`vit`). Paths of sites leave that name out, so that
    specifications and graft files serve both.
    """

    models: ClassVar[tuple[type[nn.Module], ...]]
    layers: ClassVar[tuple[type[nn.Module], ...]]
    inner: ClassVar[tuple[str, ...]]  #: what a model with a head calls the one without
    heads: ClassVar[tuple[str, ...]]  #: what it may call its heads

    @abstractmethod
    def read(self, layer: Any, path: str) -> Iterable[Site]:
        """The sites of one layer, in the order in which it runs them.

        Raises:
            HostError: a module in the layer has a form that this adapter does not know.
        """

    def recognizes(self, model: nn.Module) -> bool:
        return type(model) in self.models

    def canonical(self, path: str) -> str:
        first, _, rest = path.partition(".")
        return self.canonical(rest) if rest and first in self.inner else path

    def sites(self, model: nn.Module) -> list[Site]:
        return list(self._sites(model))

    def _sites(self, model: nn.Module) -> Iterator[Site]:
        for path, module in model.named_modules():
            if plain_class(module) in self.layers and not is_graft(path):
                for site in self.read(module, path):
                    yield replace(site, path=self.canonical(site.path))

    def parts(self, model: nn.Module) -> Mapping[str, tuple[str, ...]]:
        return {"head": own_state(model, *self.heads), "norms": norm_state(model)}


class ImageFamily(TransformersFamily):
    """Models that take images."""

    heads = ("classifier", "cls_classifier", "distillation_classifier", "visual_projection")

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        config = vision(model.config)
        return random_images(model, (config.num_channels, *pair(config.image_size)), batch=batch)


class TextFamily(TransformersFamily):
    """Models that take ids of tokens first; texts have any length, so that no site knows its number of tokens."""

    heads: ClassVar[tuple[str, ...]] = ("classifier", "cls", "lm_head", "qa_outputs")
    several: ClassVar[tuple[type[nn.Module], ...]] = ()  #: models that choose one of several texts

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        if type(model) in self.several:
            return (random_ids(model, batch=2 * batch).unflatten(0, (batch, 2)),)
        return (random_ids(model, batch=batch),)


def random_ids(model: Any, *, batch: int, length: int = LENGTH) -> Tensor:
    """Ids (batch, N) of the model's vocabulary, none of them padding; N is `length`, or what the model has positions for."""
    config = model.config
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None:
        length = min(length, positions - 2)  # RoBERTa and its kin never use the first two
    ids = torch.randint(config.vocab_size - 1, (batch, length), device=next(model.parameters()).device)
    padding = config.pad_token_id
    return ids if padding is None else ids + (ids >= padding)


def vision(config: Any) -> Any:
    """The configuration of the vision tower, in a model that may have more of them."""
    return getattr(config, "vision_config", config)


def pair(size: Any) -> tuple[int, int]:
    """(rows, columns) of what a configuration gives as one number or two."""
    rows, columns = (size, size) if isinstance(size, int) else size
    return int(rows), int(columns)


def image_tokens(config: Any, *, prefix: tuple[str, ...]) -> dict[str, Any]:
    """The part of the geometry that all sites of a model with one sequence of patches share."""
    rows, columns = (
        side // patch for side, patch in zip(pair(config.image_size), pair(config.patch_size), strict=True)
    )
    return {
        "dim": config.hidden_size,
        "tokens": len(prefix) + rows * columns,
        "prefix": prefix,
        "grid": (rows, columns),
    }
