"""MixToken: VOLO training with token labeling.

A box of tokens is exchanged with the reversed batch before the first block, and exchanged back in the patches' logits:

    share ~ Beta(1, 1);    box: sqrt(1 - share) of rows and columns, at a random position, in patches of the last stage

timm's `VOLO.forward_train` is not used, because it returns the class token without applying its head.

Source: Z. Jiang et al., "All Tokens Matter: Token Labeling for Training Better Vision Transformers", 2021.
"""

from functools import partial
from typing import Any, cast

import torch
from timm.models.volo import rand_bbox
from torch import Tensor, nn

from attngraft.errors import HostError

ARGUMENT = "use_mix_token"  #: argument of a model's factory that enables MixToken

Box = tuple[int, int, int, int]  #: (top, left, bottom, right) in patches; bottom and right are exclusive


def mix_tokens_in_training(model: nn.Module) -> None:
    """Make `model` return the outputs for token labeling in training mode; evaluation mode is unchanged.

    In training mode it returns logits of the class token (B, classes), logits of the patches (B, N, classes), and the box of
    patches that were exchanged with the reversed batch.

    Raises:
        HostError: `model` is not a VOLO with a head for its patches.
    """
    if not has_patch_logits(model):
        raise no_patch_logits(type(model).__name__)
    # not a subclass, because adapters recognize the class; a partial can be copied and pickled with the model
    cast(Any, model).forward = partial(_forward, model)


def has_patch_logits(model: nn.Module) -> bool:
    """Return whether `model` is a VOLO with a head for its patches."""
    return getattr(model, "aux_head", None) is not None and getattr(model, "post_network", None) is not None


def no_patch_logits(name: str) -> HostError:
    """Return the error for models without logits for their patches."""
    return HostError(
        f"{name} has no logits for its patches; token labeling requires a host with patch logits (volo_*, elsa_volo_*, with "
        "their aux_head)"
    )


def _forward(model: Any, x: Tensor) -> Any:
    if not model.training:
        return type(model).forward(model, x)
    maps, scale = model.patch_embed(x).permute(0, 2, 3, 1), model.pooling_scale
    rows, columns = maps.shape[1] // scale, maps.shape[2] // scale
    box = rand_bbox(maps.shape, torch.distributions.Beta(1.0, 1.0).sample(), scale=scale)
    tokens = model.forward_tokens(_exchanged(maps, tuple(scale * edge for edge in box)))
    tokens = model.head_drop(model.norm(model.forward_cls(tokens)))
    patches = model.aux_head(tokens[:, 1:]).unflatten(1, (rows, columns))
    return model.head(tokens[:, 0]), _exchanged(patches, box).flatten(1, 2), box


def _exchanged(maps: Tensor, box: tuple[int, ...]) -> Tensor:
    """Exchange a box of the maps (B, rows, columns, C) with the same box of the reversed batch."""
    top, left, bottom, right = box
    found = maps.clone()
    found[:, top:bottom, left:right] = maps.flip(0)[:, top:bottom, left:right]
    return found
