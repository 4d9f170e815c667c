"""Models that are used only for counting, by name.

`translation_transformer` is the HV paper's translation Transformer: 6 + 6 layers, width 512, 8 heads, MLP 2048, 18 attention
sites, one embedding matrix shared by source, target and output. It omits the parts without parameters and multiply-adds
(sinusoidal positions, masks).
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from attngraft.attention import AttentionGeometry, Projected
from attngraft.grafting.spec import GraftSpec
from attngraft.hosts.timm.attention import SelfAttention
from attngraft.mechanisms.registry import graft_types
from attngraft.tensors import meta_device

DIM, HEADS, HIDDEN, LAYERS, LENGTH = 512, 8, 2048, 6, 64


class Attention(SelfAttention, nn.Module):
    """Multi-head attention without biases. Keys and values are computed from `memory`."""

    fused_attn = False

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.proj = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))
        self.attn_drop, self.proj_drop = nn.Dropout(0.1), nn.Identity()
        self.scale = (DIM // HEADS) ** -0.5
        self.grafts = nn.ModuleDict()

    def project(self, x: Tensor, *args: Any, **kwargs: Any) -> Projected:
        memory = args[0]
        q, k, v = (
            linear(tokens).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for linear, tokens in ((self.query, x), (self.key, memory), (self.value, memory))
        )
        return Projected(q, k, v, queries=x)


class Layer(nn.Module):
    """Self-attention, cross-attention (decoder only), MLP, and a norm after each residual sum (Eq. 4)."""

    def __init__(self, *, cross: bool) -> None:
        super().__init__()
        self.attentions = nn.ModuleList(Attention() for _ in range(1 + cross))
        self.mlp = nn.Sequential(nn.Linear(DIM, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, DIM))
        self.norms = nn.ModuleList(nn.LayerNorm(DIM, eps=1e-6) for _ in range(2 + cross))

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """Transform tokens (B, N, C); the shape is unchanged."""
        for attention, norm, context in zip(self.attentions, self.norms, (None, memory), strict=False):
            x = norm(x + attention(x, x if context is None else context))
        return cast(Tensor, self.norms[-1](x + self.mlp(x)))


class TranslationTransformer(nn.Module):
    """The paper's translation model, with a joint vocabulary of `vocabulary` tokens."""

    def __init__(self, *, vocabulary: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, DIM)
        self.norms = nn.ModuleList(nn.LayerNorm(DIM, eps=1e-6) for _ in range(2))
        self.encoder = nn.ModuleList(Layer(cross=False) for _ in range(LAYERS))
        self.decoder = nn.ModuleList(Layer(cross=True) for _ in range(LAYERS))
        self.output = nn.Linear(DIM, vocabulary, bias=False)
        self.output.weight = self.words.weight

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return logits (B, N, vocabulary) for the token ids (B, N) of source and target."""
        memory, x = self.norms[0](self.words(source)), self.norms[1](self.words(target))
        for layer in self.encoder:
            memory = layer(memory)
        for layer in self.decoder:
            x = layer(x, memory)
        return cast(Tensor, self.output(x))


def translation_transformer(spec: GraftSpec, **args: Any) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Return the model on the meta device, grafted at all 18 sites, and a pair of 64-token sentences."""
    geometry = AttentionGeometry(
        dim=DIM, heads=HEADS, key_width=DIM // HEADS, value_width=DIM // HEADS, tokens=LENGTH, init="xavier_uniform"
    )
    with meta_device():
        model = TranslationTransformer(**args)
        for attention in (module for module in model.modules() if isinstance(module, Attention)):
            for term in spec.terms:
                graft_type = graft_types()[term.name]
                for hook_point in graft_type.hook_points(term.options):
                    graft = graft_type.build(geometry, hook_point, term.options)
                    graft.hook_point, graft.kind = hook_point, term.name
                    attention.grafts[term.name] = graft
        sentence = torch.zeros(1, LENGTH, dtype=torch.int64)
    return model.eval(), (sentence, sentence)


#: functions (spec, **args) -> (model, inputs of one example), by model name
SKELETONS: dict[str, Callable[..., tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "translation_transformer": translation_transformer
}
