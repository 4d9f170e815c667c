"""Contract of ELSA-Swin and ELSA-VOLO: their MLPs accept grafts, and their attention can be recorded."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn

import attngraft
import attngraft.models  # registers the models
from tests.contract.stirring import stir
from tests.contract.tester import GRAFTS, ONE_PER_STAGE, SPACE, HostContract
from tests.contract.timm.test_eva import off_zero
from tests.contract.timm.test_levit import unlike_at_first
from tests.contract.timm.test_vit import NO_CLASS_TOKEN
from tests.contract.timm.test_volo import TINY as VOLO

TINY: dict[str, Any] = {
    "img_size": 30,
    "patch_size": 2,
    "embed_dim": 8,
    "depths": (1, 2),
    "num_heads": (1, 2),
    "kernel_size": 3,
    "window_size": 3,
    "num_classes": 5,
    "drop_path_rate": 0.0,
}
ATTENTION = ("horizontal", "vertical", "bisa", "misa", "uniform_heads", "ghost")
OF_ITS_OWN = dict.fromkeys(
    [
        *(spec for spec in GRAFTS if spec.startswith(ATTENTION) or "at=" in spec),
        *("identity", "identity(stage=heads)", "identity(stage='attn.end')", "toy_flatten", "toy_values_only"),
    ],
    "Grafts fit in its MLP",
)


class TestElsaSwin(HostContract):
    """A stage of neighborhood attention and one of shifted, padded windows (3 x 3 on a map of 8 x 8)."""

    layers = 3
    mlps = 3
    refused: ClassVar = OF_ITS_OWN | NO_CLASS_TOKEN
    beside: ClassVar = "toy_other(start=0.25, stage='mlp.end')@first:1"

    def make(self) -> nn.Module:
        model: nn.Module = timm.create_model("elsa_swin_tiny", **TINY)
        return stir(model, lambda *_: True)


class TestElsaVolo(HostContract):
    """Neighborhood attention on 6 x 6 patches, two blocks on 3 x 3, two class-attention blocks; a second head."""

    layers = 5
    specs: ClassVar = ONE_PER_STAGE
    refused: ClassVar = {"cb(at=attention, scope=window)": "Grafts fit in its MLP"}
    where: ClassVar = {"bisa": "network.2-3"}
    space: ClassVar = [f"{SPACE[0]}@network.2-3"]

    def make(self) -> nn.Module:
        model: nn.Module = timm.create_model("elsa_volo_d1", **VOLO, kernel_size=3, group_width=4)
        return off_zero(unlike_at_first(model))


def host(**changes: Any) -> nn.Module:
    model: nn.Module = timm.create_model("elsa_swin_tiny", **TINY | changes)
    return stir(model, lambda *_: True).eval()


@torch.no_grad()
def test_what_its_attention_does_is_recorded() -> None:
    model, images = host(lam=1, gamma=1), torch.randn(2, 3, 30, 30)
    plain = model(images)
    with attngraft.record(model, {"local_filters", "ghost_mul", "ghost_add", "weights"}) as recording:
        assert torch.equal(model(images), plain)
    local, shifted = recording["layers.0.blocks.0.attn"], recording["layers.1.blocks.1.attn"]
    assert local["local_filters"].shape == (2, 1, 9, 15, 15)
    attention = model.layers[0].blocks[0].attn
    torch.testing.assert_close(local["ghost_mul"], attention.ghost_head[0, 0])
    torch.testing.assert_close(local["ghost_add"], attention.ghost_head[1, 0])
    assert shifted["weights"].shape == (2 * 9, 2, 9, 9)
    torch.testing.assert_close(shifted["weights"].sum(-1), torch.ones(18, 2, 9))
    looks = recording.attention_map_for_query("layers.1.blocks.1.attn", (4, 6))
    assert looks.shape == (2, 2, 8, 8)
    torch.testing.assert_close(looks.sum((2, 3)) <= 1 + 1e-6, torch.ones(2, 2, dtype=torch.bool))
    with pytest.raises(attngraft.RecordError, match="has no 'weights'"):
        local["weights"]


@torch.no_grad()
def test_the_recorded_map_of_windows_is_the_one_that_it_uses() -> None:
    """Recorded weights times values, with windows merged, equal the output of the attention."""
    model = host()
    attention = model.layers[1].blocks[0].attn
    x = torch.randn(2, 8, 8, 16)
    kept: list[torch.Tensor] = []

    class Ear:
        def wants(self, name: str) -> bool:
            return name == "weights"

        def __call__(self, name: str, tensor: torch.Tensor) -> None:
            if name == "weights":
                kept.append(tensor)

    attention.recorder = Ear()
    found = attention(x)
    del attention.recorder
    (weights,) = kept
    padded = F.pad(x, (0, 0, 0, 1, 0, 1))
    windows = padded.view(2, 3, 3, 3, 3, 16).transpose(2, 3).reshape(18, 9, 16)
    v = attention.pre_proj(windows)[..., :16].view(18, 9, 2, 8).transpose(1, 2)
    out = attention.post_proj((weights @ v).transpose(1, 2).reshape(18, 9, 16))
    back = out.view(2, 3, 3, 3, 3, 16).transpose(2, 3).reshape(2, 9, 9, 16)[:, :8, :8]
    torch.testing.assert_close(found, back, rtol=1e-4, atol=1e-5)
