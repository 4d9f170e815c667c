"""A ViT of eight blocks and one half of a block more: attention, or an MLP (CB, Fig. 2).

| name | what stands behind the blocks | parameters, 1000 classes |
|---|---|---|
| `vit_tiny_patch16_224_extra_attention` | x + MSA(norm(x)) | 148,608 more than eight blocks |
| `vit_tiny_patch16_224_extra_mlp` | x + MLP(norm(x)) | 296,256 more |

The paper asks which of the two a shallow ViT learns more from. Sizes are ViT-Ti's; every argument of timm's class is free.
The blocks are a host's as ever; what is added is none of their sites.
"""

from __future__ import annotations

from typing import Any, cast

from timm.layers import Attention, DropPath, LayerNorm, Mlp
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.vision_transformer import VisionTransformer, init_weights_vit_timm
from torch import Tensor, nn

from attngraft.models.uniform_vit import CONFIG

default_cfgs = generate_default_cfgs({f"vit_tiny_patch16_224_extra_{half}": CONFIG for half in ("attention", "mlp")})


class HalfBlock(nn.Module):
    """x + DropPath(branch(norm(x))): one residual branch of a block.

    Args:
        dim: C, width of the tokens.
        branch: what the branch does, tokens (B, N, C) to tokens.
        drop_path: the share of examples whose branch is left out in training.
    """

    def __init__(self, dim: int, branch: nn.Module, *, drop_path: float = 0.0) -> None:
        super().__init__()
        self.norm = LayerNorm(dim, eps=1e-6)
        self.branch = branch
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(self, x: Tensor, **masks: Any) -> Tensor:
        if any(mask is not None for mask in masks.values()):
            raise ValueError("HalfBlock takes no masks")
        return cast(Tensor, x + self.drop_path(self.branch(self.norm(x))))


def _vit(variant: str, half: str, *, pretrained: bool, **kwargs: Any) -> VisionTransformer:
    if pretrained:
        raise ValueError(f"{variant} has no published weights; make it with pretrained=False")
    arguments: dict[str, Any] = {"patch_size": 16, "embed_dim": 192, "depth": 8, "num_heads": 3} | kwargs
    model = cast(VisionTransformer, build_model_with_cfg(VisionTransformer, variant, False, **arguments))
    dim, heads, bias = arguments["embed_dim"], arguments["num_heads"], arguments.get("qkv_bias", True)
    branch: nn.Module = (
        Attention(dim, num_heads=heads, qkv_bias=bias)
        if half == "attention"
        else Mlp(dim, int(dim * arguments.get("mlp_ratio", 4.0)))
    )
    extra = HalfBlock(dim, branch, drop_path=arguments.get("drop_path_rate", 0.0))
    for module in extra.modules():
        init_weights_vit_timm(module)
    model.blocks.append(extra)
    return model


@register_model
def vit_tiny_patch16_224_extra_attention(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """Eight blocks of ViT-Ti/16 and one residual attention (CB, Fig. 2, "MSA")."""
    return _vit("vit_tiny_patch16_224_extra_attention", "attention", pretrained=pretrained, **kwargs)


@register_model
def vit_tiny_patch16_224_extra_mlp(pretrained: bool = False, **kwargs: Any) -> VisionTransformer:
    """Eight blocks of ViT-Ti/16 and one residual MLP (CB, Fig. 2, "MLP")."""
    return _vit("vit_tiny_patch16_224_extra_mlp", "mlp", pretrained=pretrained, **kwargs)
