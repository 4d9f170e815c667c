"""Hadamard attention: both forms, its ghost heads, and its recorded tensors."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from attngraft.errors import UsageError
from attngraft.mechanisms.local.geometry import Neighborhood
from attngraft.mechanisms.local.hadamard import HadamardAttention, StrictFilters
from tests.listening import Heard


def layer(**changes: Any) -> HadamardAttention:
    torch.manual_seed(0)
    return HadamardAttention(12, 2, **{"kernel_size": 3, "group_width": 4, **changes})


def maps(*, rows: int = 6, columns: int = 5) -> Tensor:
    return torch.randn(2, rows, columns, 12, generator=torch.Generator().manual_seed(1))


FORMS: dict[str, dict[str, Any]] = {
    "published": {},
    "strict": {"strict": True},
    "both ghosts": {"lam": 1, "gamma": 0.5},
    "multiplier": {"lam": 2, "gamma": 0},
    "plain": {"gamma": 0},
    "widths": {"dim_qk": 6, "dim_v": 8, "qkv_bias": False, "scale": 0.5},
    "dilated": {"dilation": 2, "kernel_size": 5},
    "dilated strict": {"dilation": 2, "strict": True},
}
forms = pytest.mark.parametrize("changes", FORMS.values(), ids=FORMS)


@forms
@pytest.mark.parametrize("shape", [(6, 5), (1, 1), (2, 9)])
def test_maps_of_any_size_keep_it(changes: dict[str, Any], shape: tuple[int, int]) -> None:
    module, x = layer(**changes), maps(rows=shape[0], columns=shape[1]).requires_grad_()
    out = module(x)
    assert out.shape == x.shape
    gradients = torch.autograd.grad(out.square().sum(), [x, *module.parameters()])
    assert all(gradient.isfinite().all() for gradient in gradients)
    if shape == (6, 5):
        assert all(gradient.any() for gradient in gradients)


@forms
def test_a_pixel_is_reached_by_its_neighborhood_alone(changes: dict[str, Any]) -> None:
    """An output depends on the neighboring values, and on the neighboring products, which form its filters."""
    module, x = layer(**changes).double(), maps(rows=15, columns=15).double().requires_grad_()
    module(x)[0, 7, 7].sum().backward()
    assert x.grad is not None
    radius = module.neighborhood.radius
    reached = x.grad[0].abs().sum(-1) > 0
    assert reached[7 - radius : 8 + radius, 7 - radius : 8 + radius].any()
    reached[7 - radius : 8 + radius, 7 - radius : 8 + radius] = False
    assert not reached.any()
    assert not x.grad[1].any()


@forms
def test_who_listens_changes_nothing(changes: dict[str, Any]) -> None:
    module, seen = layer(**changes).double(), Heard()
    expected = module(maps().double())
    module.recorder = seen
    torch.testing.assert_close(module(maps().double()), expected)
    offsets = module.neighborhood.offsets
    assert seen["local_filters"].shape == (2, 2, offsets, 6, 5)
    torch.testing.assert_close(seen["local_filters"].sum(2), torch.ones(2, 2, 6, 5, dtype=torch.float64))
    mul, add = module.ghosts()
    assert ("ghost_mul" in seen, "ghost_add" in seen) == (mul is not None, add is not None)
    if mul is not None:
        assert torch.equal(seen["ghost_mul"], mul**module.lam)
    if add is not None:
        assert torch.equal(seen["ghost_add"], add * module.gamma)


def test_ghost_heads_have_the_published_shapes() -> None:
    assert layer(lam=1, gamma=1).ghost_head.shape == (2, 1, 12, 3, 3)  # type: ignore[union-attr]
    assert layer().ghost_head.shape == layer(lam=1, gamma=0).ghost_head.shape == (1, 12, 3, 3)  # type: ignore[union-attr]
    assert layer(gamma=0).ghost_head is None
    both = layer(lam=1)
    mul, add = both.ghosts()
    assert torch.equal(torch.stack([mul, add]), both.ghost_head[:, 0])  # type: ignore[list-item, index]


def test_queries_and_keys_are_as_wide_as_published() -> None:
    """Two thirds of the width, rounded up to whole groups: 64, 88, 176, 344 for Swin's widths."""
    for dim, group, wide in ((96, 4, 64), (128, 8, 88), (256, 8, 176), (512, 8, 344)):
        assert HadamardAttention(dim, 4, group_width=group).widths == (wide, wide, dim)


def test_dropout_falls_on_the_softmaxed_filters() -> None:
    """Only in training; if all weights are dropped, the ghost head remains."""
    module = layer(attn_drop=0.5).train()
    torch.manual_seed(0)
    first = module(maps())
    assert not torch.equal(first, module(maps()))
    module.eval()
    assert torch.equal(module(maps()), module(maps()))
    module.attn_drop = 1 - 1e-7
    module.train()
    add = module.ghosts()[1]
    values = module.pre_proj(maps().permute(0, 3, 1, 2)).split(module.widths, 1)[2]
    alone = torch.nn.functional.conv2d(values, add.unsqueeze(1), padding=1, groups=12)  # type: ignore[union-attr]
    torch.testing.assert_close(module(maps()), module.post_proj(alone.permute(0, 2, 3, 1)), atol=1e-5, rtol=1e-4)


def test_the_strict_form_is_the_sum_that_the_paper_writes() -> None:
    """Eq. 7, pixel by pixel and offset by offset."""
    torch.manual_seed(0)
    module = StrictFilters(3, 2, Neighborhood(3)).double()
    with torch.no_grad():
        module.rb.normal_()
    product = torch.randn(1, 3, 4, 5, dtype=torch.float64)
    found = module(product).unflatten(1, (2, 9))
    for y, x, offset in ((0, 0, 0), (0, 0, 8), (2, 3, 1), (3, 4, 5)):
        ny, nx = y + offset // 3 - 1, x + offset % 3 - 1
        inside = 0 <= ny < 4 and 0 <= nx < 5
        theirs = product[0, :, ny, nx] if inside else torch.zeros(3, dtype=torch.float64)
        expected = product[0, :, y, x] @ module.rk[:, :, offset] + theirs @ module.rq[:, :, offset]
        torch.testing.assert_close(found[0, :, offset, y, x], expected + module.rb[:, offset])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dim_v": 9}, "the 9 channels of the values are not divisible by 2 heads"),
        ({"kernel_size": 4}, "must be odd"),
        ({"lam": 0.5}, "lam must be an integer, not 0.5, because the multiplier starts with entries of both signs"),
    ],
)
def test_what_cannot_be(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        layer(**changes)


@forms
def test_copies_and_files(changes: dict[str, Any]) -> None:
    module = layer(**changes)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(maps()), module(maps()))


@pytest.mark.slow
@pytest.mark.parametrize("changes", [FORMS["published"], FORMS["both ghosts"], FORMS["strict"]])
def test_compiles_and_exports(changes: dict[str, Any]) -> None:
    module = layer(**changes).eval()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")  # the contract tests compile it with inductor
    torch.testing.assert_close(compiled(maps()), module(maps()), atol=1e-5, rtol=1e-4)
    exported = torch.export.export(module, (maps(),)).module()
    torch.testing.assert_close(exported(maps()), module(maps()), atol=1e-5, rtol=1e-4)
