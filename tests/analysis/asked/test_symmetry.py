"""Both directions of BiXT's layers, against the formulas."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

import attngraft
from attngraft.analysis.asked import symmetry
from attngraft.errors import RecordError
from attngraft.results.analysis import Curves
from tests.analysis.asked.asking import ask, found, inputs, rows_of, vit
from tests.analysis.asked.bixts import bixt

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
    given = ask(bixt(img_size=64), bixt("sequential_d11", img_size=64), vit(), names=("BiXT", "apart", "ViT"))
    finding = found(symmetry.ANALYSIS, given, tmp_path)
    for place, name, other in ((0, "BiXT", ""), (1, "apart", "_pat")):
        model = given.subjects[place].model
        with torch.no_grad(), attngraft.record(model) as recording:
            model(inputs(given, [0, 2, 4, 5, 7, 9], place))  # in batches of 4 and 2
        assert {row["layer"] for row in rows_of(finding, model=name)} == {SITE.format(0), SITE.format(1)}
        for layer in range(2):
            ours = recording[SITE.format(layer)]["latents_to_tokens"]
            theirs = recording[SITE.format(layer) + other]["tokens_to_latents"]
            heads = [compared(ours[:, head], theirs[:, head], 6) for head in range(2)]
            for head, (correlation, agreement) in enumerate(heads):
                (row,) = rows_of(finding, model=name, layer=SITE.format(layer), head=str(head))
                assert (row["correlation"], row["agreement"]) == pytest.approx((correlation, agreement), abs=1e-4)
                assert row["chance"] == 6 / 64
            (row,) = rows_of(finding, model=name, layer=SITE.format(layer), head="mean")
            assert row["correlation"] == pytest.approx((heads[0][0] + heads[1][0]) / 2, abs=1e-4)
        ours, theirs = (recording[SITE.format(0) + end][what] for end, what in (("", LATENTS), (other, TOKENS)))
        by_image = [[compared(ours[i : i + 1, h], theirs[i : i + 1, h], 6)[1] for h in range(2)] for i in range(6)]
        means = np.mean(by_image, 1)
        half = stats.t.ppf(0.975, 5) * means.std(ddof=1) / 6**0.5
        (row,) = rows_of(finding, model=name, layer=SITE.format(0), head="mean")
        expected = (means.mean() - half, means.mean() + half)
        assert (row["agreement low"], row["agreement high"]) == pytest.approx(expected, abs=1e-4)
    assert list(finding.left_out) == ["ViT"]
    for panel, chance in zip(finding.panels, (0.0, 6 / 64), strict=True):
        assert isinstance(panel, Curves)
        *lines, dotted = panel.lines
        assert [line.subject for line in lines] == [0, 1]
        assert all(low < y < high for line in lines for low, y, high in zip(line.low, line.y, line.high, strict=True))
        assert (dotted.subject, dotted.y) == (None, [chance, chance])
        assert panel.ticks == ["0", "1"]
    assert (
        finding.numbers["BiXT: mean correlation over layers"] > finding.numbers["apart: mean correlation over layers"]
    )


def test_one_direction_is_not_enough() -> None:
    with pytest.raises(RecordError, match="look at each other"):
        symmetry.ANALYSIS(ask(vit()))
    with pytest.raises(RecordError, match="look at each other"):
        symmetry.ANALYSIS(ask(bixt(), sites="blocks.2"))
