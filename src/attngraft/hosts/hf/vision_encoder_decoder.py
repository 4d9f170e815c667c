"""Hugging Face's VisionEncoderDecoder: any image encoder and text decoder, with the sites of both."""

from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import VisionEncoderDecoderModel

from attngraft.attention import plain_class
from attngraft.hosts.adapter import Site, random_images
from attngraft.hosts.family import BlockFamily
from attngraft.hosts.hf.families import FAMILIES
from attngraft.hosts.hf.family import pair, random_ids
from attngraft.hosts.sites import refused_site

_PARTS = tuple(FAMILIES[f"hf.{name}"].adapter for name in ("vit", "dinov2", "swin", "bert", "roberta", "gpt2"))


class VisionEncoderDecoder(BlockFamily):
    """Sites of the encoder, below `encoder`, and of the decoder, below `decoder`."""

    name = "hf.vision_encoder_decoder"
    summary = "transformers VisionEncoderDecoder: ViT, DeiT, DINOv2 or Swin with BERT, RoBERTa or GPT-2 as the decoder"
    models = (VisionEncoderDecoderModel,)
    blocks: ClassVar = {kind: reader for part in _PARTS for kind, reader in part.blocks.items()}
    patched: ClassVar = {kind: template for part in _PARTS for kind, template in part.patched.items()}
    head_names = ("decoder.cls", "decoder.lm_head")

    def sites(self, model: nn.Module) -> list[Site]:
        found = super().sites(model)
        for name in ("encoder", "decoder"):
            if not any(site.path.startswith(f"{name}.") for site in found):
                kind = plain_class(model.get_submodule(name)).__name__
                reason = f"its {name}, {kind}, is not supported; supported: {self.summary.partition(': ')[2]}"
                found.append(refused_site(name, reason, dim=model.get_submodule(name).config.hidden_size))  # type: ignore[union-attr]
        return found

    def example_inputs(self, model: Any, *, batch: int) -> tuple[Tensor, ...]:
        config = model.encoder.config
        (images,) = random_images(model, (config.num_channels, *pair(config.image_size)), batch=batch)
        return images, random_ids(model.decoder, batch=batch)
