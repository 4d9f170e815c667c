"""Attention of a captioner: the levels of its encoder, and its memory slots."""

from __future__ import annotations

import timm
import torch
from torch import Tensor, nn

import attngraft
import attngraft.models  # registers the captioner
from attngraft.analysis.text_attention import text_attention
from attngraft.recording.record import record
from attngraft.tasks.codec import TextInput
from tests.contract.tester import randomize

REGIONS = tuple(f"region {number}" for number in range(1, 5))
SLOTS = ("memory slot 1", "memory slot 2")


def captioner(slots: int) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"vocab_size": 9, "feature_dim": 5, "dim": 16, "heads": 2, "hidden": 16}
    model: nn.Module = timm.create_model("m2_transformer", **sizes, depth=(3, 1), slots=slots)
    randomize(model)
    return model.eval()


def tokens(keys: tuple[str, ...]) -> TextInput:
    features = torch.randn(1, 4, 5, generator=torch.Generator().manual_seed(1))
    features[:, 3] = 0  # padding
    return TextInput(
        kwargs={"features": features, "ids": torch.tensor([[2, 5, 6]])},
        source=REGIONS,
        inputs=("<bos>", "a", "dog"),
        target=("a", "dog", "<eos>"),
        keys=keys,
    )


def test_each_level_and_the_memory_have_their_map() -> None:
    model, given = captioner(2), tokens((*REGIONS, *SLOTS))
    attngraft.graft(model, "horizontal + vertical")
    randomize(model, only_grafts=True)
    with torch.no_grad(), record(model) as recording:
        model(**given.kwargs)
    found = text_attention(model, given)
    assert not found.skipped
    expected: dict[str, tuple[str, str, Tensor]] = {
        f"encoder.{place}.self_attn": ("source", "keys", recording[f"encoder.{place}.self_attn"]["weights"][0])
        for place in range(3)
    }
    expected["decoder.0.self_attn"] = ("target", "inputs", recording["decoder.0.self_attn"]["weights"][0])
    for level, weights in enumerate(recording["decoder.0.cross_attn"]["weights"], 1):
        expected[f"decoder.0.cross_attn: level {level}"] = ("target", "source", weights)
    assert [layer.site for layer in found.layers] == list(expected)
    for layer in found.layers:
        rows, columns, weights = expected[layer.site]
        assert (layer.rows, layer.columns) == (rows, columns)
        assert (layer.weights.numbers() - weights).abs().max() <= 0.01 * weights.max()
        if columns != "inputs":
            assert not layer.weights.bytes[:, :, 3].any()


def test_without_memory_the_keys_are_the_regions() -> None:
    found = text_attention(captioner(0), tokens(()), sites="encoder")
    assert {(layer.rows, layer.columns, tuple(layer.weights.bytes.shape)) for layer in found.layers} == {
        ("source", "source", (2, 4, 4))
    }


def test_maps_of_other_tokens_are_skipped() -> None:
    found = text_attention(captioner(2), tokens(()))
    reason = "the shape (1, 2, 4, 6) of its map does not fit the 4 x 4 tokens"
    assert found.skipped == {f"encoder.{place}.self_attn": reason for place in range(3)}
