"""Masks, caches, chunking and training of grafted BERT, RoBERTa, ELECTRA and DistilBERT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import attngraft
from attngraft.errors import UsageError
from attngraft.export.fold import fold
from attngraft.hosts import find_host
from tests.contract.hf.hosts import TINY_TEXT, off_zero, transformers
from tests.contract.hf.test_bert import DISTIL
from tests.contract.tester import randomize
from tests.hosts.hf.checks import check_a_mask_is_refused, check_dropout_is_the_hosts
from tests.hosts.hf.trainer import trained

IDS = torch.tensor([[3, 9, 4, 17, 30, 22, 8], [5, 6, 21, 38, 11, 2, 27]])
HIDES = torch.tensor([[1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1, 1]])
FAMILIES = ["Bert", "DistilBert"]
ATTENTION = {"Bert": "encoder.layer.{}.attention", "DistilBert": "transformer.layer.{}.attention"}
MLP = {"Bert": "encoder.layer.{}.intermediate", "DistilBert": "transformer.layer.{}.ffn"}


def made(name: str, implementation: str = "sdpa", **changes: Any) -> Any:
    """Return a tiny model of the class with this name."""
    torch.manual_seed(0)
    kind = getattr(transformers, name)
    sizes = DISTIL if name.startswith("Distil") else TINY_TEXT
    return off_zero(kind(kind.config_class(**(sizes | changes), attn_implementation=implementation))).eval()


def classifier(family: str, implementation: str = "sdpa", **changes: Any) -> Any:
    return made(f"{family}ForSequenceClassification", implementation, num_labels=3, **changes)


def decoder(**changes: Any) -> Any:
    sizes = {"is_decoder": True, "add_cross_attention": True, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    return made("BertLMHeadModel", **(sizes | changes))


def test_each_stage_stands_in_the_module_that_has_it() -> None:
    model = classifier("Bert")
    report = attngraft.graft(model, "bisa + horizontal + vertical + cb(at=both) + cb_s(position=front)@first:1")
    modules = {(entry.hook_point, entry.module) for entry in report.entries}
    assert modules == {
        ("mix", "BertSelfAttention"),
        ("heads", "BertSelfAttention"),
        ("tokens", "BertAttention"),
        ("attn.end", "BertAttention"),
        ("mlp.end", "BertOutput"),
        ("mlp.front", "BertIntermediate"),
    }
    assert {entry.site for entry in report.entries} == {
        template.format(i) for template in (ATTENTION["Bert"], MLP["Bert"]) for i in (0, 1)
    }
    assert model(IDS).logits.shape == (2, 3)


@pytest.mark.parametrize("family", FAMILIES)
def test_attentions_are_those_of_the_recording(family: str) -> None:
    model = classifier(family, "eager")
    attngraft.graft(model, "toy_flatten@first:1 + bisa@last:1")
    randomize(model, only_grafts=True)
    outputs = model(IDS, output_attentions=True)
    with attngraft.record(model, ["weights"]) as recording:
        assert torch.equal(model(IDS).logits, outputs.logits)
    assert len(outputs.attentions) == 2
    for i, attentions in enumerate(outputs.attentions):
        assert torch.equal(attentions, recording[ATTENTION[family].format(i)]["weights"])


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("spec", ["horizontal + vertical", "toy_flatten", "bisa(norm=true)", "misa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_padding_changes_nothing(family: str, spec: str, implementation: str) -> None:
    model = classifier(family, implementation)
    attngraft.graft(model, spec)
    randomize(model, only_grafts=True)
    padded = model(IDS, attention_mask=HIDES).logits
    torch.testing.assert_close(padded[:1], model(IDS[:1, :5]).logits, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(padded[1:], model(IDS[1:]).logits, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(padded[0], model(IDS).logits[0])


@pytest.mark.parametrize(
    "spec", ["cb", "cb(at=attention)", "cb_s(position=front)", "cb(position=mid)", "se(reduction=2)"]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_padding_is_refused_for_what_averages_over_all_tokens(family: str, spec: str) -> None:
    check_a_mask_is_refused(classifier(family), IDS, HIDES, f"{spec}@last:1")


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_dropout_falls_as_without_grafts(family: str, implementation: str) -> None:
    rates = ("dropout", "attention_dropout") if family == "DistilBert" else ()
    rates = rates or ("hidden_dropout_prob", "attention_probs_dropout_prob")
    model = classifier(family, implementation, **dict.fromkeys(rates, 0.3)).train()
    check_dropout_is_the_hosts(model, IDS, ["heads", "tokens", "attn.end", "mlp.front", "mlp.mid", "mlp.end"])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_that_asks_for_a_causal_mask_gets_it_or_a_refusal(family: str) -> None:
    model = classifier(family)
    expected = model(IDS, is_causal=True).logits
    assert not torch.equal(expected, model(IDS).logits)
    attngraft.graft(model, "identity(stage=heads)")
    assert torch.equal(model(IDS, is_causal=True).logits, expected)
    for spec in ("bisa", "cb", "cb(at=attention)"):
        attngraft.graft(model, f"{spec}@first:1")
        with pytest.raises(UsageError, match="does not support this call with a mask over pairs of tokens"):
            model(IDS, is_causal=True)
        attngraft.ungraft(model, spec.partition("(")[0])


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_mask_over_pairs_that_hides_later_tokens_is_refused_for_what_sees_them(
    family: str, implementation: str
) -> None:
    model = classifier(family, implementation)
    causal = torch.ones(1, 1, 7, 7, dtype=torch.bool).tril()
    near = causal & causal.triu(-2)
    for spec in ("bisa", "misa"):
        attngraft.graft(model, f"{spec}@first:1")
        for mask in (causal, near, causal.expand(2, -1, -1, -1) & HIDES.bool()[:, None, None]):
            with pytest.raises(UsageError, match="treated as causal: its tokens must not see later ones"):
                model(IDS, attention_mask=mask)
        assert model(IDS, attention_mask=near | near.mT).logits.isfinite().all()
        attngraft.ungraft(model)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_round_where_the_host_does(family: str, dtype: torch.dtype) -> None:
    model = classifier(family, "eager").to(dtype)
    expected = model(IDS).logits
    attngraft.graft(model, "identity(stage=heads) + identity(stage=weights)")
    assert torch.equal(model(IDS).logits, expected)


def test_the_ends_stand_behind_dropout_and_before_the_residual() -> None:
    model = classifier("Bert", hidden_dropout_prob=0.5).train()
    with attngraft.record(model, ["attn.end", "mlp.end"]) as recording:
        model(IDS)
    for site, stage in ((ATTENTION["Bert"], "attn.end"), (MLP["Bert"], "mlp.end")):
        dropped = (recording[site.format(1)][stage] == 0).float().mean()
        assert 0.3 < dropped < 0.7


def test_what_bisa_adds_behind_the_projection_arrives_there() -> None:
    model = made("BertModel")
    for layer in model.encoder.layer:
        torch.nn.init.zeros_(layer.attention.output.dense.weight)
    attngraft.graft(model, "bisa(separate=true)@encoder.layer.1")
    with attngraft.record(model, ["tokens"]) as recording:
        model(IDS)
    plain, added = (recording[ATTENTION["Bert"].format(i)]["tokens"] for i in (0, 1))
    assert torch.equal(plain, plain[:1, :1].expand_as(plain))  # the bias alone
    assert not torch.allclose(added, added[:1, :1].expand_as(added))


@pytest.mark.parametrize("spec", ["bisa", "misa", "cb", "cb_s(position=front)", "cb(at=attention)"])
def test_decoders_refuse_what_sees_later_tokens(spec: str) -> None:
    with pytest.raises(attngraft.HostError, match="must not see later ones"):
        attngraft.graft(decoder(), spec)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_decoder_with_a_cache_gives_what_it_gives_without(implementation: str) -> None:
    model = decoder()
    memory = torch.randn(2, 4, 24, generator=torch.Generator().manual_seed(0))
    given = {"encoder_hidden_states": memory, "encoder_attention_mask": torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])}
    model.set_attn_implementation(implementation)
    plain = model(IDS, use_cache=False, **given).logits
    attngraft.graft(model, "horizontal + vertical + toy_flatten")
    randomize(model, only_grafts=True)
    whole = model(IDS, use_cache=False, **given).logits
    assert not torch.allclose(whole, plain)
    steps, cache = [], None
    for part in (IDS[:, :3], *IDS[:, 3:].split(1, dim=1)):
        outputs = model(part, past_key_values=cache, use_cache=True, **given)
        steps.append(outputs.logits)
        cache = outputs.past_key_values
    torch.testing.assert_close(torch.cat(steps, dim=1), whole, rtol=1e-5, atol=1e-5)
    assert {site.path.rpartition(".")[2] for site in find_host(model).sites} == {
        "attention",
        "crossattention",
        "intermediate",
    }


def test_a_cache_without_room_for_cross_attention_is_refused_with_the_reason() -> None:
    model = decoder()
    attngraft.graft(model, "horizontal")
    with pytest.raises(UsageError, match=r"EncoderDecoderCache.*transformers\.EncoderDecoderModel"):
        model(IDS, encoder_hidden_states=torch.randn(2, 4, 24), past_key_values=transformers.DynamicCache())


def test_both_sides_of_an_encoder_decoder_generate_as_one_call_would() -> None:
    model = transformers.EncoderDecoderModel(encoder=made("BertModel"), decoder=decoder()).eval()
    with pytest.raises(attngraft.HostError, match=r"2 hosts .*graft\(model\.encoder, \.\.\.\)"):
        attngraft.graft(model, "horizontal")
    attngraft.graft(model.encoder, "bisa + horizontal")
    attngraft.graft(model.decoder, "horizontal + vertical")
    asked = {"attention_mask": HIDES, "max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}
    asked |= {"decoder_start_token_id": 1, "pad_token_id": 0}
    found = model.generate(IDS, **asked)
    assert found.shape == (2, 5)
    assert torch.equal(found, model.generate(IDS, use_cache=False, **asked))


def test_keys_put_in_front_are_refused_for_what_needs_the_queries_own() -> None:
    model, cache = made("BertModel"), transformers.DynamicCache()
    for layer in range(2):
        cache.update(torch.randn(2, 3, 1, 8), torch.randn(2, 3, 1, 8), layer)
    attngraft.graft(model, "bisa@encoder.layer.1")
    with pytest.raises(UsageError, match=r"'bisa' \(mix\).*keys or values from tokens other than the queries"):
        model(IDS, past_key_values=cache)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_mlp_that_runs_in_chunks_has_no_stages(family: str) -> None:
    model = classifier(family, chunk_size_feed_forward=7)
    with pytest.raises(attngraft.HostError, match=r"7 tokens at a time.*chunk_size_feed_forward=0"):
        attngraft.graft(model, "cb_s")
    attngraft.graft(model, "cb_s(at=attention)")
    assert model(IDS).logits.shape == (2, 3)


@pytest.mark.parametrize("family", FAMILIES)
def test_other_attention_functions_are_refused(family: str) -> None:
    model = classifier(family)
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(
        attngraft.HostError, match=r"flex_attention.*does not expose.*set_attn_implementation\('sdpa'\)"
    ):
        attngraft.graft(model, "vertical")


def test_a_module_that_a_later_release_added_is_refused_with_its_version() -> None:
    model = classifier("Bert")
    model.bert.encoder.layer[1].attention.output.gate = torch.nn.Identity()
    with pytest.raises(
        attngraft.HostError, match=rf"BertSelfOutput of transformers {transformers.__version__}\) .*'gate'"
    ):
        attngraft.graft(model, "horizontal")


@pytest.mark.parametrize(
    "name",
    [
        *("BertForMultipleChoice", "BertForPreTraining", "RobertaForTokenClassification", "ElectraForPreTraining"),
        *(
            "CamembertForMaskedLM",
            "XLMRobertaForTokenClassification",
            "DistilBertForMultipleChoice",
            "ElectraForMaskedLM",
        ),
    ],
)
def test_models_with_heads_are_measured_and_their_heads_are_known(name: str) -> None:
    model = made(name)
    report = attngraft.plan(model, "horizontal + cb", measure=True)
    assert report.change is not None and report.change.max_absolute > 0
    assert all(entry.site.startswith(("encoder.layer.", "transformer.layer.")) for entry in report.entries)
    host = find_host(model)
    head = host.adapter.parts(host.core)["head"]
    assert head and not any(".layer." in each for each in head)


def test_a_head_whose_bias_is_tied_goes_with_the_grafts(tmp_path: Path) -> None:
    model, fresh = made("BertForMaskedLM"), made("BertForMaskedLM")
    torch.nn.init.normal_(model.cls.predictions.bias)
    attngraft.graft(model, "cb_s(init=1)")
    attngraft.load_grafts(fresh, attngraft.save_grafts(model, tmp_path / "grafts.safetensors", include=["head"]))
    assert torch.equal(fresh(IDS).logits, model(IDS).logits)
    assert fresh.cls.predictions.decoder.bias is fresh.cls.predictions.bias


@pytest.mark.parametrize("family", FAMILIES)
def test_folders_keep_the_grafts_beside_the_host(family: str, tmp_path: Path) -> None:
    model = classifier(family)
    attngraft.graft(model, "horizontal + vertical + bisa + cb")
    randomize(model, only_grafts=True)
    attngraft.save_pretrained(model, tmp_path)
    again = attngraft.from_pretrained(tmp_path)
    assert torch.equal(again(IDS).logits, model(IDS).logits)
    host = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    attngraft.ungraft(model)
    assert torch.equal(host(IDS).logits, model(IDS).logits)


def test_a_graft_file_serves_a_model_with_a_head_and_one_without(tmp_path: Path) -> None:
    model = classifier("Bert")
    attngraft.graft(model, "horizontal@encoder.layer.1 + cb_s(init=1)")
    randomize(model, only_grafts=True)
    file = attngraft.save_grafts(model, tmp_path / "grafts.safetensors")
    alone = transformers.BertModel(model.config).eval()
    alone.load_state_dict({name: value for name, value in model.bert.state_dict().items() if ".grafts." not in name})
    attngraft.load_grafts(alone, file)
    assert torch.equal(alone(IDS).last_hidden_state, model.bert(IDS).last_hidden_state)


@pytest.mark.parametrize("position", ["front", "end"])
def test_halves_of_cb_fold_into_the_layers_beside_it(position: str) -> None:
    model = classifier("Bert")
    attngraft.graft(model, f"cb(position={position}) + cb(at=attention)")
    before = model(IDS).logits
    folded = fold(model)
    assert len(folded.entries) == 4 and all(entry.folded for entry in folded.entries)
    torch.testing.assert_close(model(IDS).logits, before, rtol=0, atol=1e-5)


def test_what_stands_behind_bisas_own_output_does_not_fold() -> None:
    model = classifier("Bert")
    attngraft.graft(model, "bisa(separate=true) + cb(at=attention)")
    before = model(IDS).logits
    stayed = {entry.stayed for entry in fold(model).entries if entry.graft == "cb"}
    assert len(stayed) == 1 and "bisa adds its own output" in str(stayed)
    assert torch.equal(model(IDS).logits, before)


def test_trainer_trains_grafts_on_padded_texts(tmp_path: Path) -> None:
    model = classifier("Bert")
    attngraft.graft(model, "horizontal + bisa(separate=true)@encoder.layer.0 + vertical")
    data = [
        {"input_ids": ids, "attention_mask": shows, "labels": label}
        for label, (ids, shows) in enumerate(zip(IDS, HIDES, strict=True))
    ]
    moved = trained(model, data, tmp_path, steps=2)
    for name in ("horizontal", "bisa", "vertical"):
        assert any(f".grafts.{name}." in parameter for parameter in moved)
    assert all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())


@pytest.mark.parametrize("name", ["past_key_values", "cache"])
@torch.no_grad()
def test_kept_keys_go_by_the_names_of_old_and_new_releases(name: str) -> None:
    model = decoder()
    attngraft.graft(model, "horizontal")
    randomize(model, only_grafts=True)
    attention = model.bert.encoder.layer[0].attention
    tokens = torch.randn(2, 5, 24, generator=torch.Generator().manual_seed(0))
    whole, _ = attention(tokens, is_causal=True)
    cache = transformers.DynamicCache()
    attention(tokens[:, :4], is_causal=True, **{name: cache})
    last, _ = attention(tokens[:, 4:], **{name: cache})
    assert cache.get_seq_length() == 5
    torch.testing.assert_close(last, whole[:, 4:], rtol=1e-5, atol=1e-5)
