"""Contract of our translation Transformer."""

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
from tests.slow import product_but

TINY: dict[str, Any] = {"vocab_size": 30, "dim": 24, "heads": 3, "hidden": 40, "positions": 16, "dropout": 0.0}
#: grafts for the encoder only, because the decoder is causal
MIXING = ["bisa(learned=true, norm=true)", "vertical + cb(at=both)", "horizontal + cb_s(init=1, position=front)"]
CAUSAL = {
    "bisa": "must not see later ones, but the softmax over queries does",
    "cb": "must not see later ones, but this graft averages over all",
}


class TestMtTransformer(HostContract):
    """Two layers on each side: six attentions, four MLPs."""

    layers = 6
    mlps: ClassVar = 4
    specs: ClassVar = [
        *MIXING,
        "toy_flatten + toy_scale(start=0.5, stage=heads)",
        "toy_scale(start=0.5, stage='attn.end') + toy_scale(start=0.5, stage='mlp.mid')",
        *CAUSAL,
    ]
    refused: ClassVar = {"cb(at=attention, scope=window)": "no windows", **CAUSAL}
    where: ClassVar = dict.fromkeys(MIXING, "encoder")
    masks_programs: ClassVar = True
    extras: ClassVar[dict[str, Any]] = {"depth": 2}

    def make(self) -> nn.Module:
        return stir(timm.create_model("mt_transformer", **TINY, **self.extras), lambda *_: True)


@pytest.mark.slow
class TestScaledLogits(TestMtTransformer):
    """Logits scaled instead of embeddings, another depth on each side, other special tokens."""

    layers = 4
    mlps: ClassVar = 3
    extras: ClassVar = {"depth": (2, 1), "scale": "prj", "pad": 5, "start": 0, "end": 1}


class Part(nn.Module):
    """A method of a model as a module, for `torch.export`."""

    def __init__(self, model: nn.Module, method: str) -> None:
        super().__init__()
        self.model, self.method = model, method

    def forward(self, *inputs: Any) -> Any:
        return getattr(self.model, self.method)(*inputs)


@pytest.mark.parametrize("spec", product_but([None, "horizontal + vertical"], ["horizontal + vertical"]))
def test_encoder_and_decoding_step_export(spec: str | None) -> None:
    model = TestMtTransformer().make_again()
    if spec is not None:
        attngraft.graft(model, spec)
    ids, mask = torch.randint(4, 30, (2, 7)), torch.ones(2, 7, dtype=torch.long)
    mask[0, 5:] = 0
    sentences, words, tokens = (torch.export.Dim(name, min=2, max=15) for name in ("sentences", "words", "tokens"))
    source = {0: sentences, 1: words}
    encoder = torch.export.export(Part(model, "encode"), (ids, mask), dynamic_shapes=((source, source),), strict=False)
    memory = model.encode(ids, mask)
    other = torch.randint(4, 30, (3, 5)), torch.ones(3, 5, dtype=torch.long)
    torch.testing.assert_close(encoder.module()(*other), model.encode(*other), atol=1e-5, rtol=1e-4)

    _, cache = model.decode(torch.randint(4, 30, (2, 3)), memory, mask)
    shapes = ({0: sentences, 2: tokens},) * 2 + ({0: sentences, 2: words},) * 2
    dynamic = (({0: sentences}, source, source, (shapes,) * 2),)
    step = torch.export.export(
        Part(model, "decode"), (ids[:, :1], memory, mask, cache), dynamic_shapes=dynamic, strict=False
    )
    memory = model.encode(*other)
    _, cache = model.decode(torch.randint(4, 30, (3, 6)), memory, other[1])
    inputs: tuple[Any, ...] = (torch.randint(4, 30, (3, 1)), memory, other[1], cache)
    torch.testing.assert_close(step.module()(*inputs), model.decode(*inputs), atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_it_compiles_and_exports_with_grafts() -> None:
    model = grafted(TestMtTransformer, "bisa@encoder + horizontal + vertical")
    check_compile(model, backend="aot_eager")
    check_export(model)
    attngraft.graft(model, "cb@encoder")
    with pytest.raises(attngraft.AttngraftError, match="with a padding mask"):  # a later mask may hide tokens
        check_export(model)


@pytest.mark.product
def test_it_compiles() -> None:
    check_compile(TestMtTransformer().make_again(), backend="aot_eager")


@torch.no_grad()
def test_recorded_cross_attention_is_over_source_tokens() -> None:
    """Padding gets no attention, and the recorded map is the one that acts."""
    model = TestMtTransformer().make_again()
    source, mask, target = (
        torch.randint(4, 30, (2, 7)),
        torch.ones(2, 7, dtype=torch.long),
        torch.randint(4, 30, (2, 5)),
    )
    mask[0, 4:] = 0
    outputs: list[Tensor] = []
    hook = model.decoder[1].cross_attn.proj.register_forward_hook(lambda *call: outputs.append(call[1][0]))
    with attngraft.record(model) as recording:
        model(source, mask, target)
    hook.remove()
    site = recording["decoder.1.cross_attn"]
    assert site["weights"].shape == (2, 3, 5, 7)
    assert not site["weights"][0, :, :, 4:].any()
    torch.testing.assert_close((site["weights"] @ site["values"]).transpose(1, 2).flatten(2), outputs[0])
