"""torchvision's VisionTransformer: class token, torch's own attention, with dropout in the block."""

from typing import Any, ClassVar, cast

from torch import Tensor, nn
from torchvision.models.vision_transformer import EncoderBlock, VisionTransformer

from attngraft.attention import CLASS, GraftedModule, plain_class
from attngraft.errors import HostError
from attngraft.hosts.adapter import HostAdapter, Site, check_known, random_images
from attngraft.hosts.torch_nn.attention import GraftedMultiheadAttention, attention_site
from attngraft.hosts.torchvision import mlp


class GraftedEncoderBlock(GraftedModule, EncoderBlock):
    """`torchvision.models.vision_transformer.EncoderBlock` that passes its dropout to patched attention."""

    @property
    def in_use(self) -> bool:
        attention = self.self_attention
        return isinstance(attention, GraftedMultiheadAttention) and bool(attention.grafts)

    def forward(self, input: Tensor) -> Tensor:
        if not isinstance(self.self_attention, GraftedMultiheadAttention):
            return EncoderBlock.forward(self, input)
        x = self.ln_1(input)
        x = self.self_attention(x, x, x, need_weights=False, drop=self.dropout)[0] + input
        return cast(Tensor, x + self.mlp(self.ln_2(x)))


class TorchvisionViT(HostAdapter):
    """Sites `encoder.layers.encoder_layer_<i>.self_attention` and `.mlp`."""

    name = "torchvision.vit"
    summary = "torchvision VisionTransformer of any size"
    head_names = ("heads",)
    patched: ClassVar = {
        nn.MultiheadAttention: GraftedMultiheadAttention,
        EncoderBlock: GraftedEncoderBlock,
        **mlp.PATCHED,
    }

    def recognizes(self, model: nn.Module) -> bool:
        return type(model) is VisionTransformer

    def sites(self, model: Any) -> list[Site]:
        side = model.image_size // model.patch_size
        fields = {"tokens": 1 + side**2, "prefix": CLASS, "grid": (side, side), "init": "xavier_uniform"}
        sites: list[Site] = []
        for name, block in model.encoder.layers.named_children():
            path = f"encoder.layers.{name}"
            if plain_class(block) is not EncoderBlock or plain_class(block.self_attention) is not nn.MultiheadAttention:
                raise HostError(f"{path} is a {type(block).__name__}, which is not supported; only EncoderBlock is")
            children = ("ln_1", "self_attention", "dropout", "ln_2", "mlp")
            check_known(block, path, arguments=("input",), children=children)
            attention = f"{path}.self_attention"
            sites.append(attention_site(block.self_attention, attention, dropout_block=path, **fields))
            sites.extend(mlp.mlp_sites(block.mlp, f"{path}.mlp", dim=model.hidden_dim, **fields))
        return sites

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        return random_images(model, (3, model.image_size, model.image_size), batch=batch)
