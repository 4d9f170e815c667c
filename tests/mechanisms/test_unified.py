"""The family of local attention: every known member is the same module with other settings."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from timm.models.swin_transformer import SwinTransformerBlock
from torch import Tensor, nn

from attngraft.errors import UsageError
from attngraft.mechanisms.local.geometry import join_windows, relative_positions, shifted_window_mask, split_windows
from attngraft.mechanisms.local.unified import NETWORKS, NORMS, TERMS, LocalAttention, normalized

AREAS: dict[str, dict[str, Any]] = {
    "neighborhood": {"area": "neighborhood", "size": 3},
    "window": {"area": "window", "size": 3},
    "shifted": {"area": "window", "size": 3, "shift": 1},
}


def layer(dim: int = 8, heads: int = 2, **settings: Any) -> LocalAttention:
    """Return a layer with random tables, which start almost at zero."""
    torch.manual_seed(0)
    module = LocalAttention(dim, heads, **settings).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    return module


def maps(*, rows: int = 6, columns: int = 9, dim: int = 8) -> Tensor:
    return torch.randn(2, rows, columns, dim, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


# -- the equation ------------------------------------------------------------------------------------------------------


def neighbors(module: LocalAttention, pixel: tuple[int, int], sizes: tuple[int, int]) -> Any:
    """Yield the pixels that a pixel attends to, whether each is on the map, and its index in the tables."""
    near = module.area == "neighborhood"
    reach = module.size // 2 if near else module.size - 1
    steps = range(-reach, reach + 1)
    for place, (down, right) in enumerate(itertools.product(steps, steps)):
        other = pixel[0] + down, pixel[1] + right
        inside = all(0 <= at < size for at, size in zip(other, sizes, strict=True))
        # windows start at pixel `shift`; the pixels before it are a window too
        windows = [[(at - module.shift) // module.size for at in each] for each in (pixel, other)]
        together = windows[0] == windows[1]
        if near or (inside and together):
            yield other, inside, place


def by_the_equation(module: LocalAttention, x: Tensor) -> Tensor:
    """Compute Eq. 4 for every pair of pixels, one after another."""
    batch, rows, columns, _ = x.shape
    q, k, v = module._projected(x, lambda part: part.unflatten(-1, (module.heads, -1)))
    out, nothing = torch.zeros_like(v), torch.zeros_like(v[:, 0, 0])
    for y, c in itertools.product(range(rows), range(columns)):
        scores, values = [], []
        for (down, right), inside, place in neighbors(module, (y, c), (rows, columns)):
            score = torch.zeros(batch, module.heads, dtype=x.dtype)
            key = nothing if k is None or not inside else k[:, down, right]
            if "qk" in module.terms:
                score = score + (q[:, y, c] * key).sum(-1)  # type: ignore[index]
            if module.rk is not None:
                score = score + (q[:, y, c] * module.rk[:, :, place]).sum(-1)  # type: ignore[index]
            if module.rq is not None:
                score = score + (key * module.rq[:, :, place]).sum(-1)
            if module.rb is not None:
                score = score + module.rb[:, place]
            scores.append(score)
            values.append(v[:, down, right] if inside else nothing)
        weights = normalized(torch.stack(scores, -1), module.norm)
        out[:, y, c] = (weights.unsqueeze(2) * torch.stack(values, -1)).sum(-1)
    found: Tensor = module.proj_out(out.flatten(3))
    return found


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("area", AREAS)
def test_every_network_is_the_equation(area: str, network: str, norm: Any) -> None:
    module = layer(dim=4, terms=NETWORKS[network], norm=norm, **AREAS[area])
    x = maps(rows=3, columns=6, dim=4)
    torch.testing.assert_close(module(x), by_the_equation(module, x))


#: sums of terms that are not a network of the paper
OTHERS = [
    terms
    for count in range(1, len(TERMS) + 1)
    for terms in itertools.combinations(TERMS, count)
    if terms not in NETWORKS.values()
]


@pytest.mark.parametrize("terms", OTHERS, ids="+".join)
@pytest.mark.parametrize("area", AREAS)
def test_every_other_sum_is_the_equation(area: str, terms: Any) -> None:
    """The paper names 8 of the 16 choices of four terms; the empty one is refused below."""
    assert len(OTHERS) + len(NETWORKS) + 1 == 2 ** len(TERMS)
    module = layer(dim=4, terms=terms, **AREAS[area])
    x = maps(rows=3, columns=6, dim=4)
    torch.testing.assert_close(module(x), by_the_equation(module, x))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("area", ["window", "shifted"])
def test_a_map_that_windows_do_not_divide_is_the_equation_filled_up(area: str, norm: Any) -> None:
    """Zeros are added below and to the right, projected and attended to, and cropped from the output."""
    module = layer(dim=4, norm=norm, **AREAS[area])
    x = maps(rows=4, columns=5, dim=4)
    filled = F.pad(x, (0, 0, 0, 1, 0, 2))
    torch.testing.assert_close(module(x), by_the_equation(module, filled)[:, :4, :5])


@pytest.mark.parametrize("area", AREAS)
def test_gradients(area: str) -> None:
    module = layer(dim=2, heads=1, **AREAS[area])
    x = maps(rows=3, columns=3, dim=2).requires_grad_()
    assert torch.autograd.gradcheck(module, (x,))
    module(x).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in module.parameters())


@pytest.mark.parametrize("area", AREAS)
@pytest.mark.parametrize("shape", [(1, 1), (2, 5), (7, 4)])
def test_maps_of_any_size_keep_it(area: str, shape: tuple[int, int]) -> None:
    x = maps(rows=shape[0], columns=shape[1])
    out = layer(**AREAS[area])(x)
    assert out.shape == x.shape
    assert out.isfinite().all()


# -- its members -------------------------------------------------------------------------------------------------------


def test_a_depthwise_convolution() -> None:
    """Only rb, no norm, one head per channel."""
    module = layer(heads=8, terms=("rb",), norm="identity", **AREAS["neighborhood"])
    values = module.proj_in(maps()).permute(0, 3, 1, 2)
    convolved = F.conv2d(values, module.rb.view(8, 1, 3, 3), padding=1, groups=8)  # type: ignore[union-attr]
    torch.testing.assert_close(module(maps()), module.proj_out(convolved.permute(0, 2, 3, 1)))


def test_an_involution() -> None:
    """Only q . rk, no norm: the filters of a head are a linear map of the pixel."""
    module = layer(terms=("qr",), norm="identity", **AREAS["neighborhood"])
    x = maps()
    queries, values = module.proj_in(x).chunk(2, -1)
    makes = torch.block_diag(*module.rk.transpose(1, 2)) * module.scale  # type: ignore[union-attr]  # (H K, dim)
    filters = F.linear(queries, makes).unflatten(-1, (2, 1, 9))
    windows = F.unfold(values.permute(0, 3, 1, 2), 3, padding=1).view(2, 2, 4, 9, 6, 9).permute(0, 4, 5, 1, 2, 3)
    torch.testing.assert_close(module(x), module.proj_out((filters * windows).sum(-1).flatten(3)))


@pytest.mark.parametrize("shift", [0, 1])
def test_swins_own_attention(shift: int) -> None:
    """Equals timm's, whose table is indexed by query minus key."""
    torch.manual_seed(0)
    block = SwinTransformerBlock(8, (6, 9), num_heads=2, window_size=3, shift_size=shift).double().eval()
    nn.init.normal_(block.attn.relative_position_bias_table)
    module = layer(terms=NETWORKS["swin"], area="window", size=3, shift=shift)
    theirs = block.attn
    with torch.no_grad():
        module.proj_in.load_state_dict(theirs.qkv.state_dict())
        module.proj_out.load_state_dict(theirs.proj.state_dict())
        module.rb.copy_(theirs.relative_position_bias_table.flip(0).t())  # type: ignore[union-attr]
    torch.testing.assert_close(module(maps()), block._attn(maps()), atol=1e-6, rtol=1e-5)  # timm's mask is float32


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_a_filter_norm() -> None:
    scores = torch.randn(3, 5, 9, dtype=torch.float64)
    found = normalized(scores, "filter")
    torch.testing.assert_close(found.mean(-1), torch.zeros(3, 5, dtype=torch.float64))
    torch.testing.assert_close(found.std(-1, correction=0), torch.ones(3, 5, dtype=torch.float64), atol=1e-4, rtol=0)
    visible = torch.arange(9) < 4
    torch.testing.assert_close(normalized(scores, "filter", visible)[..., :4], normalized(scores[..., :4], "filter"))
    assert not normalized(scores, "filter", visible)[..., 4:].any()
    assert not normalized(torch.ones(2, 9), "filter").any(), "nothing to norm"


