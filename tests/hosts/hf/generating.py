"""Generation and training with grafted encoder-decoders of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from packaging.version import Version
from torch import Tensor

import attngraft
from attngraft.errors import UsageError
from attngraft.hosts import find_host
from tests.contract.hf.hosts import off_zero, since, transformers
from tests.contract.tester import randomize
from tests.grafting import toys  # noqa: F401 - registers the toy grafts
from tests.hosts.hf.trainer import trained

IDS = torch.randint(3, 30, (3, 9), generator=torch.Generator().manual_seed(0))
MASK = (torch.arange(9) < torch.tensor([[9], [6], [4]])).long()
WRITTEN = torch.randint(3, 30, (3, 7), generator=torch.Generator().manual_seed(1))
#: grafts that mix no tokens; grafts that receive the mask; grafts that mix tokens, in the encoder
CAUSAL = [
    "horizontal + vertical",
    "uniform_heads",
    "toy_flatten + toy_scale(start=0.5, stage='attn.end')",
    "bisa@encoder + horizontal",
]


class Generates:
    """Subclass with `made`; the model has two layers on each side and a vocabulary of 30."""

    implementations: ClassVar[tuple[str, ...]] = ("sdpa", "eager")  #: empty: the attention function is fixed
    dropping: ClassVar[dict[str, float]]  #: configuration keys of all its dropouts
    paths: ClassVar[dict[str, str]]  #: of the attentions in the first layers: encoder, decoder, cross

    def made(self, *, head: bool, **config: Any) -> Any:
        """Return the model with or without its language-modeling head."""
        raise NotImplementedError

    def model(self, implementation: str = "sdpa", *, head: bool = True, **config: Any) -> Any:
        torch.manual_seed(0)
        model = off_zero(self.made(head=head, **config))
        if implementation in self.implementations:
            model.set_attn_implementation(implementation)
        return model.eval()

    @torch.no_grad()
    def states(self, model: Any, ids: Tensor = IDS, mask: Tensor | None = None, written: Tensor = WRITTEN) -> Tensor:
        outputs = model(input_ids=ids, attention_mask=mask, decoder_input_ids=written, output_hidden_states=True)
        return outputs.decoder_hidden_states[-1]

    @pytest.mark.parametrize("spec", CAUSAL)
    @pytest.mark.parametrize("implementation", ["sdpa", "eager"])
    @pytest.mark.parametrize("beams", [1, 5])
    def test_a_cache_changes_nothing(self, beams: int, implementation: str, spec: str) -> None:
        model = self.model(implementation)
        plain = written(model, beams)
        attngraft.graft(model, spec)
        randomize(model, only_grafts=True)
        kept, again = written(model, beams), written(model, beams, use_cache=False)
        assert torch.equal(kept.sequences, again.sequences)
        torch.testing.assert_close(kept.logits, again.logits, rtol=1e-4, atol=1e-4)
        assert not torch.equal(kept.logits[0], plain.logits[0])
        attngraft.ungraft(model)
        assert all(torch.equal(a, b) for a, b in zip(written(model, beams).logits, plain.logits, strict=True))

    @pytest.mark.parametrize("implementation", ["sdpa", "eager"])
    def test_a_cache_of_fixed_size_changes_nothing(self, implementation: str) -> None:
        model = self.model(implementation)
        attngraft.graft(model, "horizontal + toy_flatten@decoder.*.1")
        randomize(model, only_grafts=True)
        kept = written(model)
        fixed = written(model, cache_implementation="static", disable_compile=True)
        assert torch.equal(kept.sequences, fixed.sequences)
        torch.testing.assert_close(kept.logits, fixed.logits, rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("implementation", ["sdpa", "eager"])
    @torch.no_grad()
    def test_a_cache_of_fixed_size_is_the_hosts(self, implementation: str) -> None:
        """The cache is longer than the sequence, and updates its length in place."""
        model = self.model(implementation, head=False)
        config = model.config.get_text_config(decoder=True)

        def steps() -> Tensor:
            halves = (transformers.StaticCache(config=config, max_cache_len=size) for size in (20, IDS.shape[1]))
            cache = transformers.EncoderDecoderCache(*halves)
            given = {"input_ids": IDS, "past_key_values": cache, "use_cache": True}
            parts = [
                model(decoder_input_ids=part, **given) for part in (WRITTEN[:, :5], WRITTEN[:, 5:6], WRITTEN[:, 6:])
            ]
            return torch.cat([part.last_hidden_state for part in parts], dim=1)

        plain = steps()
        with attngraft.record(model, ["heads"]):
            found = steps()
        if Version(transformers.__version__) < Version("5.14"):  # which passed the empty part to the kernel too
            torch.testing.assert_close(found, plain)
        else:
            assert torch.equal(found, plain)
        torch.testing.assert_close(found, self.states(model), rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("beams", [1, 3])
    def test_what_starts_as_the_host_writes_what_the_host_writes(self, beams: int) -> None:
        model = self.model()
        plain = written(model, beams)
        attngraft.graft(model, "horizontal(identity=true) + vertical(identity=true)")
        found = written(model, beams)
        assert torch.equal(found.sequences, plain.sequences)
        torch.testing.assert_close(found.logits, plain.logits)

    @pytest.mark.parametrize("implementation", ["sdpa", "eager"])
    @pytest.mark.parametrize("spec", [None, *CAUSAL])
    def test_no_token_sees_later_ones(self, spec: str | None, implementation: str) -> None:
        model = self.model(implementation, head=False)
        if spec is not None:
            attngraft.graft(model, spec)
            randomize(model, only_grafts=True)
        other = WRITTEN.clone()
        other[:, 4:] = 5
        found, changed = self.states(model), self.states(model, written=other)
        assert torch.equal(changed[:, :4], found[:, :4])
        assert not torch.allclose(changed[:, 4:], found[:, 4:], atol=1e-2)

    def test_kinds_of_attention_are_selected_by_name(self) -> None:
        model = self.model(head=False)
        for where, name in (("encoder.self", "encoder"), ("decoder.self", "decoder"), ("decoder.cross", "cross")):
            first, *_ = entries = attngraft.plan(model, f"horizontal@{where}").entries
            assert first.site == self.paths[name] and len(entries) == 2
        with pytest.raises(
            attngraft.GraftSpecError, match=r"'decoder\.cros' matches no .*similar paths: decoder\.cross"
        ):
            attngraft.plan(model, "horizontal@decoder.cros")
        with pytest.raises(attngraft.GraftSpecError, match=r"self selects attention sites, but .*; write encoder\n"):
            attngraft.plan(model, "cb@encoder.self")

    @pytest.mark.parametrize("verb", [attngraft.graft, attngraft.plan])
    @pytest.mark.parametrize("where", ["all", "decoder"])
    def test_what_mixes_tokens_is_refused_in_the_decoder(self, where: str, verb: Any) -> None:
        model = self.model(head=False)
        reasons = {"bisa": "the softmax over queries does", "misa": "the softmax over queries does"}
        reasons |= dict.fromkeys(["cb", "cb_s(at=both)", "se(reduction=2)"], "this graft averages over all")
        with pytest.raises(
            attngraft.HostError, match="needs the hook point space, which hf.* does not have: its blocks"
        ):
            verb(model, f"elsa@{where}")
        for spec, reason in reasons.items():
            with pytest.raises(
                attngraft.HostError,
                match=rf"cannot be grafted at decoder.*tokens must not see later ones, but {reason}",
            ):
                verb(model, f"{spec}@{where}")
        attngraft.graft(model, "bisa@encoder + cb@encoder")

    @pytest.mark.parametrize("implementation", ["sdpa", "eager"])
    @pytest.mark.parametrize("spec", ["bisa@encoder", "bisa(norm=true)@encoder", "misa@encoder", "toy_flatten"])
    def test_padding_of_the_encoder_takes_no_part(self, spec: str, implementation: str) -> None:
        model = self.model(implementation, head=False)
        attngraft.graft(model, spec)
        randomize(model, only_grafts=True)
        other = IDS.where(MASK > 0, 7)
        found = self.states(model, mask=MASK)
        assert torch.isfinite(found).all()
        torch.testing.assert_close(self.states(model, other, MASK), found)
        assert not torch.allclose(self.states(model)[1:], found[1:], atol=1e-2)
        torch.testing.assert_close(self.states(model)[0], found[0])
        short = self.states(model, IDS[2:, :4], written=WRITTEN[2:])
        torch.testing.assert_close(short, found[2:], rtol=1e-4, atol=1e-4)

    @pytest.mark.parametrize("spec", ["cb", "cb_s(init=1, at=attention)", "cb(position=front)", "se(reduction=2)"])
    def test_what_averages_over_all_tokens_refuses_padding(self, spec: str) -> None:
        model = self.model(head=False)
        classes = [type(module) for module in model.modules()]
        attngraft.graft(model, f"{spec}@encoder")
        with pytest.raises(attngraft.AttngraftError, match="with a padding mask: its batches contain padding"):
            self.states(model, mask=MASK)
        assert torch.equal(self.states(model, mask=torch.ones_like(MASK)), self.states(model))
        attngraft.ungraft(model)
        assert [type(module) for module in model.modules()] == classes
        self.states(model, mask=MASK)

    @since("5.15")
    @pytest.mark.parametrize("spec", ["bisa", "cb", "cb(position=front)", "cb(at=attention)"])
    def test_a_call_that_makes_the_encoder_causal_is_refused(self, spec: str) -> None:
        model = self.model(head=False)
        given = {"input_ids": IDS, "decoder_input_ids": WRITTEN, "is_causal": True}
        plain = model(**given).last_hidden_state
        assert not torch.allclose(plain, self.states(model))
        with attngraft.record(model):
            assert torch.equal(model(**given).last_hidden_state, plain)
        attngraft.graft(model, f"{spec}@encoder")
        with pytest.raises(attngraft.AttngraftError, match="does not support this call.*must not see later ones"):
            model(**given)

    @pytest.mark.parametrize("spec", ["horizontal", "toy_flatten", "bisa@encoder"])
    def test_attentions_are_those_of_the_recording(self, spec: str) -> None:
        model = self.model("eager", head=False)
        given = {"input_ids": IDS, "attention_mask": MASK, "decoder_input_ids": WRITTEN, "output_attentions": True}
        plain = model(**given)
        attngraft.graft(model, spec)
        randomize(model, only_grafts=True)
        outputs = model(**given)
        with attngraft.record(model, ["weights"]) as recording:
            model(**given)
        for side, name in (("encoder", "encoder"), ("decoder", "decoder"), ("cross", "cross")):
            field = {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"}[
                name
            ]
            found, expected = getattr(outputs, field), getattr(plain, field)
            assert [each.shape for each in found] == [each.shape for each in expected] and len(found) == 2
            assert torch.equal(found[0], recording[self.paths[side]]["weights"])
        assert torch.equal(outputs.encoder_attentions[0], plain.encoder_attentions[0]) == (spec != "toy_flatten")

    @pytest.mark.parametrize("implementation", ["sdpa", "eager"])
    def test_dropout_is_the_hosts(self, implementation: str) -> None:
        model = self.model(implementation, head=False, **self.dropping).train()
        given = {"input_ids": IDS, "attention_mask": MASK, "decoder_input_ids": WRITTEN, "output_attentions": True}
        torch.manual_seed(1)
        expected = model(**given)
        for spec in ("identity(stage=heads)", "identity(stage='attn.end')", "identity(stage='mlp.end')"):
            attngraft.graft(model, spec)
            torch.manual_seed(1)
            outputs = model(**given)
            attngraft.ungraft(model)
            assert torch.equal(outputs.last_hidden_state, expected.last_hidden_state)
            for name in ("encoder_attentions", "decoder_attentions", "cross_attentions"):
                for a, b in zip(getattr(outputs, name), getattr(expected, name), strict=True):
                    assert (a is None and b is None) or torch.equal(a, b)

    @pytest.mark.parametrize("stage", ["attn.end", "mlp.end"])
    def test_the_ends_stand_behind_dropout(self, stage: str) -> None:
        model = self.model(head=False, **self.dropping).train()
        attngraft.graft(model, f"identity(stage='{stage}')")
        with attngraft.record(model, [stage]) as recording:
            model(input_ids=IDS, decoder_input_ids=WRITTEN)
        assert len(recording) == {"attn.end": 6, "mlp.end": 4}[stage]
        for place in recording.values():
            assert 0.3 < (place[stage] == 0).float().mean() < 0.7  # dropped entries

    def test_a_hidden_start_leaves_numbers(self) -> None:
        """With padding on the left, some queries have no visible key."""
        model = self.model(head=False)
        attngraft.graft(model, "toy_flatten@*.*.0 + horizontal")
        late = (torch.arange(7) >= torch.tensor([[0], [2], [4]])).long()
        outputs = model(input_ids=IDS, decoder_input_ids=WRITTEN, decoder_attention_mask=late)
        assert torch.isfinite(outputs.last_hidden_state[late > 0]).all()

    def test_saved_and_loaded(self, tmp_path: Path) -> None:
        model = self.model()
        attngraft.graft(model, "horizontal + bisa@encoder")
        randomize(model, only_grafts=True)
        attngraft.save_pretrained(model, tmp_path)
        found, expected = written(attngraft.from_pretrained(tmp_path)), written(model)
        assert torch.equal(found.sequences, expected.sequences)
        assert all(torch.equal(a, b) for a, b in zip(found.logits, expected.logits, strict=True))
        host = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
        attngraft.ungraft(model)
        assert all(torch.equal(a, b) for a, b in zip(written(host).logits, written(model).logits, strict=True))

    def test_a_graft_file_serves_a_model_with_a_head_and_one_without(self, tmp_path: Path) -> None:
        model, alone = self.model(), self.model(head=False)
        assert [site.path for site in find_host(model).sites] == [site.path for site in find_host(alone).sites]
        attngraft.graft(model, "horizontal + cb_s(init=1)@encoder")
        randomize(model, only_grafts=True)
        plain = {name: value for name, value in model.state_dict().items() if ".grafts." not in name}
        alone.load_state_dict({name.removeprefix("model."): value for name, value in plain.items()}, strict=False)
        attngraft.load_grafts(alone, attngraft.save_grafts(model, tmp_path / "grafts.safetensors"))
        assert torch.equal(self.states(alone), self.states(model))

    def test_the_head_can_go_with_the_grafts(self, tmp_path: Path) -> None:
        model, fresh = self.model(), self.model()
        model.lm_head.weight.data.add_(0.5)
        attngraft.graft(model, "vertical")
        attngraft.load_grafts(fresh, attngraft.save_grafts(model, tmp_path / "grafts.safetensors", include=["head"]))
        assert torch.equal(fresh.lm_head.weight, model.lm_head.weight)

    def test_tokens_projected_again_have_no_keys_in_a_cache(self) -> None:
        model = self.model(head=False)
        attngraft.graft(model, "horizontal")
        attention, again = model.get_submodule(self.paths["decoder"]), []
        mix = attention.mix
        attention.mix = lambda projected, project: (again.append(project), mix(projected, project))[1]
        model(input_ids=IDS, decoder_input_ids=WRITTEN)
        with pytest.raises(UsageError, match="the cache has no earlier keys; .*use_cache=False"):
            again[-1](torch.zeros(3, 7, 24))
        model(input_ids=IDS, decoder_input_ids=WRITTEN, use_cache=False)
        assert again[-1](torch.zeros(3, 7, 24)).k.shape[2] == 7

    def test_other_attention_functions_are_refused_and_mlps_are_not(self) -> None:
        model = self.model()
        if not self.implementations:
            pytest.skip("it has no choice of them")
        model.set_attn_implementation("flex_attention")
        with pytest.raises(attngraft.HostError, match=r"flex_attention.*does not expose"):
            attngraft.graft(model, "horizontal")
        attngraft.graft(model, "cb_s@encoder")

    def test_a_plan_measures_what_a_graft_changes(self) -> None:
        report = attngraft.plan(self.model(), "horizontal@decoder", measure=True)
        assert report.change is not None and report.change.max_absolute > 0

    def test_trainer_trains_grafts(self, tmp_path: Path) -> None:
        model = self.model()
        attngraft.graft(model, "horizontal + bisa@encoder")
        data = [{"input_ids": ids, "labels": labels} for ids, labels in zip(IDS, WRITTEN, strict=True)]
        moved = trained(model, data, tmp_path)
        for name in ("encoder", "decoder"):
            assert any(f"{name}." in parameter and ".grafts.horizontal." in parameter for parameter in moved)
        assert any(".grafts.bisa." in parameter for parameter in moved)
        assert written(model.eval()).sequences.shape == (len(IDS), 1 + 6)  # generates a start token and six more


def written(model: Any, beams: int = 1, **options: Any) -> Any:
    """Generate 6 tokens for a padded batch; return the tokens and the logits of each step."""
    settings = {"max_new_tokens": 6, "min_new_tokens": 6, "num_beams": beams, "do_sample": False, **options}
    settings |= {"suppress_tokens": [0]}  # padding has no position in M2M100, except in calls with a cache
    settings |= {"return_dict_in_generate": True, "output_logits": True}
    with torch.no_grad():
        return model.generate(input_ids=IDS, attention_mask=MASK, **settings)
