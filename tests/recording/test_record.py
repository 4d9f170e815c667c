"""Recording: what is offered, when a module runs several times, gradients, and leaving no trace."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch

import attngraft
from attngraft.attention import Graft
from tests.contract.tester import assert_same_host, snapshot
from tests.grafting.test_apply import tiny_swin, tiny_vit

IMAGES = torch.linspace(-1, 1, 2 * 3 * 16 * 16).reshape(2, 3, 16, 16)


def test_the_map_is_the_one_that_the_host_uses() -> None:
    model = tiny_vit()
    with attngraft.record(model, ["weights", "heads"], sites="blocks.1") as recording:
        model(IMAGES)
    assert list(recording) == ["blocks.1.attn"]
    attention = model.blocks[1].attn
    with attngraft.record(model, sites="blocks.1") as whole:
        model(IMAGES)
    assert set(whole["blocks.1.attn"]) == {"scores", "weights", "values", "heads", "tokens", "attn.end"}
    seen: dict[str, torch.Tensor] = {}
    hook = attention.register_forward_pre_hook(lambda module, args: seen.update(x=args[0]))
    model(IMAGES)
    hook.remove()
    value = attention.qkv(seen["x"])[..., 48:].unflatten(-1, (3, 8)).transpose(1, 2)
    torch.testing.assert_close(recording["blocks.1.attn"]["weights"] @ value, recording["blocks.1.attn"]["heads"])
    assert torch.equal(whole["blocks.1.attn"]["values"], value)
    assert torch.equal(whole["blocks.1.attn"]["scores"].softmax(-1), whole["blocks.1.attn"]["weights"])


def test_a_graft_offers_its_own_tensors() -> None:
    model = tiny_vit()
    attngraft.graft(model, "horizontal + vertical")
    expected = model(IMAGES)
    with attngraft.record(model) as recording:
        assert torch.equal(model(IMAGES), expected)
    alpha = recording["blocks.0.attn"]["horizontal.alpha"]
    assert alpha.shape == (2, 5, 3)
    torch.testing.assert_close(alpha.sum(-1), torch.ones(2, 5))
    assert recording["blocks.0.attn"]["vertical.beta"].shape == (2, 5, 24)


@pytest.mark.parametrize(
    ("spec", "name", "applied"),
    [
        ("cb", "cb.context", lambda x, context, graft: (x + context) / 2),
        ("cb(context=max)", "cb.context", lambda x, context, graft: (x + context) / 2),
        (
            "cb(tokens=patches)",
            "cb.context",
            lambda x, context, graft: torch.cat([x[:, :1], (x[:, 1:] + context) / 2], 1),
        ),
        ("cb_s(init=0.5)", "cb_s.context", lambda x, context, graft: x + graft.scale * context),
        ("cb_gate", "cb_gate.gate", lambda x, gate, graft: x * gate),
        ("cb_hybrid", "cb_hybrid.gate", lambda x, gate, graft: x * gate + (x + x.mean(1, keepdim=True)) / 2),
        ("cb_hybrid", "cb_hybrid.context", lambda x, context, graft: x * x[:, :1] + (x + context) / 2),
        ("se(reduction=2, bias=true)", "se.gate", lambda x, gate, graft: x * gate),
    ],
)
def test_a_graft_offers_what_it_broadcasts_or_multiplies_by(spec: str, name: str, applied: Callable[..., Any]) -> None:
    """What is offered is what acted: the graft's input and the offer give its output."""
    model = tiny_vit()
    attngraft.graft(model, f"{spec}@blocks.1")
    (graft,) = (module for module in model.blocks[1].modules() if isinstance(module, Graft))
    seen: list[torch.Tensor] = []
    hook = graft.register_forward_hook(lambda module, args, output: seen.extend((args[0], output)))
    expected = model(IMAGES)
    with attngraft.record(model) as recording:
        assert torch.equal(model(IMAGES), expected)
    hook.remove()
    offered = recording["blocks.1.mlp"][name]
    assert offered.shape == (2, 1, 24)
    torch.testing.assert_close(applied(seen[-2], offered, graft), seen[-1])
    assert graft.recorder is None


