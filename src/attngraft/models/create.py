"""One call for a host with grafts."""

from __future__ import annotations

import difflib
import os
from typing import Any, cast

import timm
from torch import nn

from attngraft.errors import HostError, UsageError
from attngraft.grafting.apply import graft as apply_graft
from attngraft.grafting.spec import Specification, parse
from attngraft.models.pretrained import why_no_weights
from attngraft.models.transformers_folder import HOST as TRANSFORMERS
from attngraft.models.transformers_folder import folder_arguments, folder_classes, transformers_folder
from attngraft.models.weights import read_weights


def create_model(
    name: str,
    graft: Specification = None,
    pretrained: bool = False,
    *,
    weights: str | os.PathLike[str] | None = None,
    **timm_kwargs: Any,
) -> nn.Module:
    """`timm.create_model`, then `attngraft.graft`.

        model = attngraft.create_model("vit_tiny_patch16_224", graft="cb_s@blocks.6-11 + horizontal", num_classes=10)

    The host is made before it is grafted, so that its initial values are those of the plain host from the same seed.

    Args:
        name: any timm model, ours included (importing this package registers them).
        graft: a specification; None or "none" for the host as it is.
        pretrained: load timm's weights for the host; grafts are always fresh (`load_grafts` loads them).
        weights: load this file instead (`models.weights` says which), the grafts' values too where it has them. The
            head stays new where the file's has another number of classes. For `transformers_classifier` a folder of
            transformers, which says the model's arguments too.
        timm_kwargs: for `timm.create_model`.

    Raises:
        UsageError: there is no model of this name (says which are near) or no such file; or `pretrained` and `weights`.
        GraftSpecError, HostError: as `graft` does, before any weights are fetched where the text cannot be read; or timm
            cannot make the model with these arguments, its weights cannot be had, or the file does not fit.
    """
    spec = parse(graft)
    if pretrained and weights is not None:
        raise UsageError("pretrained and weights both say what the host starts from; give one of them")
    file = read_weights(weights, host=name) if weights is not None else None
    if name == TRANSFORMERS and weights is not None and (folder := transformers_folder(weights)) is not None:
        timm_kwargs = {"num_classes": folder_classes(folder), **folder_arguments(folder, timm_kwargs)}
    model = create_host(name, pretrained=pretrained, **timm_kwargs)
    if file is not None:
        file.fill_host(model)
    if spec:
        apply_graft(model, spec)
    if file is not None:
        file.fill_grafts(model)
    return model


def create_host(name: str, *, pretrained: bool = False, **timm_kwargs: Any) -> nn.Module:
    """`timm.create_model`, with errors that say what to do.

    Raises:
        UsageError, HostError: as `create_model`.
    """
    _check_name(name)
    try:
        return cast(nn.Module, timm.create_model(name, pretrained=pretrained, **timm_kwargs))
    except Exception as error:  # timm, the Hub's client and the HTTP client below it raise what they like
        if reason := why_no_weights(name, error):
            raise HostError(reason) from error
        if not isinstance(error, TypeError | ValueError | AssertionError | RuntimeError | OSError):
            raise
        given = ", ".join(f"{key}={value!r}" for key, value in timm_kwargs.items()) or "no arguments"
        raise HostError(f"timm cannot make {name} with {given}: {error}") from error


def _check_name(name: str) -> None:
    if ":" in name or timm.is_model(name.partition(".")[0]):  # `hf-hub:...`, `local-dir:...` are timm's to resolve
        return
    near = difflib.get_close_matches(name, timm.list_models(), n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else "timm.list_models() lists all"
    raise UsageError(f"there is no model {name!r} in timm {timm.__version__}; {hint}")
