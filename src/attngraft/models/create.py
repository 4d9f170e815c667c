"""One call for a host with grafts."""

from __future__ import annotations

import difflib
from typing import Any, cast

import timm
from torch import nn

from attngraft.errors import HostError, UsageError
from attngraft.grafting.apply import graft as apply_graft
from attngraft.grafting.spec import Specification, parse


def create_model(name: str, graft: Specification = None, pretrained: bool = False, **timm_kwargs: Any) -> nn.Module:
    """`timm.create_model`, then `attngraft.graft`.

        model = attngraft.create_model("vit_tiny_patch16_224", graft="cb_s@blocks.6-11 + horizontal", num_classes=10)

    The host is made before it is grafted, so that its initial values are those of the plain host from the same seed.

    Args:
        name: any timm model, ours included (importing this package registers them).
        graft: a specification; None or "none" for the host as it is.
        pretrained: load timm's weights for the host; grafts are always fresh (`load_grafts` loads them).
        timm_kwargs: for `timm.create_model`.

    Raises:
        UsageError: there is no model of this name; says which are near.
        GraftSpecError, HostError: as `graft` does, before any weights are fetched where the text cannot be read; or timm
            cannot make the model with these arguments.
    """
    spec = parse(graft)
    _check_name(name)
    try:
        model = cast(nn.Module, timm.create_model(name, pretrained=pretrained, **timm_kwargs))
    except (TypeError, ValueError, AssertionError, RuntimeError, OSError) as error:
        given = ", ".join(f"{key}={value!r}" for key, value in timm_kwargs.items()) or "no arguments"
        raise HostError(f"timm cannot make {name} with {given}: {error}") from error
    if spec:
        apply_graft(model, spec)
    return model


def _check_name(name: str) -> None:
    if ":" in name or timm.is_model(name.partition(".")[0]):  # `hf-hub:...`, `local-dir:...` are timm's to resolve
        return
    near = difflib.get_close_matches(name, timm.list_models(), n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else "timm.list_models() lists all"
    raise UsageError(f"there is no model {name!r} in timm {timm.__version__}; {hint}")
