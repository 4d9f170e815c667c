"""Vectors of the bi-directional cross-attention transformer; point clouds have their own file."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attngraft.mechanisms.bixt.layer import BidirectionalCrossAttention, OneSidedCrossAttention
from attngraft.models.bixt.layers import Layer, latent_block
from attngraft.models.bixt.model import BiXT
from attngraft.models.bixt.positions import DynamicPositions, StaticPositions
from attngraft.models.bixt.tokenizers import ConvolutionalEmbedding, LocalPatchInteraction, PatchEmbedding
from tests.conformance.vector import Builder, Built, Vector


def attention_arguments(vector: Vector) -> dict[str, Any]:
    config = vector.config
    return {
        "dim_latents": config["dim_lat"],
        "dim_tokens": config["dim_pat"],
        "dim_attention": config["dim_attn"],
        "heads": config["num_heads"],
        "rv_bias": config["rv_bias"],
    }


def bidirectional(vector: Vector) -> Built:
    module = BidirectionalCrossAttention(**attention_arguments(vector))
    return Built(module, lambda latents, tokens: pair(module(latents, tokens)))


def one_sided(vector: Vector) -> Built:
    module = OneSidedCrossAttention(**attention_arguments(vector))
    return Built(module, lambda latents, tokens: {"latents": module(latents, tokens)})


def pair(found: tuple[Tensor, Tensor | None]) -> dict[str, Tensor]:
    latents, tokens = found
    return {"latents": latents} if tokens is None else {"latents": latents, "tokens": tokens}


def self_attention(vector: Vector) -> Built:
    config = vector.config
    module = latent_block(config["dim_lat"], heads=config["num_heads"], qkv_bias=config["qkv_bias"])
    return Built(module, lambda latents: {"latents": module(latents)})


def layer(vector: Vector) -> Built:
    config = vector.config
    module = Layer(
        config["dim_lat"],
        config["dim_pat"],
        dim_attention=config["dim_attn"],
        sa_heads=config["sa_num_heads"],
        ca_heads=config["ca_num_heads"],
        mlp_ratio=config["mlp_ratio"],
        qkv_bias=config["qkv_bias"],
        rv_bias=config["rv_bias"],
        layer_scale=config["init_values"],
        one_sided=config["ca_onesided"],
    )
    return Built(module, lambda latents, tokens: pair(module(latents, tokens)))


def patch_embedding(vector: Vector) -> Built:
    config = vector.config
    module = PatchEmbedding(
        config["patch_size"], config["stride"], in_chans=config["in_chans"], dim=config["embed_dim"]
    )
    return Built(module, lambda image: {"tokens": module(image)})


def convolutional_embedding(vector: Vector) -> Built:
    config = vector.config
    module = ConvolutionalEmbedding(config["patch_size"], in_chans=config["in_chans"], dim=config["embed_dim"])
    return Built(module, lambda image: {"tokens": module(image)})


def local_interaction(vector: Vector) -> Built:
    config = vector.config
    module = LocalPatchInteraction(config["in_features"], norm=config["norm"])
    return Built(module, lambda tokens: {"tokens": module(tokens, (config["H"], config["W"]))})


def static_positions(vector: Vector) -> Built:
    config = vector.config
    grid = (config["token_grid_H"], config["token_grid_W"])
    module = StaticPositions(config["dim"], grid, dim=config["hidden_dim"], temperature=config["temperature"])
    return Built(module, lambda: {"raw": module.pos, "projected": module(grid)})


def dynamic_positions(vector: Vector) -> Built:
    config = vector.config
    module = DynamicPositions(config["dim"], dim=config["hidden_dim"], temperature=config["temperature"])
    return Built(module, lambda: {"projected": module(tuple(config["hw_shape"]))})


def model(vector: Vector) -> Built:
    config = vector.config
    module = BiXT(
        config["img_size"],
        in_chans=config["in_chans"],
        num_classes=config["num_classes"],
        patch_size=config["patch_size"],
        stride=None if config["tokenizer"] == "conv" else config["stride"],
        tokenizer=config["tokenizer"],
        positions={"fixed": "static", "dynamic": "dynamic"}[config["posenc"]],
        position_dim=config["posenc_hidden_dim"],
        temperature=config["posenc_temperature"],
        num_latents=config["num_latents"],
        embed_dim=config["embed_dim_lat"],
        token_dim=config["embed_dim_pat"],
        attention_dim=config["embed_dim_attn"],
        depth=config["depth"],
        sa_heads=config["sa_num_heads"],
        ca_heads=config["ca_num_heads"],
        mlp_ratio=config["mlp_ratio"],
        qkv_bias=config["qkv_bias"],
        rv_bias=config["rv_bias"],
        init_values=config["init_values"],
        fc_norm=config["fc_norm"],
    )
    return Built(module, lambda image: model_outputs(module, image))


def model_outputs(module: BiXT, image: Tensor) -> dict[str, Tensor]:
    """Return the outputs of every layer and the final outputs."""
    found = {"tokens_embedded": module.embed(image)}
    hooks = [
        block.register_forward_hook(lambda _, __, outputs, index=index: found.update(after(index, outputs)))
        for index, block in enumerate(module.blocks)
    ]
    found["logits"] = module(image)
    for hook in hooks:
        hook.remove()
    found["latents_final"] = found[f"latents_after_{len(module.blocks) - 1}"]
    found["pre_logits"] = module.forward_head(module.norm_lat(found["latents_final"]), pre_logits=True)
    return found


def after(index: int, outputs: tuple[Tensor, Tensor | None]) -> dict[str, Tensor]:
    return {f"{name}_after_{index}": value for name, value in pair(outputs).items()}


BUILDERS: dict[str, Builder] = {
    "bidirectional_cross_attention": bidirectional,
    "conv_patch_embed": convolutional_embedding,
    "layer": layer,
    "lpi": local_interaction,
    "model": model,
    "onesided_cross_attention": one_sided,
    "patch_embed": patch_embedding,
    "position_encoding_dynamic": dynamic_positions,
    "position_encoding_fixed": static_positions,
    "sa_block": self_attention,
}
