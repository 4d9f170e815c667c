"""Checks that several models of transformers share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import attngraft
from tests.seeding import seed


def check_dropout_is_the_hosts(model: Any, inputs: Tensor, stages: Sequence[str]) -> None:
    """Check that grafts at `stages` that change nothing leave the dropout masks unchanged in training mode."""

    def logits() -> Tensor:
        seed(1)
        return model(inputs).logits

    expected = logits()
    attngraft.graft(model, " + ".join(f"identity(stage='{stage}')" for stage in stages))
    assert torch.equal(logits(), expected)
    assert not torch.equal(logits(), model(inputs).logits)


def check_a_mask_is_refused(model: Any, inputs: Tensor, mask: Tensor, spec: str) -> None:
    """Check that a padding mask is refused while `spec` is grafted, but not a mask that hides nothing."""
    plain = {name: type(module) for name, module in model.named_modules()}
    attngraft.graft(model, spec)
    with pytest.raises(attngraft.AttngraftError, match="does not support this call with a padding mask"):
        model(inputs, attention_mask=mask)
    model(inputs, attention_mask=torch.ones_like(mask))
    attngraft.ungraft(model)
    assert {name: type(module) for name, module in model.named_modules()} == plain
    model(inputs, attention_mask=mask)
