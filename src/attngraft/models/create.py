"""One call for a host with grafts."""

from __future__ import annotations

from typing import Any, cast

import timm
from torch import nn

from attngraft.grafting.apply import graft as apply_graft
from attngraft.grafting.spec import Specification, parse


def create_model(name: str, graft: Specification = None, pretrained: bool = False, **timm_kwargs: Any) -> nn.Module:
    """`timm.create_model`, then `attngraft.graft`.

        model = attngraft.create_model("vit_tiny_patch16_224", graft="cb_s@blocks.6-11 + horizontal", num_classes=10)

    The host is made before it is grafted, so that its initial values are those of the plain host from the same seed.

    Args:
        name: any timm model, ours included (`attngraft.models`).
        graft: a specification; None or "none" for the host as it is.
        pretrained: load timm's weights for the host; grafts are always fresh (`load_grafts` loads them).
        timm_kwargs: for `timm.create_model`.

    Raises:
        GraftSpecError, HostError: as `graft` does; before any weights are fetched where the text cannot be read.
    """

    spec = parse(graft)
    model = cast(nn.Module, timm.create_model(name, pretrained=pretrained, **timm_kwargs))
    if spec:
        apply_graft(model, spec)
    return model
