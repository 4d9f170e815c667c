"""Contract of timm's MViTv2."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from timm.models.mvitv2 import MultiScaleVit, MultiScaleVitCfg
from torch import nn

import attngraft
from tests.contract.stirring import stir
from tests.contract.tester import ONE_PER_STAGE, HostContract
from tests.contract.timm.test_vit import NO_CLASS_TOKEN, NO_WINDOWS


class TestMViTv2(HostContract):
    """8 x 8 queries with 4 x 4 keys; then 4 x 4 with 8 x 8, and with 4 x 4."""

    layers = 3
    refused: ClassVar = NO_WINDOWS | NO_CLASS_TOKEN
    specs: ClassVar = [*ONE_PER_STAGE, "uniform_heads", "misa@last:1"]
    where: ClassVar = {"bisa": "stages.1.blocks.1"}
    extras: ClassVar[dict[str, Any]] = {}

    def make(self) -> nn.Module:
        config = MultiScaleVitCfg(
            depths=(1, 2),
            embed_dim=8,
            stride_q=((1, 1), (2, 2)),
            stride_kv_adaptive=(2, 2),
            patch_kernel=(3, 3),
            patch_stride=(2, 2),
            patch_padding=(1, 1),
            **self.extras,
        )
        model = MultiScaleVit(config, img_size=(16, 16), num_classes=5)
        return stir(model, lambda name, _: "rel_pos" in name or "qkv" in name)


@pytest.mark.slow
class TestMViTv2ClassToken(TestMViTv2):
    """A class token, no residual pooling, no positions; the last MLP of a stage widens the tokens."""

    refused: ClassVar = NO_WINDOWS
    specs: ClassVar = [
        *ONE_PER_STAGE[:2],
        "vertical + cb(at=attention)",
        "cb_s(init=1, position=front)",
        "uniform_heads",
    ]
    beside: ClassVar = "toy_other(start=0.5) + toy_other(start=0.25, stage='mlp.end')@first:1"
    extras: ClassVar = {
        "use_cls_token": True,
        "residual_pooling": False,
        "rel_pos_type": "none",
        "expand_attn": False,
    }

    def test_recording_changes_nothing_and_sees_the_map(self, host: nn.Module, inputs: Any) -> None:  # type: ignore[override]
        """An MLP that widens has no hook point `mlp.end`."""
        expected = host(*inputs)
        with attngraft.record(host) as recording:
            assert torch.equal(host(*inputs), expected)
        assert recording["stages.0.blocks.0.attn"]["weights"].shape == (2, 1, 65, 17)
        assert "mlp.end" not in recording["stages.0.blocks.0.mlp"]

    def test_an_mlp_that_widens_has_no_end(self, host: nn.Module) -> None:
        report = attngraft.plan(host, "cb_s")
        assert [entry.site for entry in report.entries] == ["stages.1.blocks.0.mlp", "stages.1.blocks.1.mlp"]
        with pytest.raises(attngraft.GraftSpecError, match="changes the width; use position=front"):
            attngraft.plan(host, "cb_s@stages.0")


@torch.no_grad()
def test_heads_are_what_is_projected() -> None:
    host = TestMViTv2().make().eval()
    images = torch.randn(1, 3, 16, 16)
    attention, seen = host.stages[1].blocks[1].attn, []
    attention.proj.register_forward_hook(lambda module, given, output: seen.append(given[0]))
    with attngraft.record(host, sites="stages.1.blocks.1") as recording:
        host(images)
    heads = recording["stages.1.blocks.1.attn"]["heads"]
    assert torch.equal(seen[0], heads.transpose(1, 2).flatten(2))


@torch.no_grad()
def test_pooled_queries_stand_for_the_tokens_in_the_middle() -> None:
    host = TestMViTv2().make().eval()
    attngraft.graft(host, "vertical@stages.1.blocks.0")
    attention, seen = host.stages[1].blocks[0].attn, []
    attention.grafts["vertical"].register_forward_hook(lambda module, given, output: seen.append(given[1]))
    x = torch.randn(1, 64, 8)
    attention(x, [8, 8])
    assert torch.equal(seen[0], x.view(1, 8, 8, 8)[:, ::2, ::2].flatten(1, 2))


@torch.no_grad()
def test_a_mix_graft_is_told_the_positions() -> None:
    host = TestMViTv2().make().eval()
    attngraft.graft(host, "bisa@stages.1.blocks.1")
    attention = host.stages[1].blocks[1].attn
    projected = attention.project(torch.randn(2, 16, 16), [4, 4])
    products = attention.scale * projected.q @ projected.k.transpose(-2, -1)
    bias = attention.shared_bias(projected)
    assert bias.abs().max() > 0.1
    torch.testing.assert_close(attention.scores(projected), products + bias)
