"""timm's VisionTransformer and DeiT: class token or none, registers, distillation token, qk-norm, fused or not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, cast

import torch
from timm.layers import Attention
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import Block, LayerScale, ResPostBlock, VisionTransformer
from torch import Tensor, nn

from attngraft.anatomy import (
    STAGES,
    AttentionGeometry,
    AttentionSite,
    GraftedModule,
    LinearLayer,
    MlpGeometry,
    Projected,
    Stage,
)
from attngraft.errors import HostError
from attngraft.hosts import timm_mlp
from attngraft.hosts.adapter import (
    HostAdapter,
    HostFold,
    Site,
    check_known,
    fused_rows,
    norm_state,
    own_parameters,
    random_images,
)
from attngraft.hosts.registry import register_host


class GraftedAttention(AttentionSite, Attention):
    """`timm.layers.Attention`: fused qkv (rows q, k, v), optional qk-norm, output norm and gate."""

    def project(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Projected:
        gate = getattr(self, "gate", None)  # timm >= 1.0.28
        gate = None if gate is None else gate(x).sigmoid()
        q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = self.q_norm(q), self.k_norm(k)
        bias = None if is_causal else attn_mask  # as the host reads the pair: causal takes precedence when spelled out
        if is_causal and self.fused_attn and attn_mask is not None:
            raise ValueError("attn_mask and is_causal exclude each other")
        return Projected(q, k, v, x, bias=bias, causal=is_causal, rest=gate)

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        x = self.norm(heads.transpose(1, 2).flatten(2))
        if projected.rest is not None:
            x = x * projected.rest
        return cast(Tensor, self.proj(x))

    def drop(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, self.proj_drop(tokens))

    def output_layer(self) -> LinearLayer | None:
        return self.proj if isinstance(self.proj, nn.Linear) else None


class TimmViT(HostAdapter):
    """Sites `blocks.<i>.attn` and `blocks.<i>.mlp`."""

    name = "timm.vit"
    summary = "timm VisionTransformer, DeiT and distilled DeiT of any size"
    richer: ClassVar = {Attention: GraftedAttention, **timm_mlp.RICHER}

    def recognizes(self, model: nn.Module) -> bool:
        return type(model) in (VisionTransformer, VisionTransformerDistilled)

    def sites(self, model: Any) -> list[Site]:
        found = list(self._sites(model))
        if not found:
            blocks = {type(block).__name__ for block in model.blocks}
            raise HostError(
                f"the blocks of this VisionTransformer are {', '.join(sorted(blocks)) or 'none'}; attngraft knows Block and "
                "ResPostBlock with timm's Attention and MLPs"
            )
        return found

    def _sites(self, model: Any) -> Iterator[Site]:
        for name, block in model.blocks.named_children():
            if type(block) not in (Block, ResPostBlock):
                continue
            yield self._attention_site(model, block.attn, f"blocks.{name}.attn")
            path, mlp = f"blocks.{name}.mlp", block.mlp
            width = mlp.fc2.in_features if isinstance(getattr(mlp, "fc2", None), nn.Linear) else 0
            site = timm_mlp.mlp_site(mlp, path, MlpGeometry(hidden=width, **self._tokens(model)))
            if site is not None:
                yield site

    def _attention_site(self, model: Any, module: Any, path: str) -> Site:
        if type(module) not in (Attention, GraftedAttention):
            why = f"its attention is {type(module).__name__}, which this adapter does not read"
            heads = getattr(module, "num_heads", 1)
            unread = AttentionGeometry(**self._tokens(model), heads=heads, key_width=0, value_width=0)
            missing = dict.fromkeys(STAGES, why)
            return Site(path=path, kind="attention", geometry=unread, carriers={}, missing=missing)
        check_known(
            module,
            path,
            arguments=("x", "attn_mask", "is_causal", "args", "kwargs"),
            children=("qkv", "q_norm", "k_norm", "attn_drop", "norm", "gate", "proj", "proj_drop"),
        )
        geometry = AttentionGeometry(
            **self._tokens(model),
            heads=module.num_heads,
            key_width=module.head_dim,
            value_width=module.head_dim,
            rows=fused_rows(module, "qkv", heads=module.num_heads),
            query_key_parameters=own_parameters(module, "q_norm", "k_norm"),
        )
        stages: tuple[Stage, ...] = ("mix", "weights", "heads", "tokens", "attn.end")
        return Site(
            path=path,
            kind="attention",
            geometry=geometry,
            carriers=dict.fromkeys(stages, path),
            missing={"attn.window": "its attention has no windows; use scope=image"},
        )

    @staticmethod
    def _tokens(model: Any) -> dict[str, Any]:
        """The part of the geometry that all sites of a ViT share."""
        prefix, grid = model.num_prefix_tokens, model.patch_embed.grid_size
        return {
            "dim": model.embed_dim,
            "tokens": None if grid is None else prefix + grid[0] * grid[1],
            "prefix_tokens": prefix,
            "class_token": getattr(model, "cls_token", None) is not None,
            "grid": None if grid is None else tuple(grid),
        }

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        channels = model.patch_embed.proj.in_channels
        return random_images(model, (channels, *(model.patch_embed.img_size or (224, 224))), batch=batch)

    def fold(self, model: Any) -> HostFold:
        """LayerScale of all blocks into the layers before: diag(gamma) (W x + b) = (diag(gamma) W) x + diag(gamma) b."""
        blocks = [(path, block) for path, block in model.blocks.named_children() if type(block) is Block]
        pairs: list[tuple[LayerScale, nn.Linear]] = []
        for path, block in blocks:
            for name, scale in (("attn", block.ls1), ("mlp", block.ls2)):
                if not isinstance(scale, LayerScale):
                    continue
                layer = _last_linear(getattr(block, name))
                if isinstance(layer, str):
                    return HostFold(stayed=f"LayerScale: at blocks.{path}.{name} {layer}")
                pairs.append((scale, layer))
        if not pairs or len(blocks) != len(model.blocks):
            return HostFold()
        with torch.no_grad():
            for scale, layer in pairs:
                layer.weight.mul_(scale.gamma[:, None])
                if layer.bias is not None:
                    layer.bias.mul_(scale.gamma)
        for _, block in blocks:
            block.ls1 = block.ls2 = nn.Identity()
        return HostFold(
            folded="LayerScale of every block stands in the linear layers before it", arguments={"init_values": None}
        )

    def parts(self, model: nn.Module) -> Mapping[str, tuple[str, ...]]:
        return {"head": own_parameters(model, "head", "head_dist", "fc_norm"), "norms": norm_state(model)}


def _last_linear(module: Any) -> nn.Linear | str:
    """The layer whose output is what leaves an attention or an MLP, or why there is none."""
    ends: tuple[Stage, ...] = ("attn.end", "mlp.end")
    if isinstance(module, GraftedModule):
        if any(module.grafts_at(stage) for stage in ("tokens", *ends)):
            return "a graft stands between it and the linear layer before"
        for stage in ends:
            if reason := module.between(stage):
                return reason
    known = {Attention: "proj", GraftedAttention: "proj", **dict.fromkeys(timm_mlp.KNOWN, "fc2")}
    layer = getattr(module, known[type(module)], None) if type(module) in known else None
    return layer if isinstance(layer, nn.Linear) else "no linear layer stands before it"


register_host(TimmViT())
