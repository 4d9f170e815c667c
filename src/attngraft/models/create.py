"""`create_model`: creation of hosts with grafts, with errors that name the remedy."""

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any, cast

import timm
from timm.models import is_model
from torch import nn

from attngraft.downloads import caches_alone
from attngraft.errors import HostError, UsageError, check_types
from attngraft.grafting.apply import graft as apply_graft
from attngraft.grafting.spec import GraftSpec, Specification, parse
from attngraft.models.hub import hub_or_cache
from attngraft.models.schemes import (
    Started,
    build_anywhere,
    creation_errors,
    refuse_huge_numbers,
    refuse_others_model,
    split_scheme,
    unknown_host,
)
from attngraft.models.transformers_folder import HOST as TRANSFORMERS
from attngraft.models.transformers_folder import folder_arguments, folder_classes, transformers_folder
from attngraft.models.trust import trusting
from attngraft.models.unavailable import why_no_weights
from attngraft.models.weights import read_weights


def create_model(
    name: str,
    graft: Specification = None,
    pretrained: bool = False,
    *,
    weights: str | os.PathLike[str] | None = None,
    **timm_kwargs: Any,
) -> nn.Module:
    """Create a model by name, then graft it.

        model = attngraft.create_model("vit_tiny_patch16_224", graft="cb_s@blocks.6-11 + horizontal", num_classes=10)

    The host is initialized before it is grafted, so it has the same initial values as a plain host with the same seed.

    Args:
        name: any timm model, including ours (importing this package registers them), or a host of another scheme:
            `torchvision:NAME`, `hf:FOLDER`, `hf:USER/NAME`, `module:package.path:factory` (`models.schemes`).
        graft: a specification; None or "none" for the plain host.
        pretrained: load the scheme's weights for the host; grafts are always new (`load_grafts` loads them).
        weights: load this file instead (`models.weights` lists the formats), including the values of its grafts, if any. The
            head stays new if the file's head has another number of classes. For `transformers_classifier` pass a folder
            written by transformers, which also determines the model's arguments.
        timm_kwargs: further arguments of the host's factory.

    Raises:
        UsageError: there is no such model or file, or both `pretrained` and `weights` are passed.
        GraftSpecError, HostError: see `graft` (an invalid specification is refused before any weights are downloaded); or
            timm cannot create the model with these arguments, its weights are not available, or the file does not fit.
    """
    check_types(
        name=(name, str), graft=(graft, str, Sequence, GraftSpec, None), weights=(weights, str, os.PathLike, None)
    )
    spec = parse(graft)
    if pretrained and weights is not None:
        raise UsageError("pretrained and weights both select initial weights; pass only one of them")
    file = read_weights(weights, host=name) if weights is not None else None
    if name == TRANSFORMERS and weights is not None and (folder := transformers_folder(weights)) is not None:
        timm_kwargs = {"num_classes": folder_classes(folder), **folder_arguments(folder, timm_kwargs)}
    with trusting(name):
        started = start_host(name, timm_kwargs, pretrained=pretrained)
    model, file = started.model, started.file or file
    if file is not None and started.file is None:
        file.fill_host(model)
    if spec:
        apply_graft(model, spec)
    if file is not None:
        file.fill_grafts(model)
    return model


def create_host(name: str, *, pretrained: bool = False, **arguments: Any) -> nn.Module:
    """Create a host of any scheme (`models.schemes`).

    Raises:
        UsageError, HostError: as in `create_model`; or a `module:` host is not permitted (`models.trust`).
    """
    return start_host(name, arguments, pretrained=pretrained).model


def start_host(name: str, arguments: Mapping[str, Any], *, pretrained: bool) -> Started:
    """Create a host of any scheme, and return it with its pretrained weights.

    Raises:
        UsageError, HostError: as in `create_host`.
    """
    scheme, rest = split_scheme(name)
    refuse_huge_numbers(arguments)
    with caches_alone(name):
        if scheme == "torchvision":
            from attngraft.models.torchvision_host import start
        elif scheme == "hf":
            from attngraft.models.transformers_host import start
        elif scheme == "module":
            from attngraft.models.module_host import start
        else:
            if scheme == "attngraft":
                refuse_others_model(rest)
            return Started(model=_timm_model(rest, arguments, pretrained=pretrained))
        return start(rest, arguments, pretrained=pretrained)


def resolve_host(name: str, arguments: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """Return the name with its scheme (omitted for timm), and arguments that fully determine the host.

    The returned arguments of an `hf:` host include its configuration, so that later builds do not read its folder.

    Raises:
        UsageError: unknown scheme, or a folder that transformers cannot read.
        HostError: the configuration cannot be downloaded.
    """
    scheme, rest = split_scheme(name)
    if scheme == "timm":
        return rest, arguments
    if scheme == "hf":
        from attngraft.models.transformers_host import resolve_arguments

        return f"hf:{rest}", resolve_arguments(rest, arguments)
    return name, arguments


def _timm_model(name: str, arguments: Mapping[str, Any], *, pretrained: bool) -> nn.Module:
    if ":" not in name and not is_model(name.partition(".")[0]):  # timm resolves `hf-hub:...`, `local-dir:...`
        raise unknown_host(name)
    if "checkpoint_path" in arguments:  # would let a received manifest or recipe make timm read any file
        raise HostError("host argument checkpoint_path: not supported; give weights with --weights FILE")
    fetches = name.startswith(("hf-hub:", "hf_hub:")) or (pretrained and ":" not in name)
    with hub_or_cache(name) if fetches else nullcontext() as unreachable:
        try:
            return build_anywhere(lambda: cast(nn.Module, timm.create_model(name, pretrained=pretrained, **arguments)))
        except Exception as error:  # timm, the Hub's client and its HTTP client raise errors of any class
            if reason := why_no_weights(name, error, unreachable=unreachable):
                raise HostError(reason) from error
            with creation_errors(name, arguments, maker="timm"):
                raise
