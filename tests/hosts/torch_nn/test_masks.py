"""Masks, padding, requested weights and other keys: handled as in torch, or refused with the reason."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attngraft
from attngraft.errors import UsageError
from attngraft.export.fold import fold
from tests.grafting import toys  # noqa: F401 - registers the toy grafts

E, H, N = 16, 4, 6
generator = torch.Generator().manual_seed(5)
X = torch.randn(3, N, E, generator=generator)
MEMORY = torch.randn(3, 5, E, generator=generator)
CAUSAL = nn.Transformer.generate_square_subsequent_mask(N)
PADDING = torch.arange(N) >= torch.tensor([[6], [4], [3]])
MASKS: dict[str, Tensor | None] = {
    "none": None,
    "float": torch.randn(N, N, generator=generator),
    "boolean": CAUSAL < 0,
    "by head": torch.randn(3 * H, N, N, generator=generator),
}


def _attention(**options: Any) -> nn.MultiheadAttention:
    torch.manual_seed(0)
    return nn.MultiheadAttention(E, H, **{"batch_first": True, "dropout": 0.2, **options})


def _turned(x: Tensor, batch_first: bool) -> Tensor:
    return x if batch_first else x.transpose(0, 1)


@pytest.mark.filterwarnings("ignore:Support for mismatched")
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize(("mask", "padding"), list(itertools.product(MASKS, [None, "boolean", "float"])))
def test_masks_and_weights_are_the_hosts(mask: str, padding: str | None, batch_first: bool, training: bool) -> None:
    host = _attention(batch_first=batch_first, add_bias_kv=mask == "by head").train(training)
    x = _turned(X, batch_first)
    given: dict[str, Any] = {"attn_mask": MASKS[mask]}
    if padding is not None:
        given["key_padding_mask"] = (
            PADDING if padding == "boolean" else torch.zeros(3, N).masked_fill(PADDING, -torch.inf)
        )
    for wanted in ({"need_weights": False}, {}, {"average_attn_weights": False}):
        torch.manual_seed(1)
        expected = host(x, x, x, **given, **wanted)
        torch.manual_seed(1)
        with attngraft.record(host):
            found = host(x, x, x, **given, **wanted)
        assert torch.equal(found[0], expected[0])
        assert (found[1] is None and expected[1] is None) or torch.equal(found[1], expected[1])


def test_a_causal_hint_is_carried() -> None:
    host = _attention().eval()
    expected = host(X, X, X, attn_mask=CAUSAL, is_causal=True, need_weights=False)[0]
    with attngraft.record(host, ["weights"]) as recording:
        assert torch.equal(host(X, X, X, attn_mask=CAUSAL, is_causal=True, need_weights=False)[0], expected)
    assert not recording["attention"]["weights"].triu(1).any()
    attngraft.graft(host, "horizontal")
    with pytest.raises(UsageError, match="is_causal is only a hint.*pass attn_mask too"):
        host(X, X, X, is_causal=True)


@pytest.mark.parametrize("given", [{"attn_mask": torch.zeros(5, N)}, {"key_padding_mask": torch.zeros(5, 3) > 0}])
def test_a_mask_of_another_shape_is_refused_as_the_host_does(given: dict[str, Tensor]) -> None:
    """A transposed mask has the right number of entries but the wrong shape."""
    host = _attention().eval()
    with pytest.raises((RuntimeError, AssertionError)):
        host(X, MEMORY, MEMORY, **given)
    attngraft.graft(host, "horizontal")
    with pytest.raises(UsageError, match=rf"{next(iter(given))} must have shape .*, not \(5, "):
        host(X, MEMORY, MEMORY, **given)
    host(X[0], X[0], X[0], key_padding_mask=PADDING[1])


@pytest.mark.parametrize("spec", ["toy_squared", "uniform_heads"])
def test_grafted_maps_see_the_mask(spec: str) -> None:
    host = _attention().eval()
    attngraft.graft(host, spec)
    _, weights = host(X, X, X, attn_mask=CAUSAL < 0, key_padding_mask=PADDING, average_attn_weights=False)
    assert not weights.triu(1).any()
    assert not weights[2, :, :, 3:].any()
    if spec == "uniform_heads":
        torch.testing.assert_close(weights[1, -1, 5], torch.tensor([0.25] * 4 + [0.0] * 2))


@pytest.mark.parametrize("average", [True, False])
def test_weights_with_a_mix_graft_are_those_of_self_attention(average: bool) -> None:
    host = _attention(dropout=0.0).eval()
    given = {"average_attn_weights": average}
    plain, expected = host(X, X, X, **given)
    attngraft.graft(host, "misa")  # which needs no map
    found, weights = host(X, X, X, **given)
    assert not torch.allclose(found, plain, atol=1e-3)
    assert weights.shape == expected.shape
    torch.testing.assert_close(weights, expected)


@pytest.mark.parametrize("spec", ["cb_s(init=1, at=attention)", "bisa"])
def test_what_mixes_tokens_refuses_masks_when_called(spec: str) -> None:
    host = _attention().eval()
    attngraft.graft(host, spec)
    host(X, X, X)
    with pytest.raises(
        UsageError,
        match="with a mask over pairs of tokens, treated as causal: its tokens must not",
    ):
        host(X, X, X, attn_mask=CAUSAL)
    with pytest.raises(UsageError, match="with a padding mask: its batches contain padding"):
        host(X, X, X, key_padding_mask=PADDING)


def test_and_keys_of_other_tokens() -> None:
    host = _attention().eval()
    attngraft.graft(host, "bisa")
    with pytest.raises(UsageError, match="keys or values from tokens other.*choose self-attention sites"):
        host(X, MEMORY, MEMORY)
    attngraft.ungraft(host)
    expected = host(X, X + 1, X)[0]  # as in detectors: positions in queries and keys, not in values
    attngraft.graft(host, "horizontal(identity=true)")
    torch.testing.assert_close(host(X, X + 1, X)[0], expected)


@pytest.mark.parametrize("spec", ["cb", "se", "bisa", "cb_s(at=attention)"])
@pytest.mark.parametrize(
    "given", [{"src_key_padding_mask": PADDING}, {"mask": CAUSAL}, {"mask": CAUSAL, "is_causal": True}]
)
def test_a_stack_refuses_masks_as_its_layers_do(spec: str, given: dict[str, Any]) -> None:
    host = nn.TransformerEncoder(nn.TransformerEncoderLayer(E, H, 24, batch_first=True), 2).eval()
    attngraft.graft(host, spec)
    host(X)
    with torch.no_grad(), pytest.raises(UsageError, match="padding mask|mask over pairs"):
        host(X, **given)


def test_the_refusal_survives_copies_and_folding() -> None:
    host = nn.TransformerEncoderLayer(E, H, 24, batch_first=True).eval()
    attngraft.graft(host, "cb")
    expected = host(X)
    host = copy.deepcopy(host)
    folded = fold(host)
    assert folded.entries[0].folded
    torch.testing.assert_close(host(X), expected)
    with pytest.raises(UsageError, match="padding mask"):
        host(X, src_key_padding_mask=PADDING)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
def test_padding_changes_nothing_for_what_stays_in_its_token(norm_first: bool, batch_first: bool) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(E, H, 24, batch_first=batch_first, norm_first=norm_first)
    host = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    attngraft.graft(host, "horizontal + vertical + toy_flatten")
    with torch.no_grad():
        whole = _turned(host(_turned(X, batch_first), src_key_padding_mask=PADDING), batch_first)
        alone = _turned(host(_turned(X[1:2, :4], batch_first)), batch_first)
    torch.testing.assert_close(whole[1:2, :4], alone)


def test_a_context_is_over_tokens_whatever_the_order_of_axes() -> None:
    """With sequence-first tensors too, the mean is over tokens, not over the batch."""
    torch.manual_seed(0)
    first = nn.TransformerEncoderLayer(E, H, 24, batch_first=True).eval()
    second = nn.TransformerEncoderLayer(E, H, 24).eval()
    second.load_state_dict(first.state_dict())
    for host in (first, second):
        attngraft.graft(host, "cb(at=both) + se(reduction=2)")
    second.load_state_dict(first.state_dict())
    expected = first(X)
    torch.testing.assert_close(second(X.transpose(0, 1)).transpose(0, 1), expected)
    torch.testing.assert_close(second(X[0]), expected[0])  # without a batch axis


@pytest.mark.parametrize("batch_first", [True, False])
def test_dropout_draws_as_the_host_does(batch_first: bool) -> None:
    """The layer passes its dropout to patched attention; the random draws are the host's."""
    torch.manual_seed(0)
    host = nn.TransformerDecoderLayer(E, H, 24, 0.3, batch_first=batch_first)
    x, memory = _turned(X, batch_first), _turned(MEMORY, batch_first)
    torch.manual_seed(1)
    expected = host(x, memory)
    attngraft.graft(host, "identity + identity(stage='attn.end') + identity(stage='mlp.end')")
    torch.manual_seed(1)
    assert torch.equal(host(x, memory), expected)


