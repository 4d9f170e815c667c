"""Layers for scaling benchmarks: stacks of equal layers, and their inputs.

All have width `WIDTH`, `HEADS` heads, and feed-forward networks four times as wide, so that their curves are comparable.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from attngraft.models.bixt.layers import Layer

WIDTH, HEADS, LATENTS = 192, 3, 64


@dataclass(frozen=True, kw_only=True)
class BenchLayer:
    """A kind of layer."""

    title: str
    stack: Callable[[int], nn.Module]  #: number of layers -> stack
    inputs: Callable[[int], tuple[Tensor, ...]]  #: number of tokens -> inputs of the stack, with batch size 1
    checked: int = 1024  #: maximum number of tokens for the check of outputs


class BiXTStack(nn.Module):
    """Stack of complete BiXT layers.

    Each layer is cross-attention with projections and both feed-forward networks, then a latent block.
    """

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            Layer(WIDTH, WIDTH, dim_attention=WIDTH, sa_heads=HEADS, ca_heads=HEADS) for _ in range(depth)
        )

    def forward(self, latents: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.layers:
            latents, tokens = layer(latents, tokens)
        return latents, tokens


def vit(depth: int, *, explicit: bool = False) -> nn.Module:
    """Create timm's ViT blocks.

    PyTorch's fused attention takes quadratic time in the number of tokens but not quadratic memory, so its curve ends at
    the time limit. With `explicit`, attention stores N x N maps, as in the original ViT, and the curve ends at the memory
    limit.
    """
    blocks = [Block(WIDTH, HEADS, qkv_bias=True) for _ in range(depth)]
    for block in blocks:
        block.attn.fused_attn = not explicit
    return nn.Sequential(*blocks)


def tokens_alone(count: int) -> tuple[Tensor, ...]:
    return (torch.randn(1, count, WIDTH),)


def latents_and_tokens(count: int) -> tuple[Tensor, ...]:
    return torch.randn(1, LATENTS, WIDTH), torch.randn(1, count, WIDTH)


#: name -> kind of layer; to benchmark another mechanism, add a line here and a command in `cli/bench.py`
LAYERS: Mapping[str, BenchLayer] = {
    "bixt": BenchLayer(  # enough tokens to take the same code path as a million tokens
        title="BiXT layer", stack=BiXTStack, inputs=latents_and_tokens, checked=2**15
    ),
    "vit": BenchLayer(title="ViT block, fused attention", stack=vit, inputs=tokens_alone),
    "vit-explicit": BenchLayer(
        title="ViT block, N x N maps", stack=lambda depth: vit(depth, explicit=True), inputs=tokens_alone
    ),
}
