"""Contract of T2T-ViT."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import timm
import torch
from torch import nn

import attngraft
import attngraft.models  # registers the models
from tests.contract.test_compile_export import check_compile, check_export, grafted
from tests.contract.tester import ONE_PER_STAGE, HostContract
from tests.contract.timm.test_vit import NO_WINDOWS
from tests.slow import product_but

#: 4 tokens and a class token
TINY: dict[str, Any] = {"img_size": 8, "splits": ((3, 1, 1), (3, 2, 1), (3, 2, 1)), "token_width": 4, "num_classes": 5}
TINY |= {"embed_dim": 24, "num_heads": 3, "depth": 2, "token_drop_rate": 0.0}


class TestT2TViT(HostContract):
    """A performer in the tokens-to-token module, whose two attentions have no hook points."""

    layers = 2 + 2
    mlps = 2
    refused: ClassVar = NO_WINDOWS
    specs: ClassVar = ONE_PER_STAGE
    #: arguments of the factory besides `TINY`
    extras: ClassVar[dict[str, Any]] = {}

    def make(self) -> nn.Module:
        return timm.create_model("t2t_vit_14", **TINY, **self.extras)


@pytest.mark.slow
class TestT2TViTTransformer(TestT2TViT):
    """Softmax attention in the tokens-to-token module, scores scaled as in the published weights, unused class token."""

    specs: ClassVar = ONE_PER_STAGE[:2]
    extras: ClassVar = {"token_attention": "transformer", "qk_scale": 384**-0.5, "global_pool": "avg"}


@pytest.mark.parametrize("spec", ["horizontal@tokens_to_token", "cb@tokens_to_token.attention1"])
def test_the_tokens_to_token_module_takes_no_graft(spec: str) -> None:
    model = timm.create_model("t2t_vit_14", **TINY)
    with pytest.raises(attngraft.GraftSpecError, match=r"part of the tokens-to-token module.*blocks\.\*"):
        attngraft.graft(model, spec)


def test_a_graft_everywhere_stands_on_the_backbone() -> None:
    with torch.device("meta"):
        report = attngraft.graft(timm.create_model("t2t_vit_14"), "horizontal")
    assert [entry.site for entry in report.entries] == [f"blocks.{index}.attn" for index in range(14)]


def test_a_feature_getter_takes_grafts() -> None:
    model = timm.create_model("t2t_vit_14", features_only=True, out_indices=(0, 1), **TINY).eval()
    images = torch.randn(2, 3, 8, 8)
    before = model(images)
    attngraft.graft(model, "vertical@blocks.1")
    after = model(images)
    assert [each.shape for each in after] == [(2, 24, 2, 2)] * 2
    assert torch.equal(after[0], before[0])
    assert not torch.equal(after[1], before[1])


@pytest.mark.parametrize("contract", product_but([TestT2TViT, TestT2TViTTransformer], [TestT2TViT]))
def test_it_exports(contract: type[HostContract]) -> None:
    check_export(grafted(contract, "bisa + vertical + cb(at=both)"))


@pytest.mark.product
def test_it_compiles() -> None:
    check_compile(grafted(TestT2TViT, "horizontal@blocks.0"), backend="aot_eager")
