"""Cross-attention of latents and tokens as layers: equations, names, recording, dropout."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attngraft.errors import UsageError
from attngraft.mechanisms.bixt import folded
from attngraft.mechanisms.bixt.layer import BidirectionalCrossAttention, OneSidedCrossAttention
from tests.listening import Heard

WIDTHS = {"dim_latents": 10, "dim_tokens": 14, "dim_attention": 12, "heads": 3}
RV = {"rv_patches.weight": (24, 14), "rv_patches.bias": (24,), "proj_lat.weight": (10, 12), "proj_lat.bias": (10,)}
TWO_WAY = RV | {
    "rv_latents.weight": (24, 10),
    "rv_latents.bias": (24,),
    "proj_pat.weight": (14, 12),
    "proj_pat.bias": (14,),
}
ONE_WAY = RV | {"r_latents.weight": (12, 10), "r_latents.bias": (12,)}


def inputs(batch: int = 2, *, latents: int = 5, tokens: int = 7, shared: bool = False) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    return torch.randn(1 if shared else batch, latents, 10).double(), torch.randn(batch, tokens, 14).double()


def two_way(**changes: object) -> BidirectionalCrossAttention:
    torch.manual_seed(0)
    return BidirectionalCrossAttention(**{**WIDTHS, **changes}).double()


def one_sided(**changes: object) -> OneSidedCrossAttention:
    torch.manual_seed(0)
    return OneSidedCrossAttention(**{**WIDTHS, **changes}).double()


@pytest.mark.parametrize(("layer", "shapes"), [(two_way(), TWO_WAY), (one_sided(), ONE_WAY)])
def test_names_and_shapes_are_the_authors(layer: torch.nn.Module, shapes: dict[str, tuple]) -> None:
    assert {name: tuple(value.shape) for name, value in layer.state_dict().items()} == shapes


def test_biases_of_references_and_values_can_be_left_out() -> None:
    for layer in (two_way(rv_bias=False), one_sided(rv_bias=False)):
        biases = {name for name in layer.state_dict() if name.endswith("bias")}
        assert biases == {"proj_lat.bias", "proj_pat.bias"} & set(layer.state_dict())


@pytest.mark.parametrize("shared", [False, True])
def test_two_way_is_its_equation(shared: bool) -> None:
    """Computed image by image and head by head; a projection's first rows are the references, the last the values."""
    layer, (latents, tokens) = two_way(), inputs(shared=shared)
    out_latents, out_tokens = layer(latents, tokens)
    for image in range(2):
        ours = layer.rv_latents(latents[0 if shared else image])
        theirs = layer.rv_patches(tokens[image])
        from_tokens, from_latents = [], []
        for head in range(3):
            at = slice(4 * head, 4 * head + 4)
            scores = ours[:, :12][:, at] @ theirs[:, :12][:, at].T / 2
            from_tokens.append(scores.softmax(dim=1) @ theirs[:, 12:][:, at])
            from_latents.append(scores.T.softmax(dim=1) @ ours[:, 12:][:, at])
        torch.testing.assert_close(out_latents[image], layer.proj_lat(torch.cat(from_tokens, 1)))
        torch.testing.assert_close(out_tokens[image], layer.proj_pat(torch.cat(from_latents, 1)))


@pytest.mark.parametrize("shared", [False, True])
def test_one_sided_is_the_latents_side_of_the_two_way_layer(shared: bool) -> None:
    both, layer, (latents, tokens) = two_way(), one_sided(), inputs(shared=shared)
    state = {name: value for name, value in both.state_dict().items() if name in ONE_WAY}
    state |= {f"r_latents.{name}": both.state_dict()[f"rv_latents.{name}"][:12] for name in ("weight", "bias")}
    layer.load_state_dict(state)
    torch.testing.assert_close(layer(latents, tokens), both(latents, tokens)[0])


@pytest.mark.parametrize(("latents", "tokens"), [(1, 1), (9, 2), (2, 1), (1, 9)])
def test_any_numbers_of_latents_and_tokens(latents: int, tokens: int) -> None:
    given = inputs(latents=latents, tokens=tokens)
    out_latents, out_tokens = two_way()(*given)
    assert (out_latents.shape, out_tokens.shape) == ((2, latents, 10), (2, tokens, 14))
    assert one_sided()(*given).shape == (2, latents, 10)


@pytest.mark.parametrize(("latents", "tokens"), [(5, 7), (2, 200)])
@pytest.mark.parametrize("shared", [False, True])
def test_a_listener_hears_the_maps(shared: bool, latents: int, tokens: int) -> None:
    """Recording does not change the outputs, also with few latents and many tokens, where projections are folded."""
    given = inputs(shared=shared, latents=latents, tokens=tokens)
    assert folded.pays(torch.ones(1, 3, latents, 4), given[1], torch.ones(14, 12)) == (tokens == 200)
    for layer, names in ((two_way(), ["latents_to_tokens", "tokens_to_latents"]), (one_sided(), ["latents_to_tokens"])):
        before = layer(*given)
        heard = Heard()
        layer.recorder = heard
        torch.testing.assert_close(layer(*given), before, rtol=0, atol=0)
        assert list(heard) == ["scores", *names]
        assert torch.equal(heard.pop("scores").softmax(-1), heard["latents_to_tokens"])
        assert heard["latents_to_tokens"].shape == (2, 3, latents, tokens)
        for weights in heard.values():
            torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
        values = layer.rv_patches(given[1])[..., 12:].unflatten(-1, (3, 4)).transpose(1, 2)
        mixed = (heard["latents_to_tokens"] @ values).transpose(1, 2).flatten(2)
        found = layer.proj_lat(mixed)
        torch.testing.assert_close(before[0] if isinstance(before, tuple) else before, found)


def test_dropout_of_weights_acts_in_training_alone() -> None:
    given = inputs()
    for make in (two_way, one_sided):
        layer, plain = make(attn_drop=0.5), make()
        layer.eval()
        torch.testing.assert_close(layer(*given), plain(*given))
        layer.train()
        assert not torch.allclose(layer(*given)[0], plain(*given)[0])


def test_dropout_behind_the_projections() -> None:
    layer = two_way(proj_drop=1.0).train()
    assert not any(out.any() for out in layer(*inputs()))
    assert not one_sided(proj_drop=1.0).train()(*inputs()).any()


def test_heads_that_do_not_divide_the_width() -> None:
    for make in (two_way, one_sided):
        with pytest.raises(UsageError, match="the attention width 12 is not divisible by 5 heads"):
            make(heads=5)


def test_latents_of_another_batch() -> None:
    latents, tokens = inputs()
    with pytest.raises(UsageError, match="latents must have batch size 1 or that of the tokens, 2, not 3"):
        two_way()(latents[:1].expand(3, -1, -1), tokens[:2])


def test_gradients() -> None:
    latents, tokens = (tensor.requires_grad_() for tensor in inputs(1, latents=2, tokens=3))
    assert torch.autograd.gradcheck(two_way(), (latents, tokens))
    assert torch.autograd.gradcheck(one_sided(), (latents, tokens))
