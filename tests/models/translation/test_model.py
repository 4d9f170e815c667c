"""The translation Transformer: counts, its equations, causality, padding, caches and decoding."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import attngraft
from attngraft.hosts import find_host
from attngraft.models.beam import beam_search
from attngraft.models.host_input import host_input
from attngraft.models.translation.model import TranslationTransformer
from attngraft.tensors import meta_device
from tests.contract.stirring import stir

TINY: dict[str, Any] = {"vocab_size": 30, "dim": 24, "depth": 2, "heads": 3, "hidden": 40, "positions": 20}
SPECS = [None, "horizontal", "vertical", "horizontal + vertical"]


def tiny(spec: str | None = None, **changes: Any) -> TranslationTransformer:
    """A model whose outputs depend on everything, with grafts likewise."""
    torch.manual_seed(1)
    model = TranslationTransformer(**{**TINY, **changes}).eval()
    if spec is not None:
        attngraft.graft(model, spec)
    return stir(model, lambda *_: True)


def pairs(count: int = 4, words: int = 9, tokens: int = 7) -> tuple[Tensor, Tensor, Tensor]:
    """Sources with 3 to 9 words, their mask, and targets."""
    lengths = torch.linspace(3, words, count).long()
    mask = (torch.arange(words) < lengths.unsqueeze(1)).long()
    source = torch.randint(4, 30, (count, words)) * mask
    return source, mask, torch.cat([torch.full((count, 1), 2), torch.randint(4, 30, (count, tokens - 1))], dim=1)


@pytest.mark.parametrize(
    ("spec", "added"),
    [(None, 0), ("horizontal", 664_722), ("vertical", 3_548_160), ("horizontal + vertical", 4_212_882)],
)
def test_the_papers_size(spec: str | None, added: int) -> None:
    with meta_device():
        model = attngraft.create_model("attngraft:mt_transformer", graft=spec)
    assert sum(parameter.numel() for parameter in model.parameters()) == 48_978_432 + added
    sites = [site for site in find_host(model).sites if site.kind == "attention"]
    assert len(sites) == 18
    assert sum(site.geometry.cross for site in sites) == 6


def test_initial_values() -> None:
    """Xavier-uniform for every matrix, the padding token's embedding included; one matrix for all embeddings."""
    model = TranslationTransformer(**TINY)
    assert model.head.weight is model.embed.weight
    assert model.embed.weight[0].any()
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            bound = (6 / sum(parameter.shape)) ** 0.5
            assert 0.9 * bound < parameter.abs().max() <= bound, name
    assert not [name for name, _ in model.named_parameters() if "_attn." in name and name.endswith("bias")]