def test_windows_go_and_come_back() -> None:
    x = torch.arange(2 * 6 * 9 * 2.0).view(2, 6, 9, 2)
    windows = split_windows(x, 3)
    assert windows.shape == (2, 6, 9, 2)
    assert torch.equal(windows[0, 1].view(3, 3, 2), x[0, :3, 3:6])
    assert torch.equal(join_windows(windows, x.shape[1:3]), x)


def test_only_neighbors_see_each_other_in_shifted_windows() -> None:
    visible = shifted_window_mask((4, 4), 2, 1)
    assert visible.shape == (4, 4, 4)
    assert visible[0].all(), "pixels of the first window were neighbors before the shift"
    assert visible[3].sum() == 4, "those of the last come from the four corners"
    assert visible[1].sum() == 8


def test_biases_go_by_key_minus_query() -> None:
    places = relative_positions(2, 2)
    assert places.diagonal().eq(4).all()
    assert places[0, 3] == 8, "key below and to the right of the query"
    assert places[3, 0] == 0
    assert places[0, 1] == 5
    assert places[0, 2] == 7


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"heads": 3}, "the width 8 is not divisible by 3 heads"),
        ({"terms": ()}, "one or more of .*; got none"),
        ({"terms": ("qk", "kq")}, "one or more of qk, qr, rk, rb; got kq"),
        ({"area": "row"}, "area must be window or neighborhood"),
        ({"norm": "relu"}, "norm must be one of softmax, filter, identity"),
        ({"size": 4}, "the size of a neighborhood must be odd, not 4"),
        ({"area": "window", "shift": 7}, "shift must be less than the size 7 for windows"),
        ({"shift": 1}, "0 for neighborhoods; got 1"),
    ],
)
def test_what_cannot_be(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        LocalAttention(8, **{"heads": 2, **settings})
