"""Base classes of the adapters for `transformers`."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from attngraft.errors import HostError
from attngraft.hosts.adapter import random_images
from attngraft.hosts.family import BlockFamily
from attngraft.hosts.sites import map_fields
from attngraft.suggest import quoted

_LENGTH = 12  #: tokens of an example text


class TransformersFamily(BlockFamily):
    """Adapter of a family of models, with and without heads.

    A model with a head contains the base model under a name such as `vit`. Site paths omit this name, so specifications
    and graft files fit models with and without a head.
    """

    module_name = "transformers.models.{0}.modeling_{0}"
    base_names: ClassVar[tuple[str, ...]]  #: names of the base model in a model with a head

    def canonical(self, path: str) -> str:
        first, _, rest = path.partition(".")
        return self.canonical(rest) if rest and first in self.base_names else path


class ImageFamily(TransformersFamily):
    """Adapter of image models."""

    head_names = ("classifier", "cls_classifier", "distillation_classifier", "visual_projection")

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        config = getattr(model.config, "vision_config", model.config)
        return random_images(model, (config.num_channels, *pair(config.image_size)), batch=batch)


class TextFamily(TransformersFamily):
    """Adapter of text models, whose first input is token ids of any length."""

    head_names: ClassVar[tuple[str, ...]] = ("classifier", "cls", "lm_head", "qa_outputs")

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        if type(model).__name__.endswith("ForMultipleChoice"):
            return (random_ids(model, batch=2 * batch).unflatten(0, (batch, 2)),)
        return (random_ids(model, batch=batch),)


def random_ids(model: Any, *, batch: int) -> Tensor:
    """Return token ids (batch, N) without padding; N is 12, or fewer if the model has fewer positions."""
    config, length = model.config, _LENGTH
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None:
        length = min(length, positions - 2)  # RoBERTa and similar models never use the first two
    ids = torch.randint(config.vocab_size - 1, (batch, length), device=next(model.parameters()).device)
    padding = config.pad_token_id
    return ids if padding is None else ids + (ids >= padding)


def pair(size: Any) -> tuple[int, int]:
    """Return `size`, one number or a pair, as (rows, columns).

    Raises:
        HostError: it is something else.
    """
    sides = (size, size) if isinstance(size, int) else size
    numbers = isinstance(sides, list | tuple) and all(
        isinstance(side, int | float) and side >= 1 and side % 1 == 0 for side in sides
    )
    if not numbers or len(sides) != 2:
        raise HostError(f"sizes of images and patches must be one number or two, not {quoted(size)}; correct them")
    rows, columns = sides
    return int(rows), int(columns)


def image_tokens(config: Any, *, prefix: tuple[str, ...]) -> dict[str, Any]:
    """Return the geometry fields of a model with one sequence of prefix tokens and patches."""
    sizes = zip(pair(config.image_size), pair(config.patch_size), strict=True)
    rows, columns = (side // patch for side, patch in sizes)
    return map_fields(config.hidden_size, rows, columns, prefix=prefix)
