"""Layers whose cost over the number of tokens can be measured: each a stack of equal layers, and what it is called with.

All are `WIDTH` wide with `HEADS` heads and feed-forward networks four times as wide, so that their curves compare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

WIDTH, HEADS, LATENTS = 192, 3, 64


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A kind of layer."""

    title: str
    stack: Callable[[int], nn.Module]  #: so many layers
    inputs: Callable[[int], tuple[Tensor, ...]]  #: so many tokens, and what else the stack takes; a batch of one
    checked: int = 1024  #: tokens that outputs are checked with, or fewer where fewer are measured


class BiXTStack(nn.Module):
    """Whole layers of BiXT: bi-directional cross-attention with its projections and both feed-forward networks, then a
    block over the latents."""

    def __init__(self, depth: int) -> None:
        from attngraft.models.bixt.layers import Layer

        super().__init__()
        self.layers = nn.ModuleList(
            Layer(WIDTH, WIDTH, dim_attention=WIDTH, sa_heads=HEADS, ca_heads=HEADS) for _ in range(depth)
        )

    def forward(self, latents: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.layers:
            latents, tokens = layer(latents, tokens)
        return latents, tokens


def vit(depth: int, *, explicit: bool = False) -> nn.Module:
    """timm's blocks of a ViT: attention of all tokens to all tokens.

    Its attention is PyTorch's fused one, which needs time that grows with the square of the tokens and memory that does
    not: such a curve ends by time. `explicit` writes the N x N maps down, as ViT was published: that ends by memory.
    """
    from timm.models.vision_transformer import Block

    blocks = [Block(WIDTH, HEADS, qkv_bias=True) for _ in range(depth)]
    for block in blocks:
        block.attn.fused_attn = not explicit
    return nn.Sequential(*blocks)


def tokens_alone(count: int) -> tuple[Tensor, ...]:
    return (torch.randn(1, count, WIDTH),)


def latents_and_tokens(count: int) -> tuple[Tensor, ...]:
    return torch.randn(1, LATENTS, WIDTH), torch.randn(1, count, WIDTH)


#: name -> kind of layer; a mechanism's own bench adds a line here and a verb in `cli/bench.py`
LAYERS: Mapping[str, Measured] = {
    "bixt": Measured(  # checked with so many that they take the way of a million
        title="BiXT layer", stack=BiXTStack, inputs=latents_and_tokens, checked=2**15
    ),
    "vit": Measured(title="ViT block, fused attention", stack=vit, inputs=tokens_alone),
    "vit-explicit": Measured(
        title="ViT block, N x N maps", stack=lambda depth: vit(depth, explicit=True), inputs=tokens_alone
    ),
}