def test_a_branch_of_a_layer_ends_behind_its_dropout() -> None:
    torch.manual_seed(0)
    host = nn.TransformerDecoderLayer(E, H, 24, 0.5, batch_first=True)
    attngraft.graft(host, "identity(stage='attn.end') + identity(stage='mlp.end')")
    with attngraft.record(host) as recording:
        host(X, MEMORY)
    for site, stage in (("self_attn", "attn.end"), ("multihead_attn", "attn.end"), ("linear1", "mlp.end")):
        assert 0.3 < (recording[site][stage] == 0).float().mean() < 0.7
    assert (recording["self_attn"]["tokens"] != 0).all()


def test_keys_of_other_widths_are_of_other_tokens() -> None:
    host = _attention(kdim=8, vdim=8).eval()
    with pytest.raises(attngraft.HostError, match="its queries and keys are different tokens"):
        attngraft.graft(host, "uniform_heads(value=cb)")
    with pytest.raises(attngraft.HostError, match=r"have widths \(8, 8\)"):
        attngraft.graft(host, "bisa")
    attngraft.graft(host, "uniform_heads")
    _, weights = host(X, MEMORY[..., :8], MEMORY[..., 8:], average_attn_weights=False)
    torch.testing.assert_close(weights[:, -1], torch.full((3, N, 5), 0.2))


