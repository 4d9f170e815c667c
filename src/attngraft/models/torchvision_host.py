"""`torchvision:` hosts: torchvision's models by name, with the input of their default weights."""

import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torchvision.models.vision_transformer import interpolate_embeddings
from torchvision.ops import StochasticDepth

from attngraft.downloads import DownloadRefused
from attngraft.errors import HostError, UsageError
from attngraft.models.schemes import Started, build_anywhere, creation_errors, last_layer
from attngraft.models.weights import WeightsFile
from attngraft.suggest import did_you_mean, first_line

#: settings that the default weights require for their published results
_SETTINGS = {name: {"transform_input": True, "init_weights": True} for name in ("googlenet", "inception_v3")}


def start(name: str, arguments: Mapping[str, Any], *, pretrained: bool) -> Started:
    """Create the model, with random values or with torchvision's default weights.

    Args:
        arguments: arguments of the model's builder, and timm's `num_classes`, `img_size`, `drop_path_rate` and
            `pretrained_cfg_overlay`.

    Raises:
        UsageError: torchvision has no such model.
        HostError: the builder does not accept the arguments, or the weights cannot be downloaded or do not fit.
    """
    from torchvision import __version__, models

    known = models.list_models()
    if name not in known:
        raise UsageError(f"torchvision:{name}: torchvision {__version__} has no such model{did_you_mean(name, known)}")
    weights = getattr(models.get_model_weights(name), "DEFAULT", None)
    given = dict(arguments)
    drop_path = given.pop("drop_path_rate", None)
    overlay, size = given.pop("pretrained_cfg_overlay", None) or {}, given.pop("img_size", None)
    shown = _input(weights)
    if size is not None:
        shown["input_size"] = (3, *((size, size) if isinstance(size, int) else size))
    settings = {**_SETTINGS.get(name, {}), **_sized(name, shown), **given, "weights": None}
    if "weights_backbone" in inspect.signature(models.get_model_builder(name)).parameters:
        settings.setdefault("weights_backbone", None)  # builders of dense models download these by default
    with creation_errors(name, arguments, maker=f"torchvision {__version__}"):
        model: Any = build_anywhere(lambda: models.get_model(name, **settings))
    if drop_path is not None:
        _set_drop_path(name, model, drop_path)
    trained = None if weights is None else len(weights.meta.get("categories", ())) or None
    model.num_classes = given.get("num_classes", trained)
    model.pretrained_cfg = {
        **shown,
        **{key: value for key, value in overlay.items() if value is not None},
        "classifier": last_layer(model, model.num_classes) or (),
        "num_classes": trained,
    }
    if not pretrained:
        return Started(model=model)
    if weights is None:
        raise HostError(
            f"torchvision {__version__} has no weights for {name}; train without --pretrained, or pass a weights file"
        )
    file = _download(name, weights)
    if name.startswith("vit_"):
        resampled = interpolate_embeddings(model.image_size, model.patch_size, file.host)
        file = replace(file, host=resampled)
    return Started(model=model, file=file, fitted=file.fill_host(model))


def _input(weights: Any) -> dict[str, Any]:
    """Return the transform of `weights` as timm's data configuration; empty for unknown transforms."""
    transform: Any = None if weights is None else weights.transforms()
    if not all(hasattr(transform, name) for name in ("crop_size", "resize_size", "mean", "std", "interpolation")):
        return {}
    (crop,), (resized,) = transform.crop_size, transform.resize_size
    return {
        "input_size": (3, crop, crop),
        "mean": tuple(transform.mean),
        "std": tuple(transform.std),
        "interpolation": transform.interpolation.value,
        "crop_pct": min(crop / resized, 1.0),
        "crop_mode": "center",
    }


def _sized(name: str, shown: Mapping[str, Any]) -> dict[str, Any]:
    """Return the builder's argument for the image size, for models with a fixed input size."""
    size = shown.get("input_size", (3, 224, 224))[1:]
    if name.startswith("vit_"):
        if size[0] != size[1]:
            raise UsageError(
                f"torchvision:{name} takes square images, not {size[0]}x{size[1]}; pass img_size as one number"
            )
        return {"image_size": size[0]}
    return {"input_size": size} if name.startswith("maxvit_") else {}


def _set_drop_path(name: str, model: nn.Module, rate: float) -> None:
    """Scale the rates of stochastic depth, which the builders fix, so that the largest one is `rate`."""
    layers = [module for module in model.modules() if isinstance(module, StochasticDepth)]
    largest = max((layer.p for layer in layers), default=0.0)
    if not largest:
        raise UsageError(f"torchvision:{name} has no stochastic depth; use --set train.drop_path=null")
    for layer in layers:
        layer.p *= rate / largest


def _download(name: str, weights: Any) -> WeightsFile:
    """Read the weights from torch's cache, after downloading them if necessary."""
    path = Path(torch.hub.get_dir(), "checkpoints", weights.url.rpartition("/")[2])
    try:
        state: dict[str, torch.Tensor] = weights.get_state_dict(progress=False, check_hash=True, weights_only=True)
    except DownloadRefused as error:
        raise HostError(f"the weights of torchvision:{name}: not in the cache, and {error}") from None
    except (OSError, RuntimeError) as error:  # no network, or a damaged file
        raise HostError(
            f"the weights of torchvision:{name} are not in the cache and cannot be downloaded ({first_line(error)}); "
            f"download {weights.url} elsewhere and copy it to {path}"
        ) from error
    return WeightsFile(path=path, host=state, grafts={})
