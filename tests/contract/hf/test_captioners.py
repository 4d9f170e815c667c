"""Contract of Hugging Face's GPT-2, and of VisionEncoderDecoder with its decoders."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from tests.contract.hf.hosts import TINY, TINY_TEXT, Tokens, TransformersContract, off_zero
from tests.contract.hf.test_bert import CAUSAL

#: configuration of GPT-2, which uses other names
GPT2 = {
    "vocab_size": 40,
    "n_positions": 20,
    "n_embd": 24,
    "n_layer": 2,
    "n_head": 3,
    "n_inner": 48,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
#: grafts that GPT-2 accepts, as a causal decoder without the hook point `weights`
SPECS = [
    "toy_scale(start=0.5, stage=heads)",
    "horizontal + vertical",
    "toy_scale(start=0.5, stage='mlp.mid') + identity(stage='attn.end')",
]


class TestGPT2(TransformersContract):
    """GPT-2, whose projections have transposed weights."""

    specs: ClassVar = [*SPECS, *CAUSAL]
    refused: ClassVar = CAUSAL

    def made(self) -> nn.Module:
        from transformers import GPT2Config, GPT2Model

        return GPT2Model(GPT2Config(**GPT2, use_cache=False))


class Captioner(Tokens):
    """A captioner that returns only its logits, of fixed tokens."""

    def forward(self, inputs: Tensor, written: Tensor) -> Tensor:  # type: ignore[override]
        return self.model(inputs, decoder_input_ids=written, use_cache=False).logits


class TestVisionEncoderDecoder(TransformersContract):
    """ViT and BERT: two layers on each side, with cross-attention."""

    layers = 6
    mlps: ClassVar = 4
    specs: ClassVar = [*SPECS, "bisa(learned=true, norm=true)", "vertical + cb(at=both)", *CAUSAL]
    refused: ClassVar = CAUSAL
    where: ClassVar = dict.fromkeys(["bisa(learned=true, norm=true)", "vertical + cb(at=both)"], "encoder")

    def decoder(self) -> Any:
        from transformers import BertConfig

        return BertConfig(**TINY_TEXT)

    def encoder(self) -> Any:
        from transformers import ViTConfig

        return ViTConfig(**TINY)

    def made(self) -> nn.Module:
        from transformers import VisionEncoderDecoderConfig, VisionEncoderDecoderModel

        config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(self.encoder(), self.decoder())
        model = VisionEncoderDecoderModel(config)
        model.encoder.pooler = None
        return model

    def make(self) -> nn.Module:
        return off_zero(Captioner(self.made()))


@pytest.mark.slow
class TestVisionEncoderDecoderWithGPT2(TestVisionEncoderDecoder):
    """GPT-2 as the decoder."""

    def decoder(self) -> Any:
        from transformers import GPT2Config

        return GPT2Config(**GPT2)


@pytest.mark.slow
class TestVisionEncoderDecoderWithSwinAndRoberta(TestVisionEncoderDecoder):
    """Swin as the encoder, and RoBERTa as the decoder."""

    def encoder(self) -> Any:
        from transformers import SwinConfig

        sizes = {"image_size": 16, "patch_size": 2, "window_size": 4, "embed_dim": 12, "depths": [1, 1]}
        return SwinConfig(**sizes, num_heads=[2, 4], drop_path_rate=0.0)

    def decoder(self) -> Any:
        from transformers import RobertaConfig

        return RobertaConfig(**TINY_TEXT)


@pytest.mark.slow
class TestVisionEncoderDecoderWithDinov2(TestVisionEncoderDecoder):
    """DINOv2 as the encoder."""

    def encoder(self) -> Any:
        from transformers import Dinov2Config

        return Dinov2Config(**{name: size for name, size in TINY.items() if name != "intermediate_size"}, mlp_ratio=2)


@pytest.mark.parametrize("spec", [None, *SPECS])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@torch.no_grad()
def test_a_cache_changes_nothing(implementation: str, spec: str | None) -> None:
    """Of GPT-2 as the decoder of a captioner."""
    import attngraft
    from tests.contract.tester import randomize

    torch.manual_seed(0)
    model: Any = off_zero(TestVisionEncoderDecoderWithGPT2().made()).eval()
    model.set_attn_implementation(implementation)
    if spec is not None:
        attngraft.graft(model, spec)
        randomize(model, only_grafts=True)
    pixels = torch.randn(2, 3, 16, 16)
    options = {"num_beams": 3, "max_new_tokens": 6, "decoder_start_token_id": 1, "pad_token_id": 1}
    kept, again = (model.generate(pixels, **options, use_cache=use) for use in (True, False))
    assert torch.equal(kept, again)
    other = kept.clone()
    other[:, 3:] = 5
    found, changed = (model(pixels, decoder_input_ids=ids).logits for ids in (kept, other))
    torch.testing.assert_close(changed[:, :3], found[:, :3])
