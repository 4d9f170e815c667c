"""Hosts of transformers inside other models."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import attngraft
from attngraft.hosts import find_host
from tests.contract.hf.hosts import TINY, transformers


def clip() -> Any:
    torch.manual_seed(0)
    text = {"vocab_size": 20, "max_position_embeddings": 8, "hidden_size": 16, "num_hidden_layers": 1}
    text |= {"num_attention_heads": 2, "intermediate_size": 16, "eos_token_id": 1, "bos_token_id": 0}
    return transformers.CLIPModel(
        transformers.CLIPConfig(text_config=text, vision_config=TINY, projection_dim=12)
    ).eval()


def test_of_clip_the_vision_tower_is_grafted_and_the_text_tower_stays() -> None:
    model = clip()
    ids, images = torch.tensor([[0, 5, 1]]), torch.randn(1, 3, 16, 16)
    before = model(input_ids=ids, pixel_values=images)
    report = attngraft.graft(model, "horizontal + cb")
    assert find_host(model).prefix == "vision_model."
    assert {entry.site.partition(".layers.")[0] for entry in report.entries} == {"encoder"}
    after = model(input_ids=ids, pixel_values=images)
    assert torch.equal(after.text_embeds, before.text_embeds)
    assert not torch.equal(after.image_embeds, before.image_embeds)
    attngraft.ungraft(model)
    assert torch.equal(model(input_ids=ids, pixel_values=images).image_embeds, before.image_embeds)


def test_siglips_head_attends_and_is_no_site() -> None:
    model = transformers.SiglipVisionModel(transformers.SiglipVisionConfig(**TINY))
    assert [site.path for site in find_host(model).sites if "head" in site.path] == []
    attngraft.graft(model, "bisa + cb_s")
    assert model(torch.randn(1, 3, 16, 16)).pooler_output.shape == (1, 24)


def test_a_swin_backbone_is_a_host() -> None:
    config = transformers.SwinConfig(
        image_size=16,
        patch_size=2,
        embed_dim=12,
        window_size=4,
        depths=[2, 2],
        num_heads=[2, 2],
        out_features=["stage2"],
    )
    model, images = transformers.SwinBackbone(config).eval(), torch.randn(1, 3, 16, 16)
    before = model(images).feature_maps[0]
    attngraft.graft(model, "bisa@encoder.layers.0 + vertical")
    assert not torch.equal(model(images).feature_maps[0], before)
    attngraft.ungraft(model)
    assert torch.equal(model(images).feature_maps[0], before)


def test_dinov2_as_older_releases_lay_it_out_is_refused() -> None:
    model = transformers.Dinov2Model(
        transformers.Dinov2Config(**{k: v for k, v in TINY.items() if "intermed" not in k})
    )
    for layer in model.encoder.layer:
        if hasattr(layer.attention, "o_proj"):
            del layer.attention.o_proj
    with pytest.raises(attngraft.HostError, match=r"transformers before 5\.20.*pip install 'transformers>=5\.20'"):
        attngraft.graft(model, "horizontal")