def test_weights_grafts_are_seen_after_they_act() -> None:
    model = tiny_vit()
    attngraft.graft(model, "toy_values_only@blocks.0")
    with attngraft.record(model, "weights") as recording:
        model(IMAGES)
    assert torch.equal(recording["blocks.0.attn"]["weights"][0, 0], torch.eye(5))


def test_every_call_is_kept() -> None:
    model = tiny_vit()
    with attngraft.record(model, "weights") as recording:
        model(IMAGES)
        model(IMAGES[:1])
    assert [len(w) for w in recording.calls("blocks.0.attn", "weights")] == [2, 1]
    assert len(recording["blocks.0.attn"]["weights"]) == 1
    recording.clear()
    assert not recording


def test_gradients_can_flow_through_what_was_recorded() -> None:
    model = tiny_vit()
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = False
    with attngraft.record(model, "weights", detach=False) as recording:
        outputs = model(IMAGES)
    (gradient,) = torch.autograd.grad(outputs.sum(), recording["blocks.2.attn"]["weights"])
    assert gradient.shape == (2, 3, 5, 5)
    with attngraft.record(model, "weights") as detached:
        model(IMAGES)
    assert not detached["blocks.2.attn"]["weights"].requires_grad


@pytest.mark.parametrize("grafted", [False, True])
def test_no_trace_is_left_even_after_an_error(grafted: bool) -> None:
    model = tiny_swin()
    if grafted:
        attngraft.graft(model, "horizontal@layers.0")
    before = snapshot(model)

    class Stop(Exception):
        pass

    with pytest.raises(Stop), attngraft.record(model):
        raise Stop
    assert_same_host(model, before)


def test_wrong_places_and_names_are_said() -> None:
    model = tiny_vit()
    with (
        pytest.raises(attngraft.GraftSpecError, match="'blocks.7' matches no site; similar paths:"),
        attngraft.record(model, sites="blocks.7"),
    ):
        pass
    with attngraft.record(model) as recording:
        pass
    with pytest.raises(KeyError, match="run the model inside the with-block"):
        recording["blocks.0.attn"]


def test_what_nobody_asked_for_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_vit()

    def never(self: object, projected: object) -> torch.Tensor:
        raise AssertionError("a map is made")

    monkeypatch.setattr("attngraft.attention.AttentionSite.scores", never)
    monkeypatch.setattr("attngraft.hosts.timm.attention.SelfAttention.scores", never)
    with attngraft.record(model, {"heads"}) as recording:
        model(IMAGES)
    assert set(recording["blocks.0.attn"]) == {"heads"}


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ("horizontal + vertical", {"horizontal.alpha", "vertical.beta"}),
        ("bisa(learned=true)", {"bisa.lambda"}),
        ("cb_gate", {"cb_gate.gate"}),
        ("cb_s", {"cb_s.scale"}),
    ],
)
def test_gates_are_what_grafts_weigh_by(spec: str, names: set[str]) -> None:
    model = tiny_vit()
    attngraft.graft(model, f"{spec}@blocks.1")
    with attngraft.record(model, {"gates"}) as recording:
        model(IMAGES)
    assert {name for site in recording for name in recording[site]} == names


def test_a_grafts_name_stands_for_all_that_it_offers() -> None:
    model = tiny_vit()
    attngraft.graft(model, "bisa@blocks.1")
    with attngraft.record(model, {"bisa"}) as recording:
        model(IMAGES)
    assert set(recording["blocks.1.attn"]) == {"bisa.inverse_weights", "bisa.self", "bisa.inverse", "bisa.lambda"}


def test_who_asks_for_what_is_not_there_is_told_what_is() -> None:
    model = tiny_vit()
    with attngraft.record(model, {"heads"}) as recording:
        model(IMAGES)
    with pytest.raises(attngraft.RecordError, match="has no 'alpha'; available: values, scores, weights, heads"):
        recording["blocks.0.attn"]["alpha"]
    with pytest.raises(attngraft.RecordError, match="'weights' of 'blocks.0.attn' was not kept"):
        recording["blocks.0.attn"]["weights"]
    with pytest.raises(
        attngraft.RecordError, match=r"'blocks.0.mlp' has none of the requested tensors; available: mlp.front"
    ):
        recording["blocks.0.mlp"]
    with pytest.raises(attngraft.RecordError, match="has no 'wieghts'"):
        recording.calls("blocks.0.attn", "wieghts")


