"""The correctness gate in front of every timing."""

from __future__ import annotations

import pytest
import torch

from attngraft.bench.gate import GateError, check_outputs
from attngraft.errors import AttngraftError


def test_equal_outputs_pass_and_wrong_ones_are_named():
    reference = {"logits": torch.ones(2, 3), "rest": [torch.zeros(1)]}
    check_outputs({"logits": torch.ones(2, 3) + 1e-7, "rest": [torch.zeros(1)]}, reference, what="cb")
    with pytest.raises(GateError, match="cb: not timed") as caught:
        check_outputs({"logits": torch.ones(2, 3) + 1e-2, "rest": [torch.zeros(1)]}, reference, what="cb")
    assert isinstance(caught.value, AttngraftError)


def test_zero_tolerance_means_bit_for_bit():
    with pytest.raises(GateError):
        check_outputs(torch.tensor([1.0 + 1e-7]), torch.tensor([1.0]), what="patched", rtol=0, atol=0)


def test_shape_and_type_matter():
    for wrong in (torch.ones(3), torch.ones(2, dtype=torch.float64)):
        with pytest.raises(GateError):
            check_outputs(wrong, torch.ones(2), what="x")
