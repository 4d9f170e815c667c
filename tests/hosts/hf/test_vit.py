"""Masks, saving and training of grafted ViTs of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import attngraft
from attngraft.hosts import find_host
from tests.contract.hf.hosts import TINY, off_zero, since, transformers
from tests.contract.tester import randomize
from tests.hosts.hf.checks import check_a_mask_is_refused
from tests.hosts.hf.trainer import trained

IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
SEES_A_MAP = ["horizontal", "toy_flatten", "bisa", "misa", "bisa(order=self_then_inverse)"]


def vit(implementation: str = "sdpa", **config: Any) -> Any:
    torch.manual_seed(0)
    made = transformers.ViTConfig(**TINY, num_labels=5, attn_implementation=implementation, **config)
    return off_zero(transformers.ViTForImageClassification(made)).eval()


@pytest.mark.parametrize("spec", SEES_A_MAP)
@pytest.mark.parametrize("asked", ["call", "configuration"])
def test_attentions_are_those_of_the_recording(spec: str, asked: str) -> None:
    model = vit("eager")
    expected = model(IMAGES, output_attentions=True).attentions
    attngraft.graft(model, f"{spec}@layers.0")
    randomize(model, only_grafts=True)
    logits = model(IMAGES).logits
    if asked == "configuration":
        model.config.output_attentions = True
    outputs = model(IMAGES, **({"output_attentions": True} if asked == "call" else {}))
    assert torch.equal(outputs.logits, logits)
    with attngraft.record(model, ["weights"]) as recording:
        model(IMAGES)
    assert len(outputs.attentions) == 2
    if spec != "misa":  # it has no self-attention: the returned map is that of the host's own
        assert torch.equal(outputs.attentions[0], recording["layers.0.attention"]["weights"])
    assert torch.equal(outputs.attentions[0], expected[0]) == (spec != "toy_flatten")
    assert not torch.equal(outputs.attentions[1], expected[1])  # for tokens that the graft changed


def test_attentions_of_a_fused_kernel_are_none_as_the_hosts() -> None:
    model = vit()
    plain = model(IMAGES, output_attentions=True)
    attngraft.graft(model, "toy_flatten")
    grafted = model(IMAGES, output_attentions=True)
    assert grafted.attentions == plain.attentions
    assert not torch.equal(grafted.logits, plain.logits)


def test_dropped_weights_are_what_a_training_host_shows() -> None:
    model = vit("eager", attention_probs_dropout_prob=0.5, hidden_dropout_prob=0.3).train()
    torch.manual_seed(1)
    expected = model(IMAGES, output_attentions=True)
    attngraft.graft(model, "identity(stage=heads) + identity(stage='attn.end') + identity(stage='mlp.end')")
    torch.manual_seed(1)
    found = model(IMAGES, output_attentions=True)
    assert (expected.attentions[0] == 0).any()
    for a, b in zip((expected.logits, *expected.attentions), (found.logits, *found.attentions), strict=True):
        assert torch.equal(a, b)


def test_hidden_states_follow_the_grafts() -> None:
    model = vit()
    plain = model(IMAGES, output_hidden_states=True).hidden_states
    attngraft.graft(model, "cb@layers.1")
    states = model(IMAGES, output_hidden_states=True).hidden_states
    assert len(states) == len(plain) == 3
    assert torch.equal(states[1], plain[1]) and not torch.equal(states[2], plain[2])


def test_the_ends_stand_behind_the_layers_dropout() -> None:
    model = vit(hidden_dropout_prob=0.5).train()
    attngraft.graft(model, "cb(at=both)@layers.0")
    with attngraft.record(model, ["attn.end", "mlp.end"], sites="layers.0-1") as recording:
        model(IMAGES)
    for site, stage in (("attention", "attn.end"), ("mlp", "mlp.end")):
        plain, mixed = recording[f"layers.1.{site}"], recording[f"layers.0.{site}"]
        assert set(plain) == set(mixed) == {stage}
        assert 0.3 < (plain[stage] == 0).float().mean() < 0.7  # dropped entries
        assert (mixed[stage] == 0).float().mean() < 0.1  # moved to the mean of the others


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("spec", ["horizontal", "toy_flatten", "bisa", "bisa(norm=true)", "misa"])
def test_masked_patches_change_nothing(spec: str, implementation: str) -> None:
    model = vit(implementation)
    attngraft.graft(model, spec)
    randomize(model, only_grafts=True)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    other = IMAGES.clone()
    other[0, :, 8:] = 7.0  # patches 2 and 3 of the first image: tokens 3 and 4

    def logits(images: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        return model(images, attention_mask=mask).logits

    found = logits(IMAGES, mask)
    assert torch.isfinite(found).all()
    torch.testing.assert_close(found, logits(other, mask))
    assert not torch.allclose(found[0], logits(IMAGES, None)[0])
    torch.testing.assert_close(found[1:], logits(IMAGES[1:], None), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("spec", ["cb", "cb(at=attention)", "cb_s(position=front)", "se(reduction=2)"])
@pytest.mark.parametrize("family", ["ViT", pytest.param("Dinov2", marks=since("5.20"))])
def test_a_mask_is_refused_for_what_averages_over_all_tokens(family: str, spec: str) -> None:
    config = getattr(transformers, f"{family}Config")(**TINY)
    model = getattr(transformers, f"{family}Model")(config).eval()
    check_a_mask_is_refused(model, IMAGES, torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]), spec)


def test_other_attention_functions_are_refused_and_mlps_are_not() -> None:
    model = vit()
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(
        attngraft.HostError, match=r"flash_attention_2.*does not expose.*set_attn_implementation\('sdpa'\)"
    ):
        attngraft.graft(model, "horizontal")
    attngraft.graft(model, "cb_s")
    assert {site.kind for site in find_host(model).sites if site.targets} == {"mlp"}


def test_switching_to_another_attention_function_later_is_refused() -> None:
    model = vit()
    attngraft.graft(model, "horizontal")
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(attngraft.HostError, match=r"GraftedViTAttention has grafts.*flash_attention_2"):
        model(IMAGES)


def test_a_graft_file_serves_a_model_with_a_head_and_one_without(tmp_path: Path) -> None:
    model = vit()
    attngraft.graft(model, "horizontal@layers.1 + cb_s(init=1)")
    randomize(model, only_grafts=True)
    file = attngraft.save_grafts(model, tmp_path / "grafts.safetensors")
    alone = transformers.ViTModel(model.config, add_pooling_layer=False).eval()
    alone.load_state_dict({name: value for name, value in model.vit.state_dict().items() if ".grafts." not in name})
    attngraft.load_grafts(alone, file)
    assert torch.equal(alone(IMAGES).last_hidden_state, model.vit(IMAGES).last_hidden_state)


def test_the_head_can_go_with_the_grafts(tmp_path: Path) -> None:
    model, fresh = vit(), vit()
    torch.nn.init.normal_(model.classifier.weight)
    attngraft.graft(model, "cb_s(init=1)")
    attngraft.load_grafts(fresh, attngraft.save_grafts(model, tmp_path / "grafts.safetensors", include=["head"]))
    assert torch.equal(fresh(IMAGES).logits, model(IMAGES).logits)


def test_trainer_trains_grafts(tmp_path: Path) -> None:
    model = vit()
    attngraft.graft(model, "horizontal + bisa@layers.0")
    data = [{"pixel_values": image, "labels": label} for label, image in enumerate(IMAGES)]
    moved = trained(model, data, tmp_path)
    for name in ("horizontal", "bisa"):
        assert any(f".grafts.{name}." in parameter for parameter in moved)
    attngraft.save_pretrained(model, tmp_path / "saved")
    images = IMAGES.to(next(model.parameters()).device)
    again = attngraft.from_pretrained(tmp_path / "saved")
    assert torch.equal(again(images).logits, model.eval()(images).logits)


def test_a_plan_measures_what_a_graft_changes() -> None:
    report = attngraft.plan(vit(), "cb_s(init=1)", measure=True)
    assert report.host == "hf.vit" and report.change is not None and report.change.max_absolute > 0
