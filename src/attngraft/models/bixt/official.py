"""The authors' weights: their checkpoints as they are published, or converted by `attngraft convert`.

    model = timm.create_model("bixt_ti_l64_p16_ft384")
    load_official(model, "bixt_ti_l64_p16.pth.tar")     # trained at 224 pixels

Nothing is fetched. `create_model(..., weights=FILE)` and `--weights FILE` read the same files.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from timm.layers import Attention
from torch import nn

from attngraft.anatomy import is_graft
from attngraft.errors import UsageError
from attngraft.mechanisms.bixt.layer import BidirectionalCrossAttention, OneSidedCrossAttention
from attngraft.models.weights import Fitted, read_weights

if TYPE_CHECKING:
    from attngraft.models.bixt.latent_model import LatentModel


def load_official(model: nn.Module, path: str | os.PathLike[str], *, new_head: bool = False) -> Fitted:
    """Fill `model` with published weights; says what became of them.

    The checkpoint may be a zip around `model_best.pth.tar`, hold a bare state dict or keep it under `state_dict`, `model`,
    `state_dict_ema` or `model_ema` (the average is preferred), with names that begin with `module.` and `_orig_mod.`, in
    torch's or safetensors' format. The code of positions is the model's own, so weights of one grid serve any other; all
    else must be there, be of the same shape, and nothing may be left over.

    Args:
        model: a BiXT without grafts.
        new_head: let a head for another number of classes stay new.

    Raises:
        UsageError: the model is no BiXT or has grafts, or there is no such file.
        HostError: the file is damaged or holds more than tensors and arguments; tensors are missing, left over or of other
            shapes, all of which are listed; or they are of a model with other heads. The model was left as it was.
    """
    from attngraft.models.bixt.model import BiXT  # which asks this file what it refuses

    if not isinstance(model, BiXT):
        raise UsageError(
            f"load_official fills a BiXT (timm.create_model('bixt_ti_l64_p16')), not a {type(model).__name__}; "
            "attngraft.create_model(NAME, weights=FILE) reads files for others"
        )
    if any(map(is_graft, model.state_dict())):
        raise UsageError("load_official fills a BiXT without grafts; load first, then call attngraft.graft")
    file = read_weights(path)
    fitted = file.fill_host(model, new_head=new_head)
    file.fill_grafts(model)  # which refuses a file that has some
    return fitted


def checkpoint_refusal_fn(architecture: str, arguments: Mapping[str, Any], model: LatentModel) -> str | None:
    """Why weights of the model called `architecture`, made with `arguments`, are none for `model` though their shapes fit.

    Shapes do not show heads, and the paper's models have others than the published weights. They show neither stride nor
    image size, but weights may move between those.
    """
    from attngraft.models.bixt.registration import MODELS

    if architecture not in MODELS:
        return None  # another family's, which its names will show
    said = {**MODELS[architecture][1], **arguments}
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
