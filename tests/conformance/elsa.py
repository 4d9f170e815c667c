"""Vectors of local attention: the operation, Hadamard attention, ELSA-Swin, ELSA-VOLO, and VOLO, which is timm's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from timm.models import create_model
from timm.models.swin_transformer import PatchMerging
from timm.models.volo import VOLO, ClassAttention, ClassBlock, OutlookAttention, Outlooker, Transformer
from torch import Tensor, nn

from attngraft.mechanisms.local import local_filter
from attngraft.mechanisms.local.geometry import Neighborhood
from attngraft.mechanisms.local.hadamard import HadamardAttention, StrictFilters
from attngraft.models.elsa.blocks import Residual, WindowAttention, elsa_block
from attngraft.models.elsa.swin import ElsaSwin, ElsaSwinBackbone, Stage
from attngraft.models.elsa.volo import ElsaVolo
from attngraft.tasks.token_labeling.losses import TokenLabelLoss
from tests.conformance.vector import Builder, Built, Vector
from tests.listening import Heard


def operation(vector: Vector) -> Built:
    config = vector.config

    def run(
        v: Tensor, attn: Tensor, ghost_mul: Tensor | None = None, ghost_add: Tensor | None = None
    ) -> dict[str, Tensor]:
        out = local_filter(
            v,
            attn,
            ghost_mul,
            ghost_add,
            kernel_size=config["kernel_size"],
            dilation=config["dilation"],
            stride=config["stride"],
            lam=config["lam"],
            gamma=config["gamma"],
            softmax=False,
        )
        return {"out": out}

    changes = {"ghost_mul": lambda mul: mul.abs() + 0.1} if "ghost_mul_transform" in config else {}
    return Built(nn.Module(), run, changes=changes)


def strict(vector: Vector) -> Built:
    config, (_, dim, *_) = vector.config, vector.inputs["q"]
    size, heads = config["kernel_size"], config["num_heads"]
    module = StrictFilters(dim, heads, Neighborhood(size))

    def run(q: Tensor, k: Tensor, v: Tensor) -> dict[str, Tensor]:
        filters = module(q * k)
        attn = filters.unflatten(1, (heads, size**2)).softmax(2)
        return {"attn": attn, "out": local_filter(v, filters, kernel_size=size)}

    return Built(module, run)


def attention_of(config: Mapping[str, Any]) -> HadamardAttention:
    heads, width = config["num_heads"], config["dim_v"] or config["dim"]
    return HadamardAttention(
        config["dim"],
        heads,
        kernel_size=config["kernel_size"],
        dilation=config["dilation"],
        dim_qk=config["dim_qk"],
        dim_v=config["dim_v"],
        qkv_bias=config["qkv_bias"],
        scale=config["qk_scale"] or (width / heads) ** -0.5,
        group_width=config["group_width"],
        groups=config["groups"],
        lam=config["lam"],
        gamma=config["gamma"],
    )


def maps_of(attention: HadamardAttention, run: Callable[[], Tensor]) -> dict[str, Tensor]:
    """Return the output and the maps in the published layout; a first run without a recorder must give the same output."""
    seen = Heard()
    alone = run()
    attention.recorder = seen
    out = run()
    attention.recorder = None
    torch.testing.assert_close(alone, out)
    return {"h_attn": seen["local_filters"].flatten(0, 1), "out": alone}


def attention(vector: Vector) -> Built:
    module = attention_of(vector.config)
    return Built(module, lambda x: maps_of(module, lambda: module(x)))


def block(vector: Vector) -> Built:
    config = vector.config
    module = Residual(config["dim"], attention_of(config), mlp_ratio=config["mlp_ratio"])
    found: HadamardAttention = module.attn  # type: ignore[assignment]
    return Built(module, lambda x: maps_of(found, lambda: module(x)))


def on_map(module: nn.Module, sizes: tuple[int, int]) -> Callable[[Tensor], Tensor]:
    """Wrap a module that the published code calls with tokens (B, N, C)."""

    def run(x: Tensor) -> Tensor:
        found: Tensor = module(x.unflatten(1, sizes))
        return found.flatten(1, 2)

    return run


def window_block(vector: Vector) -> Built:
    config, sizes = vector.config, tuple(vector.config["input_resolution"])
    attn = WindowAttention(
        config["dim"],
        config["num_heads"],
        window=min(config["window_size"], *sizes),
        shift=config["shift_size"],
        qkv_bias=config["qkv_bias"],
    )
    module = Residual(config["dim"], attn, mlp_ratio=config["mlp_ratio"])
    return Built(module, lambda x: {"out": on_map(module, sizes)(x)})


def merging(vector: Vector) -> Built:
    module, sizes = PatchMerging(vector.config["dim"]), tuple(vector.config["input_resolution"])
    return Built(module, lambda x: {"out": on_map(module, sizes)(x)})


def stage(vector: Vector) -> Built:
    config, sizes = vector.config, tuple(vector.config["input_resolution"])
    blocks = [
        elsa_block(
            config["dim"],
            config["num_heads"],
            kernel_size=config["elsa_kernel"],
            group_width=config["group_width"],
            lam=config["lam"],
            gamma=config["gamma"],
            mlp_ratio=config["mlp_ratio"],
            qkv_bias=config["qkv_bias"],
        )
        for _ in range(config["depth"])
    ]
    module = Stage(blocks, PatchMerging(config["dim"]))

    def run(x: Tensor) -> dict[str, Tensor]:
        return {"after_block_0": on_map(blocks[0], sizes)(x), "out": on_map(module, sizes)(x)}

    return Built(module, run)


def swin_of(config: Mapping[str, Any], img_size: tuple[int, int], num_classes: int) -> ElsaSwin:
    return ElsaSwin(
        img_size,
        num_classes=num_classes,
        patch_size=config["patch_size"],
        embed_dim=config["embed_dim"],
        depths=config["depths"],
        num_heads=config["num_heads"],
        kernel_size=config["elsa_kernel"],
        group_width=config["group_width"],
        lam=config["lam"],
        gamma=config["gamma"],
        window_size=config["window_size"],
        mlp_ratio=config["mlp_ratio"],
        qkv_bias=config["qkv_bias"],
        drop_path_rate=config["drop_path_rate"],
    )


def swin(vector: Vector) -> Built:
    module = swin_of(vector.config, tuple(vector.config["img_size"]), vector.config["num_classes"])

    def run(image: Tensor) -> dict[str, Tensor]:
        x = module.patch_embed(image)
        found = {"patch_embed": x.flatten(1, 2)}
        for index, each in enumerate(module.layers):
            x = each(x)
            found[f"stage_{index}"] = x.flatten(1, 2)
        return {**found, "logits": module(image)}

    return Built(module, run)


def backbone(vector: Vector) -> Built:
    module = ElsaSwinBackbone(swin_of(vector.config, (224, 224), 0))
    return Built(module, lambda image: {f"feature_{index}": x for index, x in enumerate(module(image))})


def outlook(vector: Vector) -> Built:
    config = vector.config
    module = OutlookAttention(
        config["dim"],
        config["num_heads"],
        kernel_size=config["kernel_size"],
        padding=config["padding"],
        stride=config["stride"],
        qkv_bias=config["qkv_bias"],
    )
    return Built(module, lambda x: {"out": module(x)})


def outlooker(vector: Vector) -> Built:
    config = vector.config
    module = Outlooker(
        config["dim"],
        kernel_size=config["kernel_size"],
        padding=config["padding"],
        stride=config["stride"],
        num_heads=config["num_heads"],
        mlp_ratio=config["mlp_ratio"],
    )
    return Built(module, lambda x: {"out": module(x)})


def class_attention(vector: Vector) -> Built:
    module = ClassAttention(vector.config["dim"], num_heads=vector.config["num_heads"])
    return Built(module, lambda x: {"out": module(x)})


def class_block(vector: Vector) -> Built:
    config = vector.config
    module = ClassBlock(config["dim"], config["num_heads"], mlp_ratio=config["mlp_ratio"])
    return Built(module, lambda x: {"out": module(x)})


def transformer_block(vector: Vector) -> Built:
    config = vector.config
    module = Transformer(config["dim"], config["num_heads"], mlp_ratio=config["mlp_ratio"])
    return Built(module, lambda x: {"out": module(x)})


def volo_outputs(module: VOLO, first: str) -> Callable[[Tensor], dict[str, Tensor]]:
    """Return logits and the outputs of the parts, read by hooks; `first` is the first stage's name in the vector."""
    names = {
        "patch_embed": "patch_embed",
        "network.0": first,
        "network.1": "downsample",
        "post_network.1": "post_network",
    }

    def run(image: Tensor) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        hooks = [
            module.get_submodule(place).register_forward_hook(lambda _m, _i, out, name=name: found.update({name: out}))
            for place, name in names.items()
        ]
        found["logits"] = module(image)
        for hook in hooks:
            hook.remove()
        return found

    return run


