"""Image size of a MaxViT or CoAtNet that does not store it."""

from __future__ import annotations

import pytest
import timm
from torch import nn

from attngraft.hosts import find_host


def silent(name: str, size: int) -> nn.Module:
    """Create a model that does not store its image size, as in timm 1.0.26."""
    model = timm.create_model(name, img_size=size)
    if hasattr(model, "img_size"):
        del model.img_size
    return model.eval()


@pytest.mark.parametrize("name", ["maxvit_tiny_tf_224", "coatnet_bn_0_rw_224", "coatnet_rmlp_nano_rw_224"])
def test_windows_or_positions_of_whole_maps_say_the_size(name: str) -> None:
    host = find_host(silent(name, 96))
    assert host.adapter.example_inputs(host.core, batch=2)[0].shape == (2, 3, 96, 96)
    assert host.sites


def test_features_of_windows_say_the_size() -> None:
    host = find_host(timm.create_model("maxvit_tiny_tf_224", img_size=64, features_only=True).eval())
    assert host.adapter.example_inputs(host.core, batch=1)[0].shape == (1, 3, 64, 64)
    assert host.sites
