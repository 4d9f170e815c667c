"""torchvision's VisionTransformer: class token, torch's own attention, a dropout of the block behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, cast

from torch import Tensor, nn
from torchvision.models.vision_transformer import EncoderBlock, VisionTransformer

from attngraft.attention import CLASS, GraftedModule, plain_class
from attngraft.errors import HostError
from attngraft.hosts.adapter import HostAdapter, Site, check_known, norm_state, own_state, random_images
from attngraft.hosts.registry import register_host
from attngraft.hosts.torch_nn.attention import KNOWN, GraftedMultiheadAttention, attention_site
from attngraft.hosts.torchvision import mlp


class GraftedEncoderBlock(GraftedModule, EncoderBlock):
    """`torchvision.models.vision_transformer.EncoderBlock`, which leaves its dropout to an attention with grafts: they may
    stand behind it."""

    @property
    def in_use(self) -> bool:
        attention = self.self_attention
        return isinstance(attention, GraftedMultiheadAttention) and bool(attention.grafts)

    def forward(self, input: Tensor) -> Tensor:
        """As the host's."""
        if not isinstance(self.self_attention, GraftedMultiheadAttention):
            return EncoderBlock.forward(self, input)
        x = self.ln_1(input)
        x = self.self_attention(x, x, x, need_weights=False, drop=self.dropout)[0] + input
        return cast(Tensor, x + self.mlp(self.ln_2(x)))


class TorchvisionViT(HostAdapter):
    """Sites `encoder.layers.encoder_layer_<i>.self_attention` and `.mlp`."""

    name = "torchvision.vit"
    summary = "torchvision VisionTransformer of any size"
    patched: ClassVar = {
        nn.MultiheadAttention: GraftedMultiheadAttention,
        EncoderBlock: GraftedEncoderBlock,
        **mlp.PATCHED,
    }

    def recognizes(self, model: nn.Module) -> bool:
        return type(model) is VisionTransformer

    def sites(self, model: Any) -> list[Site]:
        return list(self._sites(model))

    def _sites(self, model: Any) -> Iterator[Site]:
        side = model.image_size // model.patch_size
        known = {
            "tokens": 1 + side**2,
            "prefix": CLASS,
            "grid": (side, side),
            "init": "xavier_uniform",
        }
        for name, block in model.encoder.layers.named_children():
            path = f"encoder.layers.{name}"
            if plain_class(block) is not EncoderBlock or type(block.self_attention) not in KNOWN:
                raise HostError(
                    f"{path} is a {type(block).__name__}, which attngraft does not know; it knows EncoderBlock"
                )
            children = ("ln_1", "self_attention", "dropout", "ln_2", "mlp")
            check_known(block, path, arguments=("input",), children=children)
            attention = f"{path}.self_attention"
            yield attention_site(block.self_attention, attention, ending=(path,), **known)
            yield from mlp.mlp_sites(block.mlp, f"{path}.mlp", dim=model.hidden_dim, **known)

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        return random_images(model, (3, model.image_size, model.image_size), batch=batch)

    def parts(self, model: nn.Module) -> Mapping[str, tuple[str, ...]]:
        return {"head": own_state(model, "heads"), "norms": norm_state(model)}


register_host(TorchvisionViT())
