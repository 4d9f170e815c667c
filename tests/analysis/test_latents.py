"""Where latents look, against maps that are recorded here."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import attngraft
from attngraft.analysis import latents
from attngraft.errors import RecordError
from tests.analysis.requests import bixt, inputs, make_request, rows_of, run_and_check, vit

SITE = "blocks.{}.cross_attention_latents_token.attn"
TO_TOKENS, TO_LATENTS = "latents to tokens", "tokens to latents"


def test_chosen_latents_through_the_layers(tmp_path: Path) -> None:
    given = make_request(bixt(), vit(), names=("BiXT", "ViT"))
    result = run_and_check(latents.ANALYSIS, given, tmp_path)
    model = given.models[0].model
    with torch.no_grad(), attngraft.record(model) as recording:
        model(inputs(given, [9]))
    for layer in range(3):
        looks = recording[SITE.format(layer)]["latents_to_tokens"][0].mean(0)  # (latents, tokens)
        for latent in (0, 2, 5, 7):
            chosen = {"image": "noise/9", "layer": SITE.format(layer), "latent": latent, "head": "mean"}
            rows = rows_of(result, direction=TO_TOKENS, **chosen)
            assert [row["share"] for row in rows] == pytest.approx(looks[latent].tolist(), rel=1e-4)
            assert [(row["row"], row["column"]) for row in rows] == [(i // 4, i % 4) for i in range(16)]
            if layer < 2:  # the last layer is one-sided
                back = recording[SITE.format(layer)]["tokens_to_latents"][0].mean(0)[:, latent]
                shares = [row["share"] for row in rows_of(result, direction=TO_LATENTS, **chosen)]
                assert shares == pytest.approx(back.tolist(), rel=1e-4)
    assert {row["latent"] for row in rows_of(result, layer=SITE.format(1))} == {0, 2, 5, 7}
    assert {row["latent"] for row in rows_of(result, image="noise/9")} == {0, 2, 5, 7}
    assert {row["latent"] for row in rows_of(result, layer=SITE.format(2), image="noise/0")} == set(range(8))
    first, back, second, _, every = result.panels
    assert [row.name for row in back.rows] == [row.name for row in first.rows]
    assert [each.caption for each in back.rows[1].pictures] == ["layer 0", "layer 1"]
    assert [row.name for row in first.rows] == ["image", "latent 0", "latent 2", "latent 5", "latent 7"]
    assert [each.caption for each in second.rows[1].pictures] == ["layer 0", "layer 1", "layer 2"]
    assert [(row.name, len(row.pictures)) for row in every.rows] == [("latents 0 to 7", 8)]
    assert torch.tensor(every.rows[0].pictures[3].values).shape == (4, 4)
    assert "BiXT" in result.left_out["ViT"]


def test_the_iterative_baselines_latents() -> None:
    """None of its sites has the tokens alone: the cross-attention says where its keys stand."""
    given = make_request(bixt("iterative_sa5_d8_k2"), names=["iterative"], shown=1)
    result = latents.ANALYSIS(given)
    model = given.models[0].model
    with torch.no_grad(), attngraft.record(model) as recording:
        model(inputs(given, [0]))
    sites = [site for site in recording if "latents_to_tokens" in recording[site]]
    assert sites
    for site in sites:
        looks = recording[site]["latents_to_tokens"][0].mean(0)[0]
        assert [row["share"] for row in rows_of(result, layer=site, latent=0)] == pytest.approx(
            looks.tolist(), rel=1e-4
        )
        assert torch.equal(recording.keys_on_map(site)[0].mean(0)[0].flatten(), looks)


def test_where_the_tokens_of_the_sequential_model_look() -> None:
    """Two layers compute the directions; each is drawn over its own layers."""
    given = make_request(bixt("sequential_d11"), names=["sequential"], shown=1)
    result = latents.ANALYSIS(given)
    model = given.models[0].model
    with torch.no_grad(), attngraft.record(model) as recording:
        model(inputs(given, [0]))
    assert {row["layer"] for row in rows_of(result, direction=TO_LATENTS)} == {f"{SITE.format(i)}_pat" for i in (0, 1)}
    back = recording[f"{SITE.format(1)}_pat"]["tokens_to_latents"][0].mean(0)  # (tokens, latents)
    for latent in (0, 7):
        rows = rows_of(result, direction=TO_LATENTS, layer=f"{SITE.format(1)}_pat", latent=latent)
        assert [row["share"] for row in rows] == pytest.approx(back[:, latent].tolist(), rel=1e-4)
        assert [(row["row"], row["column"]) for row in rows] == [(i // 4, i % 4) for i in range(16)]
    titles = [panel.title.partition(",")[0] for panel in result.panels[:2]]
    assert titles == [f"sequential: {direction}" for direction in (TO_TOKENS, TO_LATENTS)]


def test_head_by_head_of_the_last_layer() -> None:
    given = make_request(bixt(num_latents=70), names=["BiXT"], heads=True, shown=1, sites="blocks.2")
    result = latents.ANALYSIS(given)
    through, first, second = result.panels
    assert [row.name for row in through.rows[1:3]] == ["latent 0, head 0", "latent 0, head 1"]
    assert second.title == f"BiXT: all latents in {SITE.format(2)}, head 1, noise/0"
    assert [sum(len(row.pictures) for row in every.rows) for every in (first, second)] == [70, 70]
    model = given.models[0].model
    with torch.no_grad(), attngraft.record(model) as recording:
        model(inputs(given, [0]))
    looks = recording[SITE.format(2)]["latents_to_tokens"][0, 1, 69]
    assert [row["share"] for row in rows_of(result, head="1", latent=69)] == pytest.approx(looks.tolist(), rel=1e-4)
    pictures = [picture for row in second.rows for picture in row.pictures]
    assert torch.tensor(pictures[69].values).flatten().tolist() == pytest.approx(looks.tolist(), rel=1e-4)
    assert {(row["head"], row["latent"]) for row in rows_of(result)} == {(head, i) for head in "01" for i in range(70)}


@pytest.mark.parametrize("heads", [False, True])
def test_latents_that_were_named(heads: bool) -> None:
    result = latents.ANALYSIS(make_request(bixt(), latents=(6, 1, 6), heads=heads))
    assert len(result.panels) == 4, "of each image and direction; and not all latents of the last layer"
    expected = [f"latent {i}, head {head}" for i in (6, 1) for head in (0, 1)] if heads else ["latent 6", "latent 1"]
    assert [row.name for row in result.panels[0].rows[1:]] == expected
    assert {row["latent"] for row in rows_of(result)} == {1, 6}
    with pytest.raises(RecordError, match=r"--latent 8: out of range; the latents of blocks.0.\S+ are 0 to 7"):
        latents.ANALYSIS(make_request(bixt(), latents=(3, 8)))


def test_without_latents() -> None:
    with pytest.raises(RecordError, match="no chosen layer has latents"):
        latents.ANALYSIS(make_request(vit()))
