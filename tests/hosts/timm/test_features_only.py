"""Models created with `features_only`: canonical site paths, grafts, and exact undo."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from packaging.version import Version
from torch import nn

import attngraft
from attngraft.hosts import find_host

FAMILIES: dict[str, dict[str, Any]] = {
    "caformer_s18": {},
    "mobilevit_xxs": {},
    "fastvit_sa12": {"layers": (1, 1, 1, 1)},
    "samvit_base_patch16": {"img_size": 64, "embed_dim": 24, "num_heads": 3, "depth": 2, "out_indices": (0, 1)},
    "crossvit_tiny_240": {"img_size": 48, "img_scale": (1.0, 2 / 3), "depth": ((1, 2, 0),)},
    "cait_xxs24_224": {"img_size": 32, "patch_size": 8, "depth": 3, "out_indices": (0, 2)},
    "volo_d1_224": {"img_size": 32},
    "twins_svt_small": {"img_size": 64, "embed_dims": (16,) * 4, "num_heads": (2,) * 4, "depths": (2, 2, 1, 1)},
    "pvt_v2_b0": {"depths": (1, 1, 1, 1)},
    "swinv2_tiny_window8_256": {"img_size": 64, "window_size": 4, "depths": (1, 1, 1, 1)},
    "nest_tiny": {"img_size": 32, "patch_size": 2},
    "davit_tiny": {"depths": (1, 1, 1, 1)},
    "tiny_vit_5m_224": {"depths": (1, 1, 1, 1)},
    "hiera_tiny_224": {"img_size": (64, 64), "stages": (1, 1, 1, 1)},
    "efficientformer_l1": {"depths": (1, 1, 1, 2)},
    "gcvit_xxtiny": {"img_size": 64, "window_ratio": (16, 16, 16, 32)},
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.slow
def test_features_carry_grafts_at_the_hosts_own_paths(name: str) -> None:
    if name.startswith("crossvit") and Version(timm.__version__) <= Version("1.0.26"):
        pytest.skip("timm 1.0.26 gives no features of CrossViT")
    arguments = FAMILIES[name]
    whole = timm.create_model(name, **{key: value for key, value in arguments.items() if key != "out_indices"})
    features = timm.create_model(name, features_only=True, **arguments).eval()
    for module in features.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)  # Swin V2's post-norms are initialized to zero
    host = find_host(features)
    images = host.adapter.example_inputs(host.core, batch=1)
    paths = [site.path for site in host.sites]
    assert paths == [path for path in (site.path for site in find_host(whole).sites) if path in paths]
    with torch.no_grad():
        plain = features(*images)
        attngraft.graft(features, "horizontal")
        grafted = features(*images)
        attngraft.ungraft(features)
        again = features(*images)
    assert not torch.equal(plain[-1], grafted[-1])
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
