"""Contract of The vision towers of Hugging Face's CLIP and SigLIP."""

from __future__ import annotations

import pytest
from torch import nn

from tests.contract.hf.hosts import TINY, TransformersContract


class TestClip(TransformersContract):
    """CLIP, with a class token."""

    def made(self) -> nn.Module:
        from transformers import CLIPVisionConfig, CLIPVisionModel

        return CLIPVisionModel(CLIPVisionConfig(**TINY))


@pytest.mark.slow
class TestSiglip(TransformersContract):
    """No class token; the attention pooling head is not a site."""

    def made(self) -> nn.Module:
        from transformers import SiglipVisionConfig, SiglipVisionModel

        return SiglipVisionModel(SiglipVisionConfig(**TINY, vision_use_head=False))
