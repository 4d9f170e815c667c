"""Vectors of horizontal and vertical attention."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

import attngraft
from attngraft.mechanisms.horizontal_vertical import HorizontalAttention, VerticalAttention
from attngraft.models.translation.model import EPS, additive_mask
from tests.conformance import hosts
from tests.conformance.attention import Attention, key_padding
from tests.conformance.vector import Builder, Built, Slot, Vector
from tests.listening import Heard


def mechanisms(vector: Vector, prefix: str = "") -> dict[str, nn.Module | None]:
    """Build the mechanisms whose parameters are under `prefix`, with the sizes of these parameters."""
    shapes = vector.state_shapes
    made: dict[str, nn.Module | None] = {"horizontal": None, "vertical": None}
    if (context := shapes.get(f"{prefix}horizontal.context.weight")) is not None:
        made["horizontal"] = HorizontalAttention(context[1], context[0])
    if (context := shapes.get(f"{prefix}vertical.context.weight")) is not None:
        made["vertical"] = VerticalAttention(context[1], hidden=context[0])
    return made


def attention_module(vector: Vector, prefix: str = "") -> Attention:
    """Build attention with the projections, biases, memory slots and mechanisms under `prefix`."""
    shapes, heads = vector.state_shapes, vector.config["num_heads"]
    fused = f"{prefix}qkv.weight" in shapes
    dim, values = shapes[f"{prefix}proj.weight"]
    keys = (shapes[f"{prefix}qkv.weight"][0] - values) // 2 if fused else shapes[f"{prefix}q.weight"][0]
    return Attention(
        dim,
        heads,
        key_dim=keys // heads,
        value_dim=values // heads,
        fused=fused,
        qkv_bias=vector.has(f"{prefix}{'qkv' if fused else 'q'}.bias"),
        proj_bias=vector.has(f"{prefix}proj.bias"),
        memory_slots=vector.config.get("memory_slots", 0),
        **mechanisms(vector, prefix),
    )


def attention_slot(key: str) -> Slot:
    """Return the slot of a key; names differ only for memory slots, which have many names (`m_k`, `memory.key`)."""
    if key.split(".")[0] in ("qkv", "q", "k", "v", "proj", "horizontal", "vertical"):
        return Slot(key)
    role = re.sub(r"memory|mem|slots?|[^a-z]", "", key.lower())
    return Slot("memory_keys" if "k" in role else "memory_values")


def padding(vector: Vector, tokens: int) -> Tensor | None:
    """Return the mask of `config.mask`, or None if it is not a key padding."""
    mask = vector.config.get("mask")
    return key_padding(torch.tensor(mask["lengths"]), tokens) if isinstance(mask, Mapping) else None


def attention(vector: Vector) -> Built:
    module = attention_module(vector)
    causal = vector.config.get("mask") == "causal"

    def outputs(x: Tensor, memory: Tensor | None = None) -> dict[str, Tensor]:
        visible = padding(vector, (x if memory is None else memory).shape[1])
        return {"out": module(x, memory, visible=visible, causal=causal)}

    return Built(module, outputs, attention_slot)


def listening(module: nn.Module, offered: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """Wrap a module to return its output and one recorded tensor."""
    heard = Heard()
    module.recorder = heard

    def call(*inputs: Tensor) -> tuple[Tensor, Tensor]:
        out = module(*inputs)
        return out, heard[offered]

    return call


def horizontal(vector: Vector) -> Built:
    module = mechanisms(vector)["horizontal"]
    call = listening(module, "alpha")

    def outputs(heads: Tensor, x: Tensor) -> dict[str, Tensor]:
        weighed, alpha = call(heads, x)
        return {"heads": weighed, "alpha": alpha}

    return Built(module, outputs, lambda key: Slot(key.removeprefix("horizontal.")))


def vertical(vector: Vector) -> Built:
    module = mechanisms(vector)["vertical"]
    call = listening(module, "beta")

    def outputs(merged: Tensor, x: Tensor) -> dict[str, Tensor]:
        out, beta = call(merged, x)
        return {"out": out, "beta": beta}

    return Built(module, outputs, lambda key: Slot(key.removeprefix("vertical.")))


def block_slot(key: str) -> Slot:
    return Slot(re.sub(r"^attn\.(horizontal|vertical)\.", r"attn.grafts.\1.", key))


def vit_block(vector: Vector) -> Built:
    block = hosts.vit(vector, " + ".join(vector.config["hv"])).blocks[0]
    return Built(block, lambda x: {"out": block(x)}, block_slot)


def swin_block(vector: Vector) -> Built:
    block = hosts.swin(vector, " + ".join(vector.config["hv"]))
    return Built(block, lambda x: {"out": block(x)}, block_slot)


#: name in the code of the translation host -> our name
TRANSLATION = (
    (r"^slf_attn\.layer_norm\.", "self_attn_norm."),
    (r"^slf_attn\.", "self_attn."),
    (r"^(enc|crs|cross)_attn\.layer_norm\.", "cross_attn_norm."),
    (r"^(enc|crs|cross)_attn\.", "cross_attn."),
    (r"_attn\.(horizontal|vertical)\.", r"_attn.grafts.\1."),
    (r"^pos_ffn\.layer_norm\.", "mlp_norm."),
    (r"^pos_ffn\.w_", "mlp.fc"),
)


def translation_slot(key: str) -> Slot:
    for pattern, ours in TRANSLATION:
        key = re.sub(pattern, ours, key)
    return Slot(key)


def translation_layer(vector: Vector) -> Built:
    """Build a layer of `mt_transformer`: of the encoder, or with memory of the decoder; padding on the keys or memory."""
    hidden, dim = vector.state_shapes["pos_ffn.w_1.weight"]
    sizes = {"dim": dim, "hidden": hidden, "heads": vector.config["num_heads"]}
    model = attngraft.create_model("mt_transformer", vocab_size=8, depth=1, **sizes)
    stack = "decoder" if "memory" in vector.inputs else "encoder"
    attngraft.graft(model, " + ".join(f"{name}@{stack}" for name in vector.config["hv"]))
    module = getattr(model, stack)[0]
    if vector.config["eps"] != EPS:
        raise ValueError(f"the layers' norms have eps {EPS}")

    def outputs(x: Tensor, memory: Tensor | None = None) -> dict[str, Tensor]:
        visible = padding(vector, (x if memory is None else memory).shape[1])
        bias = None if visible is None else additive_mask(visible, x)
        return {"out": module(x, bias) if memory is None else module(x, memory, bias)[0]}

    return Built(module, outputs, translation_slot)


BUILDERS: dict[str, Builder] = {
    "attention": attention,
    "horizontal": horizontal,
    "swin_block": swin_block,
    "translation_layer": translation_layer,
    "vertical": vertical,
    "vit_block": vit_block,
}
