"""The vision towers of Hugging Face's CLIP and SigLIP under the contract."""

from __future__ import annotations

import pytest
from torch import nn

from tests.contract.hf.hosts import TINY, TransformersContract


class TestClip(TransformersContract):
    """Class token."""

    def made(self) -> nn.Module:
        from transformers import CLIPVisionConfig, CLIPVisionModel

        return CLIPVisionModel(CLIPVisionConfig(**TINY))


@pytest.mark.slow
class TestSiglip(TransformersContract):
    """No class token; a head that attends, which is no site."""

    def made(self) -> nn.Module:
        from transformers import SiglipVisionConfig, SiglipVisionModel

        return SiglipVisionModel(SiglipVisionConfig(**TINY, vision_use_head=False))
