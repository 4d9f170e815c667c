"""Contract of timm's VOLO."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from timm.models.volo import VOLO
from torch import nn

import attngraft
from tests.contract.tester import GRAFTS, ONE_PER_STAGE, SPACE, SPACE_FORMS, HostContract
from tests.contract.timm.test_eva import off_zero
from tests.contract.timm.test_levit import unlike_at_first

TINY: dict[str, Any] = {
    "img_size": 48,
    "layers": (1, 1, 1, 0),
    "embed_dims": (16, 24, 24, 24),
    "num_heads": (2, 3, 3, 3),
    "stem_hidden_dim": 8,
    "num_classes": 5,
}


class TestVolo(HostContract):
    """Outlook attention on 6 x 6 patches, two blocks on 3 x 3, two class-attention blocks; a second head."""

    layers = 5
    refused: ClassVar = {"cb(at=attention, scope=window)": "neighborhoods overlap"}
    specs: ClassVar = ONE_PER_STAGE
    space: ClassVar = [f"{spec}@network" for spec in (SPACE[0], SPACE[5], SPACE[8])]
    where: ClassVar = {"bisa": "network.2-3"}

    def make(self) -> nn.Module:
        return off_zero(unlike_at_first(VOLO(**TINY)))


@pytest.mark.product
class TestVoloWithEveryGraft(TestVolo):
    """VOLO with every graft; only the last two blocks have a class token, with keys of all tokens."""

    specs: ClassVar = GRAFTS
    # the last two blocks output only the class token, so its mean is itself
    refused: ClassVar = {**TestVolo.refused, "cb(context=class)": "no class token to broadcast"}
    space: ClassVar = [f"{spec}@network" for spec in (*SPACE, *SPACE_FORMS)]
    where: ClassVar = {
        **dict.fromkeys(("bisa", "misa", "ghost", "uniform_heads(value=cb)"), "network.2-3"),
        **dict.fromkeys(("cb_gate", "cb_hybrid"), "post_network"),
        "cb(tokens=patches)": "network",
    }


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("bisa@network.0", "without queries and keys"),
        ("uniform_heads@network.0", "neighborhood of each position"),
    ],
)
def test_outlooks_refuse_what_needs_weights_between_tokens(spec, reason) -> None:
    with pytest.raises(attngraft.GraftSpecError, match=f"the sites there lack it: .*{reason}"):
        attngraft.graft(TestVolo().make(), spec)


@torch.no_grad()
def test_horizontal_in_an_outlook_weighs_the_sums_over_neighborhoods() -> None:
    torch.manual_seed(0)
    model = TestVolo().make().eval()
    images = torch.randn(1, 3, 48, 48)
    with attngraft.record(model, sites="network.0") as plain:
        model(images)
    attngraft.graft(model, "horizontal@network.0")
    with attngraft.record(model, sites="network.0") as grafted:
        model(images)
    site = "network.0.0.attn"
    alpha = grafted[site]["horizontal.alpha"].transpose(1, 2).unsqueeze(-1)  # (B, N, H), one weight per head
    torch.testing.assert_close(grafted[site]["heads"], alpha * plain[site]["heads"])
