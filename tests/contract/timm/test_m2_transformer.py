"""Contract of our meshed-memory captioner."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import timm
import torch
from torch import Tensor, nn

import attngraft
import attngraft.models  # registers the model
from tests.contract.stirring import stir
from tests.contract.test_compile_export import check_compile, check_export, grafted
from tests.contract.tester import HostContract

TINY: dict[str, Any] = {"vocab_size": 30, "feature_dim": 12, "dim": 24, "heads": 3, "hidden": 40, "slots": 4}
TINY |= {"positions": 16, "dropout": 0.0}
#: grafts for the encoder only, because the decoder is causal
AVERAGING = ["vertical + cb(at=both)", "horizontal + cb_s(init=1, position=front)"]
REFUSED = {
    "bisa": "must not see later ones, but the softmax over queries does",
    "ghost@encoder": "its queries and keys are different tokens",
    "cb": "must not see later ones, but this graft averages over all",
}


class TestM2Transformer(HostContract):
    """Two layers on each side: six attentions, four MLPs."""

    layers = 6
    mlps: ClassVar = 4
    specs: ClassVar = [
        *AVERAGING,
        "horizontal + vertical",
        "uniform_heads",
        "toy_flatten + toy_scale(start=0.5, stage=heads)",
        "toy_scale(start=0.5, stage='attn.end') + toy_scale(start=0.5, stage='mlp.mid')",
        *REFUSED,
    ]
    refused: ClassVar = {"cb(at=attention, scope=window)": "no windows", **REFUSED}
    where: ClassVar = dict.fromkeys(AVERAGING, "encoder")
    masks_programs: ClassVar = True
    extras: ClassVar[dict[str, Any]] = {"depth": 2}

    def make(self) -> nn.Module:
        return stir(timm.create_model("m2_transformer", **{**TINY, **self.extras}), lambda *_: True)


@pytest.mark.slow
class TestWithoutMemory(TestM2Transformer):
    """No memory, another depth on each side, other special tokens."""

    layers = 4
    mlps: ClassVar = 3
    extras: ClassVar = {"depth": (2, 1), "slots": 0, "pad": 5, "start": 0, "end": 1}
    specs: ClassVar = ["bisa(learned=true, norm=true)", "horizontal + vertical"]
    refused: ClassVar = {}
    where: ClassVar = {"bisa": "encoder"}


@pytest.mark.slow
def test_it_compiles_and_exports_with_grafts() -> None:
    model = grafted(TestM2Transformer, "horizontal + vertical")
    check_compile(model, backend="aot_eager")
    check_export(model)
    attngraft.graft(model, "cb@encoder")
    with pytest.raises(attngraft.AttngraftError, match="with a padding mask"):  # a later image may have fewer regions
        check_export(model)


def test_bisa_needs_attention_without_memory() -> None:
    with pytest.raises(attngraft.AttngraftError, match="the sites there lack it: its keys include memory slots"):
        attngraft.graft(TestM2Transformer().make_again(), "bisa@encoder")


@torch.no_grad()
def test_recorded_maps() -> None:
    """They include slots of memories and all levels; padding gets no attention; the recorded map is the one that acts."""
    model = TestM2Transformer().make_again()
    features, ids = torch.randn(2, 7, 12), torch.randint(4, 30, (2, 5))
    features[0, 4:] = 0
    outputs: list[Tensor] = []
    hook = model.decoder[1].cross_attn.proj.register_forward_hook(lambda *call: outputs.append(call[1][0]))
    with attngraft.record(model) as recording:
        model(features, ids)
    hook.remove()
    memory = recording["encoder.0.self_attn"]["weights"]
    assert memory.shape == (2, 3, 7, 7 + 4)
    assert not memory[0, :, :, 4:7].any()
    assert (memory[..., 7:] > 0).all()
    site = recording["decoder.1.cross_attn"]
    assert site["weights"].shape == (2 * 2, 3, 5, 7)
    assert not site["weights"][:2, :, :, 4:].any()
    torch.testing.assert_close((site["weights"] @ site["values"]).transpose(1, 2).flatten(2), outputs[0])
