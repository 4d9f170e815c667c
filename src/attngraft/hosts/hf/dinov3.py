"""Hugging Face's DINOv3 ViT: rotary positions for patches, none for registers and the class token."""

from typing import Any, ClassVar

from transformers.models.dinov3_vit import modeling_dinov3_vit as dinov3

from attngraft.attention import MlpEnds, prefix_names
from attngraft.hosts.family import ShapeProbe, Sites
from attngraft.hosts.hf.attention import RotarySite, ScalingSite, attention_site
from attngraft.hosts.hf.family import ImageFamily, image_tokens
from attngraft.hosts.hf.mlp import UpDownMlp, mlp_site
from attngraft.hosts.patched import patch_classes


class GraftedDINOv3ViTAttention(RotarySite, ScalingSite, dinov3.DINOv3ViTAttention):
    """`transformers.models.dinov3_vit.modeling_dinov3_vit.DINOv3ViTAttention`."""

    rotary = dinov3
    rate = "dropout"
    precise = False


def _sites(layer: Any, path: str, shapes: ShapeProbe) -> Sites:
    config = layer.attention.config
    fields = image_tokens(config, prefix=prefix_names(registers=config.num_register_tokens))
    yield attention_site(layer.attention, f"{path}.attention", arguments=("position_embeddings",), **fields)
    yield mlp_site(layer.mlp, f"{path}.mlp", **fields)


class TransformersDinov3(ImageFamily):
    """Sites `layer.<i>.attention` and `layer.<i>.mlp`."""

    name = "hf.dinov3"
    summary = "transformers DINOv3 ViTs, including backbones"
    patched: ClassVar = {
        dinov3.DINOv3ViTAttention: GraftedDINOv3ViTAttention,
        **patch_classes(UpDownMlp, dinov3.DINOv3ViTMLP, module=__name__),
        **patch_classes(MlpEnds, dinov3.DINOv3ViTGatedMLP, module=__name__),
    }
    models = (dinov3.DINOv3ViTModel, dinov3.DINOv3ViTBackbone)
    blocks: ClassVar = {dinov3.DINOv3ViTLayer: _sites}
    base_names = ("model",)