class Official:
    """The host as its authors' code computes it, from the values of `model`."""

    dk: ClassVar = TINY["dim"] // TINY["heads"]

    def __init__(self, model: TranslationTransformer, scale: str) -> None:
        self.model, self.scale = model, scale

    def attention(self, module: Any, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (
            (tokens @ linear.weight.T).view(*tokens.shape[:2], TINY["heads"], self.dk).transpose(1, 2)
            for linear, tokens in ((module.q, x), (module.k, memory), (module.v, memory))
        )
        scores = torch.matmul(q / self.dk**0.5, k.transpose(2, 3)).masked_fill(mask.unsqueeze(1) == 0, -1e9)
        heads = torch.matmul(scores.softmax(-1), v).transpose(1, 2).flatten(2)
        return heads @ module.proj.weight.T

    def embedded(self, ids: Tensor, norm: nn.Module) -> Tensor:
        dim = TINY["dim"]
        angles = np.array([[p / np.power(10000, 2 * (j // 2) / dim) for j in range(dim)] for p in range(ids.shape[1])])
        angles[:, 0::2], angles[:, 1::2] = np.sin(angles[:, 0::2]), np.cos(angles[:, 1::2])
        x = self.model.embed.weight[ids] * (dim**0.5 if self.scale == "emb" else 1)
        return norm(x + torch.tensor(angles, dtype=torch.float32))

    def mlp(self, module: Any, x: Tensor) -> Tensor:
        return (x @ module.fc1.weight.T + module.fc1.bias).relu() @ module.fc2.weight.T + module.fc2.bias

    def __call__(self, source: Tensor, target: Tensor) -> Tensor:
        model = self.model
        seen = (source != 0).unsqueeze(1)
        before = (target != 0).unsqueeze(1) & torch.ones(target.shape[1], target.shape[1]).tril().bool()
        memory, x = self.embedded(source, model.encoder_norm), self.embedded(target, model.decoder_norm)
        for layer in model.encoder:
            memory = layer.self_attn_norm(memory + self.attention(layer.self_attn, memory, memory, seen))
            memory = layer.mlp_norm(memory + self.mlp(layer.mlp, memory))
        for layer in model.decoder:
            x = layer.self_attn_norm(x + self.attention(layer.self_attn, x, x, before))
            x = layer.cross_attn_norm(x + self.attention(layer.cross_attn, x, memory, seen))
            x = layer.mlp_norm(x + self.mlp(layer.mlp, x))
        logits = x @ model.embed.weight.T
        return logits * TINY["dim"] ** -0.5 if self.scale == "prj" else logits


@pytest.mark.parametrize("scale", ["emb", "prj"])
@torch.no_grad()
def test_it_computes_what_the_authors_code_computes(scale: Any) -> None:
    model = tiny(scale=scale)
    source, mask, target = pairs()
    target[:2, 5:] = 0  # padding tokens
    found, expected = model(source, mask, target), Official(model, scale)(source, target)
    kept = target != 0
    torch.testing.assert_close(found[kept], expected[kept], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("spec", SPECS)
@torch.no_grad()
def test_a_token_changes_no_output_before_it(spec: str | None) -> None:
    model = tiny(spec)
    source, mask, target = pairs()
    expected = model(source, mask, target)
    for position in range(1, target.shape[1]):
        other = target.clone()
        other[:, position] = (other[:, position] + 1) % 30
        found = model(source, mask, other)
        assert torch.equal(found[:, :position], expected[:, :position])
        assert not torch.equal(found[:, position], expected[:, position])


@pytest.mark.parametrize("spec", [*SPECS, "bisa@encoder", "bisa(norm=true, learned=true)@encoder"])
@torch.no_grad()
def test_padding_changes_nothing(spec: str | None) -> None:
    source, mask, target = pairs()
    fresh = attngraft.create_model("mt_transformer", graft=spec, **TINY).eval()
    rounding = 5e-5 if spec is not None and "bisa" in spec else 2e-6  # of its norms over few tokens
    for model, tolerance in ((fresh, rounding), (tiny(spec).double(), 1e-12)):
        for row, tokens in ((0, 3), (2, 7)):
            alone = model(source[row : row + 1, :tokens], None, target[row : row + 1])
            for padding in (0, 5):  # whatever the padding token
                found = model(torch.where(mask == 1, source, padding), mask, target)[row : row + 1]
                torch.testing.assert_close(found, alone, atol=tolerance, rtol=0)


@torch.no_grad()
def test_a_source_without_tokens_gives_finite_logits() -> None:
    source, mask, target = pairs()
    mask[0] = 0
    assert torch.isfinite(tiny()(source, mask, target)).all()


@pytest.mark.parametrize("spec", [None, "horizontal + vertical"])
@torch.no_grad()
def test_a_cache_changes_nothing(spec: str | None) -> None:
    """Token by token and in pieces."""
    model = tiny(spec)
    source, mask, target = pairs()
    memory, expected = model.encode(source, mask), model(source, mask, target)
    for sizes in ([1] * 7, [3, 1, 3], [2, 5]):
        cache, found = None, []
        for piece in target.split(sizes, dim=1):
            logits, cache = model.decode(piece, memory, mask, cache)
            found.append(logits)
        torch.testing.assert_close(torch.cat(found, dim=1), expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_rows_of_a_sentence_share_its_memory() -> None:
    model = tiny()
    source, mask, target = pairs(count=2)
    rows = target.repeat_interleave(3, dim=0)
    rows[:, 2] = torch.arange(4, 10)
    found, _ = model.decode(rows, model.encode(source, mask), mask)
    repeated = source.repeat_interleave(3, dim=0), mask.repeat_interleave(3, dim=0)
    torch.testing.assert_close(found, model(*repeated, rows), atol=1e-5, rtol=1e-5)


def uncached(model: TranslationTransformer, source: Tensor, mask: Tensor, **options: Any) -> Tensor:
    """Beam search that computes all tokens at every step, with the memory of each row."""

    def step(tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        sources, shown, written = state
        written = tokens if written is None else torch.cat([written, tokens], dim=1)
        beams = len(tokens) // len(sources)
        repeated = sources.repeat_interleave(beams, dim=0), shown.repeat_interleave(beams, dim=0)
        return model(*repeated, written)[:, -1], (sources, shown, written)

    return beam_search(
        step,
        lambda state, rows, sentences: (state[0][sentences], state[1][sentences], state[2][rows]),
        (source, mask, None),
        start=torch.full((len(source), 1), 2),
        end=model.end,
        pad=0,
        **options,
    )[0]


@pytest.mark.parametrize(("spec", "end"), [(None, 11), ("horizontal + vertical", 24)])
@pytest.mark.parametrize("beams", [1, 5])
def test_generate(spec: str | None, end: int, beams: int) -> None:
    """Equal to decoding without caches, and to one sentence at a time; some sentences end early, others never."""
    model = tiny(spec, end=end)
    source, mask, _ = pairs(count=8)
    options: dict[str, Any] = {"num_beams": beams, "length_penalty": 0.7, "max_new_tokens": 12}
    found = model.generate(source, mask, **options)
    assert torch.equal(found, uncached(model, source, mask, **options))
    ended = (found == end).any(dim=1)
    assert ended.any() and not ended.all()
    for row, words, shown in zip(found, source, mask, strict=True):
        alone = model.generate(words[shown == 1].unsqueeze(0), **options)[0]
        assert alone.tolist() == row[: len(alone)].tolist()
        assert not row[len(alone) :].any()


@torch.no_grad()
def test_one_beam_is_greedy() -> None:
    model = tiny()
    source, mask, _ = pairs(count=8)
    found = model.generate(source, mask, max_new_tokens=12)
    logits = model(source, mask, found[:, :-1])
    written = found[:, 1:] != 0
    assert torch.equal(logits.argmax(-1)[written], found[:, 1:][written])


def test_what_cannot_be_computed_is_an_error() -> None:
    model = tiny()
    source, mask, target = pairs()
    with pytest.raises(
        attngraft.AttngraftError, match="source: 21 tokens, but the model has 20 positions.*positions=21"
    ):
        model(source.repeat(1, 3)[:, :21], None, target)
    with pytest.raises(attngraft.AttngraftError, match="target: 21 tokens"):
        model(source, mask, target.repeat(1, 3))
    with pytest.raises(attngraft.AttngraftError, match="max_new_tokens: 21 tokens"):
        model.generate(source, mask, max_new_tokens=21)
    with pytest.raises(attngraft.AttngraftError, match=r"decoder_input_ids is missing.*generate\(\)"):
        model(source, mask)
    attngraft.graft(model, "cb@encoder")
    assert torch.isfinite(model(source, torch.ones_like(mask), target)).all()
    with pytest.raises(attngraft.AttngraftError, match="does not support this call with a padding mask"):
        model(source, mask, target)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scale": "both"}, "scale must be 'emb' or 'prj', not 'both'"),
        ({"dim": 100}, "dim=100 is not divisible by heads=8"),
        ({"depth": [2]}, "depth must be a number or two"),
        ({"end": 9521}, "end=9521 is no token of a vocabulary with vocab_size=9521"),
        ({"pretrained": True}, "no pretrained weights of this model"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(attngraft.HostError, match=message):
        attngraft.create_model("attngraft:mt_transformer", **arguments)


def test_its_input() -> None:
    decoder = {"start": 0, "end": 3, "max_length": 100, "forced": None}
    assert host_input("attngraft:mt_transformer", {"positions": 100, "pad": 1, "start": 0}) == {
        "kind": "text",
        "tokenizer": None,
        "max_length": 100,
        "vocab_size": None,
        "pad": 1,
        "decoder": decoder,
    }