def volo(vector: Vector) -> Built:
    module = create_model(f"{vector.config['variant']}_224", pretrained=False)
    return Built(module, volo_outputs(module, "outlooker_stage"))


def elsa_volo(vector: Vector) -> Built:
    config = vector.config
    module = ElsaVolo(
        config["layers"],
        img_size=config["img_size"],
        embed_dims=config["embed_dims"],
        num_heads=config["num_heads"],
        mlp_ratio=config["mlp_ratio"],
        qkv_bias=config["qkv_bias"],
        stem_hidden_dim=config["stem_hidden_dim"],
        kernel_size=config["kernel_size"],
        group_width=config["group_width"],
        lam=config["lam"],
        gamma=config["gamma"],
    )
    return Built(module, volo_outputs(module, "elsa_stage"))


def token_labels(vector: Vector) -> Built:
    config = vector.config
    loss = TokenLabelLoss(
        dense_weight=config["dense_weight"],
        class_weight=config["cls_weight"],
        with_ground_truth=config["with_ground_truth"],
    )

    def run(logits: Tensor, aux: Tensor, target_logits: Tensor) -> dict[str, Tensor]:
        target = (3 * target_logits).softmax(1)
        return {"loss": loss(logits, aux, target, box=tuple(config["box"])).reshape(1)}

    return Built(nn.Module(), run)


BUILDERS: dict[str, Builder] = {
    "class_attention": class_attention,
    "class_block": class_block,
    "elsa_attention": attention,
    "elsa_block": block,
    "elsa_op": operation,
    "elsa_swin": swin,
    "elsa_swin_backbone": backbone,
    "elsa_swin_stage": stage,
    "elsa_volo": elsa_volo,
    "hadamard_strict": strict,
    "outlook_attention": outlook,
    "outlooker_block": outlooker,
    "patch_merging": merging,
    "swin_block": window_block,
    "token_label_loss": token_labels,
    "volo": volo,
    "volo_transformer_block": transformer_block,
}
