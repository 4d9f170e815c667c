"""timm blocks of a vector's sizes, in the smallest host that contains them, with grafts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from timm.models.swin_transformer import SwinTransformer, SwinTransformerBlock
from timm.models.vision_transformer import VisionTransformer
from torch import nn

import attngraft
from attngraft.grafting.apply import grafted
from tests.conformance.vector import Slot, Vector


def vit(vector: Vector, spec: str, *, prefix: str = "", depth: int = 1) -> VisionTransformer:
    """Build a grafted ViT whose blocks have the widths of the vector's `<prefix>norm1`, `<prefix>mlp`, ..."""
    shapes, config = vector.state_shapes, vector.config
    dim, hidden = shapes[f"{prefix}norm1.weight"][0], shapes[f"{prefix}mlp.fc1.weight"][0]
    model = tiny_vit(
        dim,
        hidden,
        depth=depth,
        num_heads=config["num_heads"],
        qkv_bias=f"{prefix}attn.qkv.bias" in shapes,
        proj_bias=f"{prefix}attn.proj.bias" in shapes,
        reg_tokens=config.get("num_prefix_tokens", 1) - 1,
        norm_layer=partial(nn.LayerNorm, eps=config["eps"]),
    )
    attngraft.graft(model, spec)
    if "scale" in config:
        for block in model.blocks:
            block.attn.scale = config["scale"]
    return model


def tiny_vit(dim: int, hidden: int, **arguments: object) -> VisionTransformer:
    """Build a ViT of one patch; with the half unit, timm rounds the ratio's product down to `hidden`."""
    return VisionTransformer(
        img_size=4, patch_size=4, embed_dim=dim, mlp_ratio=(hidden + 0.5) / dim, num_classes=0, **arguments
    )


def swin(vector: Vector, spec: str) -> SwinTransformerBlock:
    """Build a grafted Swin block for the vector's map (B, rows, columns, C)."""
    config, shapes = vector.config, vector.state_shapes
    _, rows, columns, dim = vector.inputs["x"]
    sizes = {
        "num_heads": config["num_heads"],
        "window_size": config["window"],
        "mlp_ratio": (shapes["mlp.fc1.weight"][0] + 0.5) / dim,
        "qkv_bias": "attn.qkv.bias" in shapes,
        "norm_layer": partial(nn.LayerNorm, eps=config["eps"]),
    }
    model = SwinTransformer(
        img_size=(rows, columns),
        patch_size=1,
        embed_dim=dim,
        depths=(1,),
        num_classes=0,
        **{**sizes, "num_heads": (config["num_heads"],)},
    )
    model.layers[0].blocks[0] = SwinTransformerBlock(dim, (rows, columns), shift_size=config["shift"], **sizes)
    attngraft.graft(model, spec)
    return model.layers[0].blocks[0]


def graft_slot(block: nn.Module, branch: str, parameter: str) -> Slot:
    """Return the slot of a graft's parameter in the attention or MLP branch of a block."""
    for path, _, name, graft in grafted(block):
        if graft.hook_point.startswith(branch) and parameter in dict(graft.named_parameters()):
            return Slot(f"{path}.grafts.{name}.{parameter}".lstrip("."))
    raise KeyError(f"no graft at {branch} has a parameter {parameter}")


def fused_rows(sizes: dict[str, int]) -> Callable[[str], Slot]:
    """Return slots for separate `q`, `k`, `v` in a fused `qkv` whose parts have these sizes, in this order."""
    bounds, start = {}, 0
    for part, size in sizes.items():
        bounds[part] = (start, start + size)
        start += size

    def slot(key: str) -> Slot:
        part, _, parameter = key.partition(".")
        return Slot(f"qkv.{parameter}", *bounds[part]) if part in bounds else Slot(key)

    return slot
