"""Base of the contracts for transformers: a model that returns one tensor, with sdpa and eager attention."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from packaging.version import Version
from torch import Tensor, nn

from tests.contract.stirring import stir
from tests.contract.tester import ONE_PER_STAGE, HostContract

transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'attngraft[hf]'")


def since(version: str) -> pytest.MarkDecorator:
    """Skip a test on releases before `version`, whose module layout is not supported."""
    older = Version(transformers.__version__) < Version(version)
    return pytest.mark.skipif(older, reason=f"its sites are read from transformers {version} on")


TINY = {
    "image_size": 16,
    "patch_size": 8,
    "num_channels": 3,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 48,
}

#: configuration of BERT and related text models
TINY_TEXT = {
    "vocab_size": 40,
    "max_position_embeddings": 20,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 48,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


class Tokens(nn.Module):
    """A model that returns only the output tokens of a model of transformers."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        return self.model(inputs).last_hidden_state

    def set_grad_checkpointing(self, enable: bool) -> None:
        assert enable
        self.model.gradient_checkpointing_enable()


def off_zero(model: nn.Module) -> nn.Module:
    """Perturb trainable parameters, because new models have small weights and zero biases."""
    return stir(model, lambda _, parameter: parameter.requires_grad, by=0.1)


class TransformersContract(HostContract):
    """Subclass with `made`."""

    layers = 2
    specs: ClassVar[list[str]] = ONE_PER_STAGE
    #: grafts that need windows are refused, as in timm's ViTs
    refused: ClassVar[dict[str, str]] = {"cb(at=attention, scope=window)": "no windows"}

    def made(self) -> nn.Module:
        """Return a tiny model."""
        raise NotImplementedError

    def make(self) -> nn.Module:
        return off_zero(Tokens(self.made()))

    def set_fused(self, host: Any, fused: bool) -> None:
        host.model.set_attn_implementation("sdpa" if fused else "eager")
