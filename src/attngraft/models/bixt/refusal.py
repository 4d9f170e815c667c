"""Weights that do not serve a BiXT though their shapes fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from timm.layers import Attention
from torch import nn

from attngraft.mechanisms.bixt.layer import BidirectionalCrossAttention, OneSidedCrossAttention

if TYPE_CHECKING:
    from attngraft.models.bixt.latent_model import LatentModel


def checkpoint_refusal_fn(architecture: str, arguments: Mapping[str, Any], model: LatentModel) -> str | None:
    """Why weights of the model called `architecture`, made with `arguments`, are none for `model` though their shapes fit.

    Shapes do not show heads, and the paper's models have others than the published weights. They show neither stride nor
    image size, but weights may move between those.
    """
    from attngraft.models.bixt.registration import MODELS

    if architecture not in MODELS:
        return None  # another family's, which its names will show
    said = {**MODELS[architecture], **arguments}
    here = {
        "sa_heads": _first(Attention, model).num_heads,
        "ca_heads": _first((BidirectionalCrossAttention, OneSidedCrossAttention), model).heads,
    }
    there = {name: said.get(name) or said["num_heads"] for name in here}
    if here == there:
        return None
    return (
        f"whose attention has {_heads(there)}, and this model's has {_heads(here)}: shapes would fit, and it would compute "
        f"something else. Make the model by that name, or with num_heads={said['num_heads']}"
    )


def _first(kind: type[nn.Module] | tuple[type[nn.Module], ...], model: nn.Module) -> Any:
    """The model's first layer of a kind; all of them have the same heads."""
    return next(module for module in model.modules() if isinstance(module, kind))


def _heads(heads: Mapping[str, int]) -> str:
    latents, cross = heads["sa_heads"], heads["ca_heads"]
    return f"{cross} heads" if latents == cross else f"{cross} heads ({latents} among latents)"
