"""Base class, configuration and registration of our own classifiers, with timm's interface."""

import importlib
import sys
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg, register_model
from timm.models._features import feature_take_indices  # private, but used by all models in timm
from torch import Tensor, nn


def drop_path_rates(highest: float, depth: int) -> list[float]:
    """Return the rates of stochastic depth of `depth` layers, which increase linearly from 0 to `highest`."""
    return cast(list[float], torch.linspace(0, highest, depth, device="cpu").tolist())


class TimmModel(nn.Module):
    """The part of timm's interface that does not depend on the network."""

    pools: ClassVar[tuple[str, ...]]  #: values of `global_pool`
    layers_name: ClassVar[str] = "blocks"  #: name of the module list from which `forward_intermediates` selects layers
    norm_name: ClassVar[str] = "norm"  #: name of the norm after these layers
    num_classes: int
    num_features: int
    global_pool: str
    head_drop: nn.Module
    head: nn.Module
    grad_checkpointing: bool = False

    def no_weight_decay(self) -> set[str]:
        """Return parameters without weight decay other than vectors: none, as in the papers' recipes."""
        return set()

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Enable activation checkpointing of the blocks."""
        self.grad_checkpointing = enable

    def token_layers(self) -> int:
        """Return the number of leading layers whose output `forward_intermediates` can return."""
        return len(getattr(self, self.layers_name))

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Remove the layers that `forward_intermediates` does not need for `indices`."""
        taken, last = feature_take_indices(self.token_layers(), indices)
        setattr(self, self.layers_name, getattr(self, self.layers_name)[: last + 1])
        if prune_norm:
            setattr(self, self.norm_name, nn.Identity())
        if prune_head:
            self.reset_classifier(0, "")
        return cast(list[int], taken)

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the normalized output of the last block."""
        raise NotImplementedError

    def pooled(self, x: Tensor) -> Tensor:
        """Pool the output of `forward_features` by `global_pool`."""
        raise NotImplementedError

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Return the logits for the output of `forward_features`, or with `pre_logits` the input of the head."""
        x = self.head_drop(self.pooled(x))
        return x if pre_logits else cast(Tensor, self.head(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))

    def get_classifier(self) -> nn.Module:
        """Return the head."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the head with a new one for `num_classes`; 0: no head."""
        self.num_classes = num_classes
        if global_pool is not None:
            self.global_pool = self.check_pool(global_pool)
        parameter = next(self.parameters())
        head = self.make_head(num_classes).to(device=parameter.device, dtype=parameter.dtype)
        self.head = head.train(self.training)

    def make_head(self, classes: int) -> nn.Module:
        """Return a new head."""
        return nn.Linear(self.num_features, classes) if classes > 0 else nn.Identity()

    def check_pool(self, pool: str) -> str:
        """Return `pool` after checking it.

        Raises:
            ValueError: `pool` is not one of `pools`.
        """
        if pool not in self.pools:
            raise ValueError(
                f"global_pool of {type(self).__name__} must be {' or '.join(map(repr, self.pools))}, not {pool!r}"
            )
        return pool


def config(size: int = 224, **changes: Any) -> dict[str, Any]:
    """Return timm's configuration of an ImageNet classifier without published weights."""
    return {
        "num_classes": 1000,
        "input_size": (3, size, size),
        "crop_pct": 0.875,
        "interpolation": "bicubic",
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "classifier": "head",
        **changes,
    }


def register(name: str, network: str, arguments: Mapping[str, Any], *, module: str, out_indices: Any = 3) -> None:
    """Register the model `name` with timm.

    Args:
        network: "module:attribute" of the model's class, or of a function that creates it. It is imported when a model is
            created, so that importing this package stays fast. The `checkpoint_filter_fn` of that module adapts weights.
        arguments: arguments of the network; callers may override them.
        module: the `__name__` of the calling module, which defines `default_cfgs`.
        out_indices: default of `features_only` models.
    """
    path, _, attribute = network.partition(":")

    def create(pretrained: bool = False, **kwargs: Any) -> nn.Module:
        home = importlib.import_module(path)
        features = {"out_indices": kwargs.pop("out_indices", out_indices), "feature_cls": "getter"}
        model = build_model_with_cfg(
            getattr(home, attribute),
            name,
            pretrained,
            pretrained_filter_fn=getattr(home, "checkpoint_filter_fn", None),
            feature_cfg=features,
            **{**arguments, **kwargs},
        )
        return cast(nn.Module, model)

    create.__name__ = create.__qualname__ = name
    create.__module__ = module
    create.__doc__ = f"{attribute} with {dict(arguments)}."
    register_model(create)
    setattr(sys.modules[module], name, create)
