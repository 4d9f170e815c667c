"""Vectors of context broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from timm.models.mlp_mixer import MlpMixer
from torch import Tensor, nn

import attngraft
from attngraft.mechanisms import context_broadcast as package
from attngraft.recording import measures as measured
from tests.conformance import hosts
from tests.conformance.attention import Attention
from tests.conformance.vector import Builder, Built, Slot, Vector

#: a vector's variant -> its graft
GRAFTS = {
    "cb": "cb",
    "cb_s": "cb_s",
    "max": "cb, context=max",
    "class": "cb, context=class",
    "gate": "cb_gate",
    "hybrid": "cb_hybrid",
}


def term(variant: str, where: str = "all", **options: str) -> str:
    """Return a term of a graft specification."""
    name, *own = GRAFTS[variant].split(", ")
    given = ", ".join([*own, *(f"{key}={value}" for key, value in options.items())])
    return f"{name}({given})@{where}"


def layer(variant: str, dim: int) -> nn.Module:
    """Build a variant as a layer."""
    if variant == "cb_s":
        return package.ScaledContextBroadcast(dim)
    if variant in ("gate", "hybrid"):
        return package.ContextGate() if variant == "gate" else package.ContextHybrid()
    return package.ContextBroadcast(context=variant if variant in ("max", "class") else "mean")


def op(vector: Vector) -> Built:
    module = layer(vector.config["variant"], vector.inputs["x"][-1])
    return Built(module, lambda x: {"out": module(x)}, lambda key: Slot(key.removeprefix("cb.")))


def mlp(vector: Vector) -> Built:
    hidden, dim = vector.state_shapes["fc1.weight"]
    model = hosts.tiny_vit(dim, hidden, depth=1, num_heads=1)
    attngraft.graft(model, term(vector.config["variant"], position=vector.config["position"]))
    module = model.blocks[0].mlp

    def slot(key: str) -> Slot:
        return hosts.graft_slot(module, "mlp", "scale") if key == "cb.scale" else Slot(key)

    return Built(module, lambda x: {"out": module(x)}, slot)


def squeeze_excitation(vector: Vector) -> Built:
    hidden, dim = vector.state_shapes["se.squeeze.weight"]
    bias = "se.squeeze.bias" in vector.state_shapes
    module = package.SqueezeExcitation(dim, reduction=vector.config["reduction"], bias=bias)
    if module.squeeze.out_features != hidden:
        raise ValueError(
            f"reduction {vector.config['reduction']} of {dim} gives {module.squeeze.out_features}, not {hidden}"
        )
    return Built(module, lambda x: {"out": module(x)}, lambda key: Slot(key.removeprefix("se.")))


def attention(vector: Vector) -> Built:
    """Build attention, with `uniform_heads` uniform heads and, with `cb_attn`, context at its end."""
    config, shapes = vector.config, vector.state_shapes
    heads, uniform = config["num_heads"], config.get("uniform_heads", 0)
    dim, values = shapes["proj.weight"]
    keys = shapes["q.weight"][0] if "q.weight" in shapes else (shapes["qkv.weight"][0] - values) // 2
    biases = {
        "qkv_bias": vector.has("q.bias") or vector.has("qkv.bias"),
        "proj_bias": vector.has("proj.bias"),
    }
    inner: nn.Module
    if uniform:
        width = values // heads
        inner = package.UniformHeadAttention(dim, heads, attn_head_dim=width, uniform_heads=uniform, **biases)
    else:
        inner = Attention(dim, heads, key_dim=keys // heads, value_dim=values // heads, fused=True, **biases)
    module = nn.ModuleDict({"attention": inner})
    if "cb_attn" in config:
        module["context"] = layer(config["cb_attn"], dim)
    rows = hosts.fused_rows({"q": keys, "k": keys, "v": values})

    def slot(key: str) -> Slot:
        if key.endswith("cb.scale"):
            return Slot("context.scale")
        inside = rows(key)
        return Slot(f"attention.{inside.name}", inside.start, inside.stop)

    def outputs(x: Tensor) -> dict[str, Tensor]:
        for part in module.values():
            x = part(x)
        return {"out": x}

    return Built(module, outputs, slot)


def block_slots(block: nn.Module) -> Callable[[str], Slot]:
    """Return the slots of a grafted block; keys such as `attn.cb.scale` and `mlp.cb.scale` are parameters of grafts."""

    def slot(key: str) -> Slot:
        branch, _, rest = key.partition(".")
        return hosts.graft_slot(block, branch.partition("_")[0], "scale") if rest == "cb.scale" else Slot(key)

    return slot


def block_spec(vector: Vector) -> str:
    """Return the specification for `cb_attn` and `cb_mlp`."""
    config, terms = vector.config, []
    if "cb_attn" in config:
        terms.append(term(config["cb_attn"], at="attention", scope=config.get("cb_attn_scope", "image")))
    if "cb_mlp" in config:
        terms.append(term(config["cb_mlp"], position=config.get("cb_pos", "end")))
    return " + ".join(terms)


def vit_block(vector: Vector) -> Built:
    block = hosts.vit(vector, block_spec(vector)).blocks[0]
    return Built(block, lambda x: {"out": block(x)}, block_slots(block))


def vit_blocks(vector: Vector) -> Built:
    config = vector.config
    where = ",".join(f"blocks.{index}" for index in config["cb_blocks"])
    model = hosts.vit(vector, term(config["cb_mlp"], where), prefix="blocks.0.", depth=config["depth"])
    module = nn.ModuleDict({"blocks": model.blocks})
    return Built(
        module,
        lambda x: {"out": model.blocks(x)},
        lambda key: Slot(key.replace(".mlp.cb.scale", ".mlp.grafts.cb_s.scale")),
    )


def swin_block(vector: Vector) -> Built:
    block = hosts.swin(vector, block_spec(vector))
    return Built(block, lambda x: {"out": block(x)}, block_slots(block))


def mixer_block(vector: Vector) -> Built:
    config, shapes = vector.config, vector.state_shapes
    hidden, dim = shapes["mlp_channels.fc1.weight"]
    token_hidden, tokens = shapes["mlp_tokens.fc1.weight"]
    model = MlpMixer(
        num_classes=0,
        img_size=(1, tokens),
        patch_size=1,
        num_blocks=1,
        embed_dim=dim,
        mlp_ratio=((token_hidden + 0.5) / dim, (hidden + 0.5) / dim),
        norm_layer=partial(nn.LayerNorm, eps=config["eps"]),
    )
    attngraft.graft(model, term(config["cb_mlp"], position=config["cb_pos"]))
    block = model.blocks[0]
    return Built(block, lambda x: {"out": block(x)}, block_slots(block))


def measures(vector: Vector) -> Built:
    grid, temperature = tuple(vector.config["grid"]), vector.config["temperature"]

    def outputs(scores: Tensor, lam: Tensor) -> dict[str, Tensor]:
        weights = torch.softmax(temperature * scores, dim=-1)
        ratio, mean = measured.scale_statistics(lam)
        return {
            "entropy": measured.entropy(weights).mean(),
            "distance_pair_mean": measured.relative_distance(weights, grid, normalize="pair_mean").mean(),
            "distance_per_query": measured.relative_distance(weights, grid).mean(),
            "steepness": measured.steepness(scores[0, 0], temperature=temperature),
            "scale_ratio": ratio,
            "scale_mean": mean,
        }

    return Built(nn.Module(), outputs)


BUILDERS: dict[str, Builder] = {
    "analysis": measures,
    "attention": attention,
    "cb": op,
    "mixer_block": mixer_block,
    "mlp": mlp,
    "se": squeeze_excitation,
    "swin_block": swin_block,
    "vit_block": vit_block,
    "vit_blocks": vit_blocks,
}
