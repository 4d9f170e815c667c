"""The meshed-memory captioner: counts, its equations, causality, padding, caches, decoding and official weights."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attngraft
from attngraft.hosts import find_host
from attngraft.models.beam import beam_search
from attngraft.models.captioning.model import M2Transformer
from attngraft.models.host_input import host_input
from attngraft.models.weights import load_official
from attngraft.tensors import meta_device
from tests.contract.stirring import stir

TINY: dict[str, Any] = {"vocab_size": 30, "feature_dim": 12, "dim": 24, "heads": 3, "hidden": 40, "slots": 4}
TINY |= {"positions": 20}
SPECS = [None, "horizontal", "vertical", "horizontal + vertical"]


def tiny(spec: str | None = None, **changes: Any) -> M2Transformer:
    """A model whose outputs depend on everything, with grafts likewise."""
    torch.manual_seed(1)
    model = M2Transformer(**{**TINY, **changes}).eval()
    if spec is not None:
        attngraft.graft(model, spec)
    return stir(model, lambda *_: True)


def images(count: int = 4, regions: int = 7, tokens: int = 6) -> tuple[Tensor, Tensor]:
    """Features of 3 to 7 regions, and captions."""
    lengths = torch.linspace(3, regions, count).long()
    features = torch.randn(count, regions, 12) * (torch.arange(regions) < lengths.unsqueeze(1)).unsqueeze(-1)
    return features, torch.cat([torch.full((count, 1), 2), torch.randint(4, 30, (count, tokens - 1))], dim=1)


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        (None, 38_411_264),
        ("horizontal", 38_743_625),
        ("vertical", 40_185_344),
        ("horizontal + vertical", 40_517_705),
    ],
)
def test_the_papers_size(spec: str | None, count: int) -> None:
    with meta_device():
        model = attngraft.create_model("attngraft:m2_transformer", graft=spec)
    assert sum(parameter.numel() for parameter in model.parameters()) == count
    sites = [site for site in find_host(model).sites if site.kind == "attention"]
    assert len(sites) == 9
    assert sum(site.geometry.cross for site in sites) == 3
    assert sum(site.geometry.key_tokens == 90 for site in sites) == 3


def test_initial_values() -> None:
    """Xavier-uniform for every matrix and memory; the input and output embeddings are two matrices."""
    model = M2Transformer(**TINY)
    assert model.head.weight is not model.embed.weight
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            fan_out, fan_in, *rest = parameter.shape
            bound = (6 / ((fan_in + fan_out) * (rest[0] if rest else 1))) ** 0.5
            assert 0.8 * bound < parameter.abs().max() <= bound, name


class Official:
    """The host as its authors' code computes it, from its state dict."""

    heads, dk, slots = 3, 8, 4

    def __init__(self, state: dict[str, Tensor], pad: int) -> None:
        self.state, self.pad = state, pad

    def linear(self, name: str, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.state[f"{name}.weight"], self.state.get(f"{name}.bias"))

    def norm(self, name: str, x: Tensor) -> Tensor:
        weight, bias = self.state[f"{name}.layer_norm.weight"], self.state[f"{name}.layer_norm.bias"]
        return nn.functional.layer_norm(x, x.shape[-1:], weight, bias)

    def attention(self, name: str, queries: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        (b, nq), nk = queries.shape[:2], keys.shape[1]
        q = self.linear(f"{name}.attention.fc_q", queries).view(b, nq, self.heads, self.dk).permute(0, 2, 1, 3)
        k, v = self.linear(f"{name}.attention.fc_k", keys), self.linear(f"{name}.attention.fc_v", keys)
        if f"{name}.attention.m_k" in self.state:
            m_k, m_v = (self.state[f"{name}.attention.m_{each}"].expand(b, -1, -1) for each in "kv")
            k, v = torch.cat([k, self.dk**0.5 * m_k], 1), torch.cat([v, self.slots**0.5 * m_v], 1)
        k, v = (each.view(b, -1, self.heads, self.dk) for each in (k, v))
        att = torch.matmul(q, k.permute(0, 2, 3, 1)) / self.dk**0.5
        att[:, :, :, :nk] = att[:, :, :, :nk].masked_fill(mask, float("-inf"))
        out = torch.matmul(torch.softmax(att, -1), v.permute(0, 2, 1, 3)).permute(0, 2, 1, 3).reshape(b, nq, -1)
        return self.norm(name, queries + self.linear(f"{name}.attention.fc_o", out))

    def feed_forward(self, name: str, x: Tensor) -> Tensor:
        return self.norm(name, x + self.linear(f"{name}.fc2", self.linear(f"{name}.fc1", x).relu()))

    def __call__(self, features: Tensor, ids: Tensor, *, intended: bool) -> Tensor:
        out = self.norm("encoder", self.linear("encoder.fc", features).relu())
        hidden = (features if intended else out).sum(-1) == 0
        mask = hidden.unsqueeze(1).unsqueeze(1)
        levels = []
        for layer in range(3):
            name = f"encoder.layers.{layer}"
            out = self.feed_forward(f"{name}.pwff", self.attention(f"{name}.mhatt", out, out, mask))
            levels.append(out)
        mask_pad = (ids != self.pad).unsqueeze(-1).float()
        mask_self = torch.ones(ids.shape[1], ids.shape[1]).triu(1).bool() | (ids == self.pad)[:, None, None]
        seq = torch.arange(1, ids.shape[1] + 1).expand(len(ids), -1).masked_fill(ids == self.pad, 0)
        out = self.state["decoder.word_emb.weight"][ids] + self.state["decoder.pos_emb.weight"][seq]
        for layer in range(3):
            name = f"decoder.layers.{layer}"
            self_att = self.attention(f"{name}.self_att", out, out, mask_self) * mask_pad
            enc_att = torch.zeros_like(out)
            for number, level in enumerate(levels, start=1):
                each = self.attention(f"{name}.enc_att", self_att, level, mask) * mask_pad
                enc_att += each * self.linear(f"{name}.fc_alpha{number}", torch.cat([self_att, each], -1)).sigmoid()
            out = self.feed_forward(f"{name}.pwff", enc_att / 3**0.5 * mask_pad) * mask_pad
        return self.linear("decoder.fc", out).log_softmax(-1)


def official_state(seed: int = 0) -> dict[str, Tensor]:
    """A state dict with the authors' names, and the state that their decoder stores."""
    dim, hidden, generator = 24, 40, torch.Generator().manual_seed(seed)
    state: dict[str, Tensor] = {}

    def add(name: str, *shape: int) -> None:
        state[name] = 0.4 * torch.randn(*shape, generator=generator)

    def linear(name: str, inputs: int, outputs: int) -> None:
        add(f"{name}.weight", outputs, inputs)
        add(f"{name}.bias", outputs)

    def norm(name: str) -> None:
        add(f"{name}.layer_norm.weight", dim)
        add(f"{name}.layer_norm.bias", dim)

    def attention(name: str) -> None:
        for each in ("q", "k", "v", "o"):
            linear(f"{name}.attention.fc_{each}", dim, dim)
        norm(name)

    linear("encoder.fc", 12, dim)
    norm("encoder")
    add("decoder.word_emb.weight", 30, dim)
    add("decoder.pos_emb.weight", 21, dim)
    add("decoder.fc.weight", 30, dim)
    for stack, parts in (("encoder", ["mhatt"]), ("decoder", ["self_att", "enc_att"])):
        for layer in range(3):
            name = f"{stack}.layers.{layer}"
            for part in parts:
                attention(f"{name}.{part}")
            linear(f"{name}.pwff.fc1", dim, hidden)
            linear(f"{name}.pwff.fc2", hidden, dim)
            norm(f"{name}.pwff")
            if stack == "encoder":
                add(f"{name}.mhatt.attention.m_k", 1, 4, dim)
                add(f"{name}.mhatt.attention.m_v", 1, 4, dim)
            else:
                for number in (1, 2, 3):
                    linear(f"{name}.fc_alpha{number}", 2 * dim, dim)
                state[f"{name}.self_att.running_keys"] = state[f"{name}.self_att.running_values"] = torch.zeros(0, dim)
    state["decoder.running_mask_self_attention"] = torch.zeros(1, 1, 0, dtype=torch.bool)
    state["decoder.running_seq"] = torch.zeros(1, dtype=torch.long)
    return state


@pytest.mark.parametrize("official_mask", [False, True])
@torch.no_grad()
def test_it_computes_what_the_authors_code_computes(official_mask: bool, tmp_path: Path) -> None:
    """With their weights, among padding of images and captions."""
    state = official_state()
    torch.save({"state_dict": state, "epoch": 3, "best_cider": 1.1}, tmp_path / "meshed_memory_transformer.pth")
    model = M2Transformer(**TINY, official_mask=official_mask).eval()
    load_official(model, tmp_path / "meshed_memory_transformer.pth")
    features, ids = images()
    ids[0, 4:] = ids[1, 2] = 1  # padding at the end and inside
    expected = Official(state, 1)(features, ids, intended=not official_mask)
    torch.testing.assert_close(model(features, ids).log_softmax(-1), expected, atol=2e-5, rtol=1e-5)


@torch.no_grad()
def test_the_official_mask_hides_by_rounding() -> None:
    """Padding is visible, and a region whose embedding sums to 0 is not."""
    model = tiny(official_mask=True)
    features, _ = images()
    assert model.encode(features)[1].all()
    model.encoder_norm.weight.zero_()
    model.encoder_norm.bias.zero_()
    with pytest.raises(attngraft.AttngraftError, match="4 of 4 images have no regions"):
        model.encode(features)


@pytest.mark.parametrize("spec", SPECS)
@torch.no_grad()
def test_a_token_changes_no_output_before_it(spec: str | None) -> None:
    model = tiny(spec)
    features, ids = images()
    expected = model(features, ids)
    for position in range(1, ids.shape[1]):
        other = ids.clone()
        other[:, position] = (other[:, position] - 3) % 26 + 4
        found = model(features, other)
        assert torch.equal(found[:, :position], expected[:, :position])
        assert not torch.equal(found[:, position], expected[:, position])


@pytest.mark.parametrize("spec", SPECS)
@torch.no_grad()
def test_padding_changes_nothing(spec: str | None) -> None:
    """Of regions and of captions."""
    model = tiny(spec).double()
    features, ids = images()
    features = features.double()
    for row, regions in ((0, 3), (1, 4)):
        alone = model(features[row : row + 1, :regions], ids[row : row + 1])
        torch.testing.assert_close(model(features, ids)[row : row + 1], alone, atol=1e-12, rtol=0)
    padded = torch.cat([ids, torch.full((len(ids), 2), 1)], dim=1)
    torch.testing.assert_close(model(features, padded)[:, :-2], model(features, ids), atol=1e-12, rtol=0)
    assert not model(features, padded)[:, -2:].any()


@torch.no_grad()
def test_padding_inside_a_caption_is_hidden() -> None:
    """Its embedding has no effect, and neither has its output."""
    model = tiny("horizontal + vertical")
    features, ids = images()
    ids[1, 3] = 1
    expected = model(features, ids)
    model.embed.weight[1] += 1
    assert torch.equal(model(features, ids), expected)


@pytest.mark.parametrize("spec", [None, "horizontal + vertical"])
@torch.no_grad()
def test_a_cache_changes_nothing(spec: str | None) -> None:
    """Token by token and in pieces, also after padding."""
    model = tiny(spec)
    features, ids = images()
    ids[1, 2] = 1
    levels, mask = model.encode(features)
    expected = model(features, ids)
    for sizes in ([1] * 6, [3, 1, 2], [2, 4]):
        cache, found = None, []
        for piece in ids.split(sizes, dim=1):
            logits, cache = model.decode(piece, levels, mask, cache)
            found.append(logits)
        torch.testing.assert_close(torch.cat(found, dim=1), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("spec", [None, "horizontal + vertical"])
def test_captions_share_their_image(spec: str | None) -> None:
    """As for an image per caption, also in the gradients; an image may have no captions, or any number."""
    model = tiny(spec)
    features, _ = images(count=3)
    _, ids = images(count=6)
    adjacent = model(features, ids)
    indices = torch.arange(3).repeat_interleave(2)
    torch.testing.assert_close(adjacent, model(features[indices], ids), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(adjacent, model(features, ids, indices), atol=1e-5, rtol=1e-5)
    mixed = torch.tensor([2, 0, 2, 2, 0, 2])
    gradients = []
    for inputs in ((features, ids, mixed), (features[mixed], ids)):
        model.zero_grad()
        model(*inputs).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)


def test_every_image_is_encoded_once() -> None:
    model, seen = tiny(), []
    for module in (model.encoder[0], model.decoder[0].cross_attn.k):
        module.register_forward_hook(lambda _, inputs, output: seen.append(len(inputs[0])))
    features, ids = images(count=2)
    model(features, ids.repeat(5, 1), torch.arange(10) % 2)
    assert seen == [2, 2 * 3]


def uncached(model: M2Transformer, features: Tensor, **options: Any) -> Tensor:
    """Beam search that computes all tokens at every step, with the image of each row."""

    def step(tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        regions, written = state
        written = tokens if written is None else torch.cat([written, tokens], dim=1)
        return model(regions.repeat_interleave(len(tokens) // len(regions), dim=0), written)[:, -1], (regions, written)

    return beam_search(
        step,
        lambda state, rows, sentences: (state[0][sentences], state[1][rows]),
        (features, None),
        start=torch.full((len(features), 1), 2),
        end=model.end,
        pad=model.pad,
        **options,
    )[0]


@pytest.mark.parametrize(("spec", "end"), [(None, 11), ("horizontal + vertical", 24)])
@pytest.mark.parametrize("beams", [1, 5])
def test_generate(spec: str | None, end: int, beams: int) -> None:
    """Equal to decoding without caches, and to one image at a time."""
    model = tiny(spec, end=end)
    features, _ = images(count=8)
    options: dict[str, Any] = {"num_beams": beams, "length_penalty": 0.7, "max_new_tokens": 8}
    found = model.generate(features, **options)
    assert found.shape[0] == 8 and (found[:, 0] == 2).all()
    assert torch.equal(found, uncached(model, features, **options))
    for row, regions in zip(found, features, strict=True):
        alone = model.generate(regions[regions.any(dim=-1)].unsqueeze(0), **options)[0]
        assert alone.tolist() == row[: len(alone)].tolist()
        assert (row[len(alone) :] == model.pad).all()


@torch.no_grad()
def test_beam_search_equals_exhaustive_search() -> None:
    """Over all captions of up to four of five words, in the paper's score and per word."""
    model = tiny(vocab_size=5, pad=0, start=1, end=2)
    features, _ = images(count=2)
    for penalty in (0.0, 1.0):
        best: list[tuple[float, list[int]]] = [(float("-inf"), [])] * 2
        for words in product(range(5), repeat=4):
            cut = words.index(2) + 1 if 2 in words else 4
            ids = torch.tensor([1, *words[:cut]]).expand(2, -1)
            logs = (
                model(features, ids[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None]).sum(dim=(1, 2)) / cut**penalty
            )
            best = [max(old, (log.item(), ids[0].tolist())) for old, log in zip(best, logs, strict=True)]
        found = model.generate(features, num_beams=125, length_penalty=penalty, max_new_tokens=4)
        for row, (_, ids_of_best) in zip(found.tolist(), best, strict=True):
            assert row[: len(ids_of_best)] == ids_of_best
            assert not any(row[len(ids_of_best) :])


def test_what_cannot_be_computed_is_an_error() -> None:
    model = tiny()
    features, ids = images()
    with pytest.raises(attngraft.AttngraftError, match="ids: 24 tokens, but the model has 20 positions.*positions=24"):
        model(features, ids.repeat(1, 4))
    with pytest.raises(attngraft.AttngraftError, match="max_new_tokens: 21 tokens"):
        model.generate(features, max_new_tokens=21)
    with pytest.raises(attngraft.AttngraftError, match="3 rows for 4 images and no captions"):
        model(features, ids[:3])
    with pytest.raises(attngraft.AttngraftError, match=r"4 rows for 4 images and captions of shape \(3,\)"):
        model(features, ids, torch.arange(3))
    empty = features.clone()
    empty[2] = 0
    for call in (model.encode, model.generate):
        with pytest.raises(attngraft.AttngraftError, match="1 of 4 images have no regions, the first at index 2"):
            call(empty)
    with pytest.raises(attngraft.AttngraftError, match="4 of 4 images have no regions"):
        model.encode(features[:, :0])
    attngraft.graft(model, "cb@encoder")
    assert torch.isfinite(model(features[:, :3], ids)).all()
    with pytest.raises(attngraft.AttngraftError, match="does not support this call with a padding mask"):
        model(features, ids)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"slots": -1}, "slots=-1 must not be negative"),
        ({"dim": 100}, "dim=100 is not divisible by heads=8"),
        ({"depth": [2]}, "depth must be a number or two"),
        ({"end": 10201}, "end=10201 is no token of a vocabulary with vocab_size=10201"),
        ({"pretrained": True}, "no pretrained weights of this model"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(attngraft.HostError, match=message), meta_device():
        attngraft.create_model("attngraft:m2_transformer", **arguments)


def test_its_input() -> None:
    decoder = {"start": 2, "end": 3, "max_length": 54, "forced": None}
    assert host_input("attngraft:m2_transformer", {"feature_dim": 192, "pad": 0}) == {
        "kind": "regions",
        "feature_dim": 192,
        "vocab_size": None,
        "pad": 0,
        "decoder": decoder,
    }