def test_a_recording_of_what_no_site_has_is_refused() -> None:
    model = tiny_vit()
    with (
        pytest.raises(attngraft.RecordError, match="none of the chosen sites has 'gates'; available: values"),
        attngraft.record(model, {"weights", "gates"}),
    ):
        model(IMAGES)
    with (
        pytest.raises(attngraft.RecordError, match="none of the chosen sites has 'weights'; available: mlp.front"),
        attngraft.record(model, {"weights"}, sites="blocks.0.mlp"),
    ):
        model(IMAGES)


@pytest.mark.parametrize("how", ["wrapped", "in place", "recorded inside of its wrapper", "called by a function"])
@pytest.mark.parametrize("spec", [None, "horizontal"])
@pytest.mark.slow
def test_a_compiled_model_is_recorded_and_not_compiled_again(how: str, spec: str | None) -> None:
    torch._dynamo.reset()
    made: list[object] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., object]:
        made.append(graph)
        return graph.forward

    model = tiny_vit()
    if spec:
        attngraft.graft(model, spec)
    expected = model(IMAGES)
    compiled: Any = model
    if how == "in place":
        model.compile(backend=backend)
    elif how == "called by a function":
        compiled = torch.compile(lambda images: model(images), backend=backend)
    else:
        compiled = torch.compile(model, backend=backend)
    with torch.no_grad():
        compiled(IMAGES)
        before = len(made)
        assert before
        with attngraft.record(compiled if how == "wrapped" else model, {"weights"}) as recording:
            assert torch.equal(compiled(IMAGES), expected)
        compiled(IMAGES)
    assert recording["blocks.2.attn"]["weights"].shape == (2, 3, 5, 5)
    assert len(made) == before


def test_numbers_that_are_drawn_in_training_are_the_same() -> None:
    model = tiny_vit(attn_drop_rate=0.3, proj_drop_rate=0.2, drop_path_rate=0.4).train()
    torch.manual_seed(3)
    expected = model(IMAGES)
    torch.manual_seed(3)
    with attngraft.record(model, {"weights"}):
        assert torch.equal(model(IMAGES), expected)


def test_leading_tokens_have_names() -> None:
    with attngraft.record(tiny_vit(reg_tokens=2)) as recording:
        pass
    assert recording.prefix("blocks.0.attn") == ("class", "register 1", "register 2")
    with attngraft.record(tiny_vit(class_token=False, global_pool="avg")) as recording:
        pass
    assert recording.prefix("blocks.0.mlp") == ()
    distilled = timm.create_model("deit_tiny_distilled_patch16_224", img_size=16, patch_size=8, embed_dim=24, depth=1)
    with attngraft.record(distilled, sites="blocks.0.attn") as recording:
        pass
    assert recording.prefix("blocks.0.attn") == ("class", "distillation")
    with pytest.raises(attngraft.RecordError, match="'blocks.0.mlp' is not one of the chosen sites: blocks.0.attn"):
        recording.prefix("blocks.0.mlp")


@pytest.mark.parametrize("spec", [None, "bisa"])
def test_copies_are_not_recorded(spec: str | None) -> None:
    model = tiny_vit()
    if spec is not None:
        attngraft.graft(model, spec)
    with attngraft.record(model) as outer, attngraft.record(model) as inner:
        copied = copy.deepcopy(model)
        copied(IMAGES)
        assert not any(outer.values())
        assert torch.equal(copied(IMAGES), model(IMAGES))
    assert inner["blocks.0.attn"]
    assert all(getattr(module, "recorder", None) is None for module in copied.modules())


def test_recordings_can_be_nested() -> None:
    model = tiny_vit()
    with attngraft.record(model, "weights") as outer:
        with attngraft.record(model, "heads", sites="blocks.0") as inner:
            model(IMAGES)
        model(IMAGES)
    assert len(outer.calls("blocks.0.attn", "weights")) == 2
    assert len(inner.calls("blocks.0.attn", "heads")) == 1
    assert list(inner) == ["blocks.0.attn"]


def test_grafting_while_recording_survives_the_recording() -> None:
    model = tiny_vit()
    before = snapshot(model)
    with attngraft.record(model):
        attngraft.graft(model, "cb@blocks.0")
    assert attngraft.ungraft(model) == ["blocks.0.mlp.grafts.cb"]
    with attngraft.record(model):
        attngraft.graft(model, "cb")
        attngraft.ungraft(model)
    assert_same_host(model, before)


