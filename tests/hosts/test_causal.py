"""A causal host: grafts that mix tokens are refused, the others work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import attngraft
from attngraft.attention import AttentionGeometry, AttentionSite, Projected
from attngraft.hosts import HostAdapter, register_host, registry
from attngraft.hosts.adapter import Site, fused_rows, norm_state, own_parameters
from tests.contract.tester import assert_same_host, snapshot


class Attention(nn.Module):
    """Attention of a small language model."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.scale, self.fused_attn = heads, (dim // heads) ** -0.5, True
        self.qkv, self.out, self.attn_drop = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim), nn.Dropout(0.0)

    def split(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)

    def forward(self, x: Tensor) -> Tensor:
        heads = F.scaled_dot_product_attention(*self.split(x), is_causal=True)
        return self.out(heads.transpose(1, 2).flatten(2))


class Reader(nn.Module):
    """A small language model: tokens to logits of the next ones."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(11, 16), nn.Linear(16, 11)
        self.blocks = nn.ModuleList(Attention(16, 2) for _ in range(2))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class GraftedCausalAttention(AttentionSite, Attention):
    def project(self, x: Tensor) -> Projected:
        q, k, v = self.split(x)
        return Projected(q, k, v, x, causal=True)

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        return self.out(heads.transpose(1, 2).flatten(2))

    def drop(self, tokens: Tensor) -> Tensor:
        return tokens


class ReaderHost(HostAdapter):
    name = "tests.reader"
    summary = "a causal host"
    patched: ClassVar = {Attention: GraftedCausalAttention}

    def recognizes(self, model: nn.Module) -> bool:
        return type(model) is Reader

    def sites(self, model: Any) -> list[Site]:
        stages = ("mix", "weights", "heads", "tokens", "attn.end")
        return [
            Site(
                path=f"blocks.{i}",
                kind="attention",
                geometry=AttentionGeometry(
                    dim=16,
                    tokens=7,
                    causal=True,
                    heads=2,
                    key_width=8,
                    value_width=8,
                    rows=fused_rows(block, "qkv", heads=2),
                ),
                targets=dict.fromkeys(stages, f"blocks.{i}"),  # type: ignore[arg-type]
            )
            for i, block in enumerate(model.blocks)
        ]

    def example_inputs(self, model: nn.Module, *, batch: int) -> tuple[Tensor, ...]:
        return (torch.randint(11, (batch, 7)),)

    def parts(self, model: nn.Module) -> Mapping[str, tuple[str, ...]]:
        return {"head": own_parameters(model, "head"), "norms": norm_state(model)}


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Reader:
    monkeypatch.setattr(registry, "_adapters", dict(registry.host_adapters()))
    register_host(ReaderHost())
    torch.manual_seed(0)
    return Reader().eval()


TOKENS = torch.arange(14).view(2, 7) * 3 % 11


@pytest.mark.parametrize("verb", [attngraft.graft, attngraft.plan])
@pytest.mark.parametrize("spec", ["bisa", "misa", "bisa(identity=true)@blocks.1", "horizontal + misa@first:1"])
def test_bi_directional_attention_is_refused_with_the_reason(reader: Reader, spec: str, verb: Any) -> None:
    before = snapshot(reader)
    where = "blocks.1" if "blocks.1" in spec else "blocks.0"
    with pytest.raises(
        attngraft.HostError,
        match=f"{where}.*must not see later ones, but the softmax over queries does; use horizontal or vertical",
    ):
        verb(reader, spec)
    assert_same_host(reader, before)


def test_averages_are_refused_too(reader: Reader) -> None:
    with pytest.raises(attngraft.HostError, match="must not see later ones, but this graft averages over all"):
        attngraft.graft(reader, "cb(at=attention)")


def test_what_mixes_no_tokens_stays_causal(reader: Reader) -> None:
    with torch.no_grad():
        expected = reader(TOKENS)
        attngraft.graft(reader, "horizontal + vertical")
        found = reader(TOKENS)
        assert not torch.allclose(found, expected)
        other = TOKENS.clone()
        other[:, 4:] = 5
        torch.testing.assert_close(reader(other)[:, :4], found[:, :4])
        attngraft.ungraft(reader)
        assert torch.equal(reader(TOKENS), expected)
