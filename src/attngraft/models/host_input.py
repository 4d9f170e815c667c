"""Input configuration of a host, determined without an adapter."""

import inspect
from collections.abc import Mapping
from typing import Any

from timm.data import resolve_model_data_config
from torch import nn

from attngraft.errors import HostError, UsageError, naming
from attngraft.hosts import find_host
from attngraft.hosts.hf.family import pair
from attngraft.models.create import create_host
from attngraft.models.schemes import split_scheme
from attngraft.tensors import meta_device


def host_input(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Build a host without weights on the meta device, and return its input configuration.

    For images it is timm's data configuration: input_size, mean, std, interpolation, crop_pct, crop_mode. The arguments
    `img_size` and `in_chans` determine the input size, unlike in timm's own configuration. `any_size` are the arguments of
    the factory for images of any size (none for the user's own factories), or None. Other inputs have a `kind`:

        {"kind": "text", "tokenizer": folder or None, "max_length": N or None, "vocab_size": N, "pad": id or None}

    Encoder-decoders also have `decoder`, {"start": id, "end": id, "max_length": N or None, "forced": id of the first token
    or None}; their `vocab_size` is None if the factory takes any size. Those of images have all of these, and the data
    configuration of images, with the kind "captioned images".

    Raises:
        UsageError, HostError: as in `create_host`; or the input of the host is unknown.
    """
    with meta_device():
        model = create_host(name, **arguments)
    other = other_input(model)
    if other is not None:
        return other
    scheme, rest = split_scheme(name)
    if scheme not in ("timm", "attngraft") and "input_size" not in getattr(model, "pretrained_cfg", {}):
        raise UsageError(_unknown_input(scheme, f"{scheme}:{rest}"))
    config: dict[str, Any] = resolve_model_data_config(model)
    channels, height, width = config["input_size"]
    given = {key: value for key, value in arguments.items() if value is not None}  # timm uses its default for None
    size = given.get("img_size", (height, width))
    with naming(name):
        height, width = pair(size)
    size_of = {"input_size": (given.get("in_chans", channels), height, width)}
    return config | size_of | {"any_size": {} if scheme == "module" else _any_size(model)}


def _any_size(model: nn.Module) -> dict[str, Any] | None:
    try:
        found = find_host(model).adapter.any_size
    except HostError:  # no attention: convolutional networks, which take images of any size
        return None if "img_size" in inspect.signature(type(model)).parameters else {}
    return None if found is None else dict(found)


def other_input(model: nn.Module) -> dict[str, Any] | None:
    """Return the `attngraft_input` of a model whose input is not images; None for images."""
    given = getattr(model, "attngraft_input", None)
    return dict(given) if isinstance(given, Mapping) and given.get("kind", "images") != "images" else None


def _unknown_input(scheme: str, name: str) -> str:
    start = f"{name}: the host's input is unknown"
    given = "pretrained_cfg_overlay={input_size: [3, 224, 224], mean: [0.5, 0.5, 0.5], std: [0.5, 0.5, 0.5]}"
    if scheme == "module":
        return f"{start}; set model.attngraft_input in its factory, for example to {{'input_size': (3, 224, 224)}}"
    if scheme == "hf":
        return (
            f"{name}: no preprocessor_config.json there, which specifies the preprocessing of images; save it "
            f"(AutoImageProcessor.from_pretrained(NAME).save_pretrained(FOLDER)), or pass --host-arg '{given}'"
        )
    return f"{start}; pass --host-arg '{given}'"