@pytest.mark.parametrize(
    ("old", "new", "arguments"),
    [
        ("looks", "attention_map_for_query", ((0, 1),)),
        ("whole", "full_attention_map", ()),
        ("places", "token_indices", ()),
        ("offered", "available", ()),
        ("without_filling", "without_padding", ("weights",)),
    ],
)
def test_old_method_names_still_work(old: str, new: str, arguments: tuple[Any, ...]) -> None:
    model = tiny_vit()
    with torch.no_grad(), attngraft.record(model, "weights") as recording:
        model(IMAGES)
    with pytest.warns(DeprecationWarning, match=rf"Recording.{old}\(\) is deprecated; call {new}\(\)"):
        found = getattr(recording, old)("blocks.0.attn", *arguments)
    expected = getattr(recording, new)("blocks.0.attn", *arguments)
    assert torch.equal(found, expected) if isinstance(found, torch.Tensor) else found == expected


def test_a_recording_in_a_notebook() -> None:
    model = tiny_vit()
    with attngraft.record(model, {"weights"}) as recording:
        model(IMAGES)
        model(IMAGES)
    table = recording._repr_html_()
    assert "Recording of 3 tensors at 3 sites" in table
    assert "(2, 3, 5, 5)" in table and ">float32<" in table and ">2<" in table


@pytest.mark.parametrize("grafted", [False, True])
def test_recordings_left_in_any_order_leave_no_trace(grafted: bool) -> None:
    model = tiny_swin()
    if grafted:
        attngraft.graft(model, "horizontal@layers.0")
    images = torch.zeros(1, 3, 28, 28)
    before, expected = snapshot(model), model(images)
    choices = ["all", "layers.0", "layers.1", "layers.0.blocks.1"]
    for order in ((0, 1, 2, 3), (2, 0, 3, 1), (3, 2, 1, 0), (1, 3, 0, 2)):
        blocks = [attngraft.record(model, "weights", sites=choice) for choice in choices]
        recordings = [block.__enter__() for block in blocks]
        for number, left in enumerate(order):
            assert torch.equal(model(images), expected)
            for block in order[number:]:
                (site, *_) = recordings[block]
                assert len(recordings[block].calls(site, "weights")) == number + 1
            blocks[left].__exit__(None, None, None)
        assert_same_host(model, before)


@pytest.mark.parametrize("make", [tiny_vit, tiny_swin])
def test_threads_record_their_own_forward_passes(make: Callable[[], torch.nn.Module]) -> None:
    """Each with images, sites and an image size of its own, on one model, in no order."""
    model = make()
    attngraft.graft(model, "horizontal@last:1")
    before = snapshot(model)
    size = 16 if make is tiny_vit else 28
    wrong: list[object] = []
    barrier = threading.Barrier(4)

    def record(number: int) -> None:
        try:
            images = torch.full((number + 1, 3, size, size), float(number))
            with torch.no_grad(), attngraft.record(plain) as alone:
                plain(images)
            barrier.wait()
            for _ in range(6):
                with torch.no_grad(), attngraft.record(model, sites=f"last:{number + 1}") as recording:
                    model(images)
                for site, tensors in recording.items():
                    if len(recording.calls(site, "attn.end" if "attn.end" in tensors else "mlp.end")) != 1:
                        wrong.append((number, site, "calls"))
                    if any(not torch.equal(tensor, alone[site][name]) for name, tensor in tensors.items()):
                        wrong.append((number, site))
        except Exception as error:
            wrong.append(error)

    plain = make()
    attngraft.graft(plain, "horizontal@last:1")
    plain.load_state_dict(model.state_dict())
    threads = [threading.Thread(target=record, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert_same_host(model, before)


def test_another_threads_forward_passes_are_not_recorded() -> None:
    model = tiny_vit()
    with attngraft.record(model, "weights") as recording:
        thread = threading.Thread(target=model, args=(IMAGES,))
        thread.start()
        thread.join()
        model(IMAGES[:1])
    assert [len(weights) for weights in recording.calls("blocks.0.attn", "weights")] == [1]
