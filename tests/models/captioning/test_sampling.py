"""Several captions of an image: beams are the most probable ones, and random ones have the model's probabilities."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from tests.models.captioning.test_model import images, tiny

WORDS, LENGTH = 6, 2
END, PAD, START = 3, 1, 2


def probabilities(model: torch.nn.Module, features: Tensor) -> dict[tuple[int, ...], float]:
    """Of all captions of up to two tokens for one image, padded."""
    found = {}
    for caption in product(range(WORDS), repeat=LENGTH):
        if caption[0] == END and caption[1] != PAD:
            continue
        ids = torch.tensor([[START, caption[0]]])
        scores = model(features, ids).double().log_softmax(-1)[0]
        total = scores[0, caption[0]] + (0 if caption[0] == END else scores[1, caption[1]])
        found[caption] = float(total.exp())
    return found


@torch.no_grad()
def test_beams_are_the_most_probable_captions() -> None:
    model, (features, _) = tiny(vocab_size=WORDS), images()
    found = model.sample(features, count=WORDS, max_new_tokens=LENGTH)
    assert found.shape == (4, WORDS, LENGTH)
    for image, beams in zip(features, found.tolist(), strict=True):
        known = probabilities(model, image[None])
        assert sum(known.values()) == pytest.approx(1)
        best = sorted(known, key=lambda caption: -known[caption])[:WORDS]
        assert [tuple(beam) for beam in beams] == best


@torch.no_grad()
def test_random_captions_have_the_probabilities_of_the_model() -> None:
    """Numbers on a grid, instead of random ones, give the probabilities to the size of a cell."""
    model, (features, _) = tiny(vocab_size=WORDS), images()
    cells = 60
    first, second = torch.meshgrid(*[(torch.arange(cells) + 0.5) / cells] * 2, indexing="ij")
    draws = torch.stack([first.flatten(), second.flatten()], dim=-1).expand(4, -1, -1)
    found = model.sample(features, count=cells**2, max_new_tokens=LENGTH, draws=draws)
    for image, captions in zip(features, found.tolist(), strict=True):
        known = probabilities(model, image[None])
        drawn = [tuple(caption) for caption in captions]
        assert {caption: drawn.count(caption) / cells**2 for caption in known} == pytest.approx(known, abs=2 / cells)


@torch.no_grad()
@pytest.mark.parametrize("random", [False, True])
def test_captions_of_an_image_do_not_depend_on_others(random: bool) -> None:
    model, (features, _) = tiny(), images()
    draws = 1 - torch.rand(4, 3, 8, generator=torch.Generator().manual_seed(0)) if random else None
    together = model.sample(features, count=3, max_new_tokens=8, draws=draws)
    for index in range(4):
        given = None if draws is None else draws[index : index + 1]
        alone = model.sample(features[index : index + 1], count=3, max_new_tokens=8, draws=given)[0]
        assert torch.equal(together[index, :, : alone.shape[1]], alone)
        assert (together[index, :, alone.shape[1] :] == PAD).all()
    ended = (together == END).cumsum(-1) - (together == END).long() > 0
    assert (together[ended] == PAD).all()
