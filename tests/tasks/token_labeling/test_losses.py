"""Token labeling: which targets meet which logits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attngraft.errors import UsageError
from attngraft.tasks.token_labeling.losses import TokenLabelLoss

NOTHING = (0, 0, 0, 0)


def labels(*classes: int) -> Tensor:
    """Targets (B, 4) that are all or nothing."""
    return torch.nn.functional.one_hot(torch.tensor(classes), 4).double()


def entropy(logits: Tensor, target: Tensor) -> Tensor:
    return -(target * logits.log_softmax(-1)).sum(-1).mean()


@pytest.fixture
def logits() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(2, 4, generator=generator, dtype=torch.float64),
        torch.randn(2, 6, 4, generator=generator, dtype=torch.float64),
    )


def test_plain_labels_are_those_of_every_patch(logits: tuple[Tensor, Tensor]) -> None:
    target = labels(1, 3)
    found = TokenLabelLoss()(*logits, target, box=NOTHING)
    patches = entropy(logits[1], target.unsqueeze(1).expand(2, 6, 4))
    torch.testing.assert_close(found, entropy(logits[0], target) + 0.5 * patches)


def test_every_patch_has_its_own_label(logits: tuple[Tensor, Tensor]) -> None:
    """Truth, class token's label, then the patches', along the last axis."""
    target = torch.stack([labels(0, 1), labels(2, 1), *(labels(each % 4, 3 - each % 4) for each in range(6))], -1)
    found = TokenLabelLoss(dense_weight=2.0, class_weight=3.0)(*logits, target, box=NOTHING)
    dense = entropy(logits[1], target[..., 2:].transpose(1, 2))
    torch.testing.assert_close(found, 3 * entropy(logits[0], labels(2, 1)) + 2 * dense)
    mixed = torch.stack([0.9 * labels(2)[0] + 0.1 * labels(0)[0], labels(1)[0]])  # the second's two agree
    found = TokenLabelLoss(with_ground_truth=True)(*logits, target, box=NOTHING)
    torch.testing.assert_close(found, entropy(logits[0], mixed) + 0.5 * dense)


def test_a_box_mixes_the_class_target_by_its_share_of_the_patches(logits: tuple[Tensor, Tensor]) -> None:
    target = labels(1, 3)
    found = TokenLabelLoss(dense_weight=0.0)(*logits, target, box=(0, 1, 2, 2))
    torch.testing.assert_close(found, entropy(logits[0], (4 * target + 2 * target.flip(0)) / 6))


def test_another_number_of_patches(logits: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(UsageError, match="targets for 5 patches, but the model has 6"):
        TokenLabelLoss()(*logits, torch.zeros(2, 4, 7), box=NOTHING)
