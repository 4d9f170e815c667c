"""Contract of torch's own transformer modules."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from attngraft.hosts import find_host
from tests.contract.tester import ONE_PER_STAGE, HostContract

_WINDOWS: dict[str, str] = {"cb(at=attention, scope=window)": "no windows"}
_LAYER: dict[str, Any] = {"d_model": 16, "nhead": 4, "dim_feedforward": 24, "dropout": 0.0}
_CAUSAL: list[str] = [
    "toy_flatten + toy_scale(start=0.5, stage=heads)",
    "vertical + horizontal",
    "toy_scale(start=0.5, stage='mlp.front') + toy_scale(start=0.5, stage='mlp.mid')",
    "toy_scale(start=0.5, stage='attn.end')",
]


class _Contract(HostContract):
    checkpoints: ClassVar = "around"


class TestEncoder(_Contract):
    """An encoder: batch first, post-norm."""

    layers = 2
    specs: ClassVar = [*ONE_PER_STAGE, "identity", "cb(at=attention, scope=window)"]
    refused: ClassVar = _WINDOWS

    def make(self) -> nn.Module:
        layer = nn.TransformerEncoderLayer(**_LAYER, batch_first=True)
        return nn.TransformerEncoder(layer, 2)


class TestLayerOfSequences(_Contract):
    """A single layer: sequence first, pre-norm, no biases."""

    layers = 1
    specs: ClassVar = ONE_PER_STAGE
    batch_axis: ClassVar = 1

    def make(self) -> nn.Module:
        return nn.TransformerEncoderLayer(**_LAYER, norm_first=True, bias=False, activation="gelu")


class TestDecoder(_Contract):
    """Self and cross attention, both causal: grafts that mix tokens are refused."""

    layers = 4
    mlps = 2
    refused: ClassVar = {
        "bisa": "must not see later ones, but the softmax over queries does",
        "cb": "must not see later ones, but this graft averages over all",
    }
    specs: ClassVar = [*_CAUSAL, *refused]

    def make(self) -> nn.Module:
        layer = nn.TransformerDecoderLayer(**_LAYER, batch_first=True)
        return nn.TransformerDecoder(layer, 2)


class Attending(nn.Module):
    """A user-defined model whose only supported module is torch's attention."""

    def __init__(self, attention: nn.MultiheadAttention) -> None:
        super().__init__()
        self.mine = attention

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.mine._qkv_same_embed_dim:
            key = value = query
        attended, weights = self.mine(query, key, value)
        asked = weights.sum((1, 2), keepdim=True)  # for each sample
        return query + attended + (asked if self.mine.batch_first else asked.transpose(0, 1))


def _alone(host: nn.Module, *, batch: int = 2) -> tuple[Tensor, ...]:
    """Return the inputs of the attention module `mine`."""
    torch.manual_seed(2)
    attention = host.get_submodule("mine")
    return find_host(attention).adapter.example_inputs(attention, batch=batch)


class TestAttention(_Contract):
    """Attention in a user-defined model, with requested weights."""

    layers = 1
    mlps = 0
    measurable = False
    beside = "toy_other(start=0.5) + toy_other(start=0.25, stage='attn.end')"
    refused: ClassVar = {"cb": "has no MLP; use at=attention"}
    specs: ClassVar = [
        "bisa(learned=true, norm=true)",
        "toy_flatten + toy_scale(start=0.5, stage=heads)",
        "vertical + cb(at=attention)",
        *refused,
    ]

    def given(self, host: nn.Module, *, batch: int = 2) -> tuple[Tensor, ...]:
        return _alone(host, batch=batch)

    def make(self) -> nn.Module:
        return Attending(nn.MultiheadAttention(16, 4, batch_first=True))


class TestAttentionOfOtherKeys(TestAttention):
    """Keys and values of other widths, a learned key, sequence first: the map is not recorded."""

    batch_axis: ClassVar = 1
    refused: ClassVar = {"misa": "a learned key.*belongs to no token", "uniform_heads": "a learned key"}
    specs: ClassVar = [
        "horizontal + vertical",
        "toy_scale(start=0.5, stage=heads) + cb_s(init=1, at=attention)",
        *refused,
    ]

    def make(self) -> nn.Module:
        return Attending(nn.MultiheadAttention(16, 4, kdim=8, vdim=12, add_bias_kv=True, add_zero_attn=True))


def test_the_example_of_a_lone_attention_is_self_attention() -> None:
    host = nn.MultiheadAttention(16, 4)
    query, key, value = find_host(host).adapter.example_inputs(host, batch=2)
    assert query is key is value
