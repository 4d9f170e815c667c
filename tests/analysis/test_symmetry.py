"""Both directions of a layer, compared."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import attngraft
from attngraft.analysis.symmetry import symmetry
from attngraft.errors import UsageError


def test_unrelated_maps_agree_by_chance() -> None:
    torch.manual_seed(0)
    found = symmetry(torch.randn(8, 2, 16, 100).softmax(-1), torch.randn(8, 2, 100, 16).softmax(-1), k=20)
    assert found.chance == 0.2
    assert (found.agreement - 0.2).abs().max() < 0.03
    assert found.correlation.abs().max() < 0.03


def test_one_map_read_both_ways_agrees() -> None:
    torch.manual_seed(0)
    ours = torch.randn(2, 3, 4, 30).softmax(-1)
    found = symmetry(ours, ours.transpose(-2, -1))
    torch.testing.assert_close(found.correlation, torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(found.agreement, torch.ones(3, dtype=torch.float64))
    assert found.chance == 0.1


def test_correlation_is_pearsons() -> None:
    torch.manual_seed(0)
    ours, theirs = torch.rand(1, 1, 3, 9), torch.rand(1, 1, 9, 3)
    rows = [np.corrcoef(ours[0, 0, m], theirs[0, 0, :, m])[0, 1] for m in range(3)]
    assert symmetry(ours, theirs).correlation.item() == pytest.approx(np.mean(rows))


def test_both_directions_of_one_matrix_of_scores_have_much_in_common() -> None:
    torch.manual_seed(0)
    one, other = (3 * torch.randn(4, 2, 16, 50) for _ in range(2))
    shared = symmetry(one.softmax(-1), one.transpose(-2, -1).softmax(-1))
    apart = symmetry(one.softmax(-1), other.transpose(-2, -1).softmax(-1))
    assert (shared.correlation > 0.5).all()
    assert (apart.correlation < 0.1).all()
    assert (shared.agreement > 3 * apart.agreement).all()


def test_the_maps_of_a_model_are_compared_layer_by_layer() -> None:
    model = attngraft.create_model("bixt_ti_l64_p16", img_size=64).eval()
    with torch.no_grad(), attngraft.record(model, {"latents_to_tokens", "tokens_to_latents"}) as recording:
        model(torch.randn(2, 3, 64, 64))
    layers = [recording[site] for site in recording if len(recording[site]) == 2]
    assert len(layers) == 11  # the last one is one-sided
    for layer in layers:
        found = symmetry(layer["latents_to_tokens"], layer["tokens_to_latents"], k=4)
        assert found.correlation.shape == found.agreement.shape == (6,)
        assert found.chance == 0.25


def test_maps_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(UsageError, match="not both directions of one layer"):
        symmetry(torch.rand(1, 1, 3, 9), torch.rand(1, 1, 3, 9))
    with pytest.raises(UsageError, match="k = 10 is not between 1 and the 9"):
        symmetry(torch.rand(1, 1, 3, 9), torch.rand(1, 1, 9, 3), k=10)


def test_ties_are_broken_at_random() -> None:
    uniform = torch.full((1, 1, 2, 8), 1 / 8)
    assert symmetry(uniform, uniform.transpose(-2, -1), k=2).agreement.item() == pytest.approx(2 / 8)
    ours = torch.tensor([5.0, 1, 1, 1]).view(1, 1, 1, 4)  # the first, and one of the others
    theirs = torch.tensor([4.0, 3, 2, 1]).view(1, 1, 4, 1)  # the first two
    assert symmetry(ours, theirs, k=2).agreement.item() == pytest.approx((1 + 1 / 3) / 2)