def test_a_decoder_with_grafts_stays_causal() -> None:
    torch.manual_seed(0)
    host = nn.TransformerDecoder(nn.TransformerDecoderLayer(E, H, 24, batch_first=True), 2).eval()
    attngraft.graft(host, "horizontal + vertical + toy_flatten")
    other = X.clone()
    other[:, 4:] = 0
    for training in (False, True):
        with torch.set_grad_enabled(training):
            found, changed = (host(x, MEMORY, tgt_mask=CAUSAL, tgt_is_causal=True) for x in (X, other))
        torch.testing.assert_close(found[:, :4], changed[:, :4])
        assert not torch.allclose(found[:, 4:], changed[:, 4:])


@pytest.mark.parametrize("spec", ["bisa", "misa", "cb", "cb(at=attention)", "se"])
def test_a_decoder_refuses_what_mixes_tokens(spec: str) -> None:
    host = nn.Transformer(E, H, 1, 1, 24, batch_first=True)
    with pytest.raises(attngraft.HostError, match=r"decoder\.layers\.0.*must not see later ones"):
        attngraft.graft(host, spec)
    attngraft.graft(host, f"{spec}@encoder")


@pytest.mark.filterwarnings("ignore:Support for mismatched")
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("added", [{"add_bias_kv": True}, {"add_zero_attn": True}, {"kdim": 8, "vdim": 8}], ids=str)
def test_a_map_that_takes_no_graft_is_recorded(added: dict[str, Any], need_weights: bool) -> None:
    """Covers keys from other tokens, and a key that belongs to no token."""
    host = _attention(**added).eval()
    memory = MEMORY[..., : added.get("kdim", E)].contiguous()
    given = {"attn_mask": torch.randn(N, 5, generator=generator), "average_attn_weights": False}
    _, expected = host(X, memory, memory, **given)
    output, _ = host(X, memory, memory, **given, need_weights=need_weights)
    with attngraft.record(host, {"weights", "scores"}) as recording:
        found, _ = host(X, memory, memory, **given, need_weights=need_weights)
    assert torch.equal(found, output)
    (site,) = recording
    assert torch.equal(recording[site]["weights"], expected)
    assert torch.equal(recording[site]["scores"].softmax(-1), expected)
