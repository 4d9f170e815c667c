"""Both directions of a layer, compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

import attngraft
from attngraft.analysis.symmetry import ANALYSIS, symmetry
from attngraft.errors import RecordError, UsageError
from attngraft.results.analysis import Curves
from tests.analysis.requests import bixt, inputs, make_request, rows_of, run_and_check, vit


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
    with pytest.raises(UsageError, match="maps must be"):
        symmetry(torch.rand(1, 1, 3, 9), torch.rand(1, 1, 3, 9))
    with pytest.raises(UsageError, match="k must be between 1 and .* 9; got 10"):
        symmetry(torch.rand(1, 1, 3, 9), torch.rand(1, 1, 9, 3), k=10)


def test_ties_are_broken_at_random() -> None:
    uniform = torch.full((1, 1, 2, 8), 1 / 8)
    assert symmetry(uniform, uniform.transpose(-2, -1), k=2).agreement.item() == pytest.approx(2 / 8)
    ours = torch.tensor([5.0, 1, 1, 1]).view(1, 1, 1, 4)  # the first, and one of the others
    theirs = torch.tensor([4.0, 3, 2, 1]).view(1, 1, 4, 1)  # the first two
    assert symmetry(ours, theirs, k=2).agreement.item() == pytest.approx((1 + 1 / 3) / 2)


LATENTS, TOKENS = "latents_to_tokens", "tokens_to_latents"
SITE = "blocks.{}.cross_attention_latents_token.attn"


def compared(ours: torch.Tensor, theirs: torch.Tensor, k: int) -> tuple[float, float]:
    """Of (B, M, N) and (B, N, M), map by map."""
    correlations, agreements = [], []
    for image in range(len(ours)):
        for latent in range(ours.shape[1]):
            a, b = ours[image, latent].double().numpy(), theirs[image, :, latent].double().numpy()
            correlations.append(np.corrcoef(a, b)[0, 1])
            agreements.append(len(set(np.argsort(a)[-k:]) & set(np.argsort(b)[-k:])) / k)
    return float(np.mean(correlations)), float(np.mean(agreements))


def test_against_the_formulas(tmp_path: Path) -> None:
    given = make_request(bixt(img_size=64), bixt("sequential_d11", img_size=64), vit(), names=("BiXT", "apart", "ViT"))
    result = run_and_check(ANALYSIS, given, tmp_path)
    for place, name, other in ((0, "BiXT", ""), (1, "apart", "_pat")):
        model = given.models[place].model
        with torch.no_grad(), attngraft.record(model) as recording:
            model(inputs(given, [0, 2, 4, 5, 7, 9], place))  # in batches of 4 and 2
        assert {row["layer"] for row in rows_of(result, model=name)} == {SITE.format(0), SITE.format(1)}
        for layer in range(2):
            ours = recording[SITE.format(layer)]["latents_to_tokens"]
            theirs = recording[SITE.format(layer) + other]["tokens_to_latents"]
            heads = [compared(ours[:, head], theirs[:, head], 6) for head in range(2)]
            for head, (correlation, agreement) in enumerate(heads):
                (row,) = rows_of(result, model=name, layer=SITE.format(layer), head=str(head))
                assert (row["correlation"], row["agreement"]) == pytest.approx((correlation, agreement), abs=1e-4)
                assert row["chance"] == 6 / 64
            (row,) = rows_of(result, model=name, layer=SITE.format(layer), head="mean")
            assert row["correlation"] == pytest.approx((heads[0][0] + heads[1][0]) / 2, abs=1e-4)
        ours, theirs = (recording[SITE.format(0) + end][what] for end, what in (("", LATENTS), (other, TOKENS)))
        by_image = [[compared(ours[i : i + 1, h], theirs[i : i + 1, h], 6)[1] for h in range(2)] for i in range(6)]
        means = np.mean(by_image, 1)
        half = stats.t.ppf(0.975, 5) * means.std(ddof=1) / 6**0.5
        (row,) = rows_of(result, model=name, layer=SITE.format(0), head="mean")
        expected = (means.mean() - half, means.mean() + half)
        assert (row["agreement low"], row["agreement high"]) == pytest.approx(expected, abs=1e-4)
    assert list(result.left_out) == ["ViT"]
    for panel, chance in zip(result.panels, (0.0, 6 / 64), strict=True):
        assert isinstance(panel, Curves)
        *lines, dotted = panel.lines
        assert [line.subject for line in lines] == [0, 1]
        assert all(low < y < high for line in lines for low, y, high in zip(line.low, line.y, line.high, strict=True))
        assert (dotted.subject, dotted.y) == (None, [chance, chance])
        assert panel.ticks == ["0", "1"]
    assert result.numbers["BiXT: mean correlation over layers"] > result.numbers["apart: mean correlation over layers"]


def test_one_direction_is_not_enough() -> None:
    with pytest.raises(RecordError, match="attend to each other"):
        ANALYSIS(make_request(vit()))
    with pytest.raises(RecordError, match="attend to each other"):
        ANALYSIS(make_request(bixt(), sites="blocks.2"))
