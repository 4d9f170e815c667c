"""Hidden centers and dropped patches."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attngraft.errors import UsageError
from attngraft.tasks.images.suites.missing import drop_patches, hide_center


def test_the_papers_center() -> None:
    hidden = hide_center(torch.ones(1, 3, 224, 224))
    expected = torch.ones(1, 3, 224, 224)
    expected[:, :, 56:168, 56:168] = 0
    assert torch.equal(hidden, expected)


@given(height=st.integers(1, 9), width=st.integers(1, 9), side=st.floats(0, 1))
def test_a_center_of_any_size(height: int, width: int, side: float) -> None:
    image = torch.rand(2, 3, height, width)
    hidden = hide_center(image, side=side, fill=torch.tensor([2.0, 3.0, 4.0]))
    changed = (hidden != image).any(1)
    assert changed.sum() == 2 * round(side * height) * round(side * width)
    assert hidden.amax() <= 4
    assert hidden.dtype == image.dtype
    for axis in (1, 2):  # in the middle, to half a pixel
        rows = changed.any(axis)[0].nonzero().flatten()
        if len(rows):
            assert abs((rows[0] + rows[-1]) - (changed.shape[3 - axis] - 1)) <= 1


def test_patches_that_score_highest_go() -> None:
    images = torch.rand(2, 3, 8, 12) + 1
    scores = torch.tensor([[0, 1, 2, 3, 4, 5], [5, 5, 5, 5, 0, 9]])
    dropped = drop_patches(images, scores, share=0.5, patch=4)
    gone = (dropped == 0).all(1)
    assert gone[:, ::4, ::4].flatten(1).int().tolist() == [[0, 0, 0, 1, 1, 1], [1, 1, 0, 0, 0, 1]]
    assert gone.sum() == 2 * 3 * 16
    assert torch.equal(dropped[~gone.unsqueeze(1).expand_as(images)], images[~gone.unsqueeze(1).expand_as(images)])
    assert torch.equal(drop_patches(images, scores, share=0, patch=4), images)
    assert (drop_patches(images, scores, share=1, patch=4, fill=0.5) == 0.5).all()


@pytest.mark.parametrize(
    ("patch", "scores", "share", "message"),
    [
        (5, (1, 4), 0.5, "8 x 8 is not divisible by the patch size"),
        (4, (1, 5), 0.5, "for 2 x 2 patches of 1 images"),
        (4, (1, 4), 1.5, "between 0 and 1"),
    ],
)
def test_what_cannot_be_dropped(patch: int, scores: tuple[int, int], share: float, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        drop_patches(torch.rand(1, 3, 8, 8), torch.rand(scores), share=share, patch=patch)
    with pytest.raises(UsageError, match="side must be between 0 and 1"):
        hide_center(torch.rand(1, 3, 8, 8), side=2)
