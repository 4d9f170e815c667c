"""Base of the contracts for encoder-decoders."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from tests.contract.hf.hosts import Tokens, TransformersContract, off_zero

#: grafts for the encoder only, because the decoder is causal
MIXING = ["bisa(learned=true, norm=true)", "vertical + cb(at=both)", "horizontal + cb_s(init=1, position=front)"]
SPECS = [
    *MIXING,
    "toy_flatten + toy_scale(start=0.5, stage=heads)",
    "toy_scale(start=0.5, stage='attn.end') + toy_scale(start=0.5, stage='mlp.mid')",
]
CAUSAL = {
    "bisa": "must not see later ones, but the softmax over queries does",
    "cb": "must not see later ones, but this graft averages over all",
}


class Translation(Tokens):
    """A model that returns only the output tokens of an encoder-decoder."""

    def forward(self, inputs: Tensor, mask: Tensor, written: Tensor) -> Tensor:  # type: ignore[override]
        return self.model(inputs, mask, written).last_hidden_state


class SequenceContract(TransformersContract):
    """Two layers on each side: six attentions, four MLPs."""

    layers = 6
    mlps: ClassVar = 4
    specs: ClassVar = [*SPECS, *CAUSAL]
    refused: ClassVar[dict[str, str]] = {"cb(at=attention, scope=window)": "no windows", **CAUSAL}
    where: ClassVar = dict.fromkeys(MIXING, "encoder")
    masks_programs: ClassVar = True

    def make(self) -> nn.Module:
        return off_zero(Translation(self.made()))
