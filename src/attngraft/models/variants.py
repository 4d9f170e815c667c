"""Variants of timm's ViT and MLP-Mixer by name; every argument of timm's classes can be overridden.

| name | model | parameters, 1000 classes |
|---|---|---|
| `vit_small_patch16_224_cb_replaced` | ViT-S/16 whose last of 6 heads is uniform (CB Table 1, "Replc.") | 21,459,304 |
| `vit_small_patch16_224_cb_compensated` | the same with an MLP hidden width of 1536 + 64 ("Comp.") | 22,049,896 |
| `vit_small_patch16_224_cb_appended` | width 448, 7 heads of 64, the last one uniform ("Att.") | 29,164,712 |
| `vit_tiny_patch16_224_extra_attention` | 8 blocks of ViT-Ti/16, then x + MSA(norm(x)) (CB, Fig. 2) | +148,608 |
| `vit_tiny_patch16_224_extra_mlp` | 8 blocks of ViT-Ti/16, then x + MLP(norm(x)) (CB, Fig. 2) | +296,256 |
| `small_mixer` | Mixer with 4 blocks of width 64 on 8 x 8 patches of a 32 x 32 image | |

A uniform head averages all values and has no queries or keys. The paper prints 21M, 22M and 29M, but not how the size was
compensated or the head appended; the models here fit these numbers (queries and keys of a head cost as much as `head width`
hidden units). The extra half blocks are not sites of the host.
"""

from typing import Any, cast

from timm.data import IMAGENET_INCEPTION_MEAN, IMAGENET_INCEPTION_STD
from timm.layers import Attention, DropPath, LayerNorm, Mlp
from timm.models import generate_default_cfgs
from timm.models.vision_transformer import VisionTransformer, init_weights_vit_timm
from torch import Tensor, nn

from attngraft.attention.tracing import fx_leaf
from attngraft.mechanisms.context_broadcast.layer import UniformHeadAttention
from attngraft.models.timm_model import config, register


class HalfBlock(nn.Module):
    """x + DropPath(branch(norm(x))): one residual branch of a block.

    Args:
        dim: C, width of the tokens.
        branch: tokens (B, N, C) to tokens.
        drop_path: drop path rate.
    """

    def __init__(self, dim: int, branch: nn.Module, *, drop_path: float = 0.0) -> None:
        super().__init__()
        self.norm = LayerNorm(dim, eps=1e-6)
        self.branch = branch
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    @fx_leaf
    def forward(self, x: Tensor, **masks: Any) -> Tensor:
        if any(mask is not None and mask is not False for mask in masks.values()):  # False: is_causal of a traced graph
            raise ValueError("HalfBlock takes no masks; call the model without a mask")
        return cast(Tensor, x + self.drop_path(self.branch(self.norm(x))))


def vit_with_extra_half(half: str, **arguments: Any) -> VisionTransformer:
    """Create timm's ViT followed by a half block, "attention" or "mlp"."""
    model = VisionTransformer(**arguments)
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
    model.feature_info.append({**model.feature_info[-1], "module": f"blocks.{len(model.blocks) - 1}"})
    return model


_VIT, _HALF = "timm.models.vision_transformer:VisionTransformer", f"{__name__}:vit_with_extra_half"
_SMALL = {"patch_size": 16, "embed_dim": 384, "depth": 12, "num_heads": 6, "attn_layer": UniformHeadAttention}
_TINY = {"patch_size": 16, "embed_dim": 192, "depth": 8, "num_heads": 3}
_MIXER = {"img_size": 32, "patch_size": 4, "embed_dim": 64, "num_blocks": 4}
_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit_small_patch16_224_cb_replaced": (_VIT, _SMALL),
    "vit_small_patch16_224_cb_compensated": (_VIT, {**_SMALL, "mlp_ratio": (4 * 384 + 64) / 384}),
    "vit_small_patch16_224_cb_appended": (_VIT, {**_SMALL, "embed_dim": 448, "num_heads": 7}),
    "vit_tiny_patch16_224_extra_attention": (_HALF, {**_TINY, "half": "attention"}),
    "vit_tiny_patch16_224_extra_mlp": (_HALF, {**_TINY, "half": "mlp"}),
    "small_mixer": ("timm.models.mlp_mixer:MlpMixer", _MIXER),
}
_VIT_CONFIG = config(fixed_input_size=True, first_conv="patch_embed.proj")
_MIXER_CONFIG = config(
    32, fixed_input_size=True, first_conv="stem.proj", mean=IMAGENET_INCEPTION_MEAN, std=IMAGENET_INCEPTION_STD
)
default_cfgs = generate_default_cfgs(
    {name: _MIXER_CONFIG if name == "small_mixer" else _VIT_CONFIG for name in _MODELS}
)
for _name, (_network, _arguments) in _MODELS.items():
    register(_name, _network, _arguments, module=__name__)
