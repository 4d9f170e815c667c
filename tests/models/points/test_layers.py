"""PointMLP's layers against brute force, and their refusals."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attngraft.errors import UsageError
from attngraft.models.points.layers import AffineGroup, FeaturePropagation, Stage
from attngraft.models.points.operations import farthest_points, knn, three_interpolate
from attngraft.models.points.reference import NEAR_ORIGIN

Point = tuple[float, ...]


def squared(a: Point, b: Point) -> float:
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def farthest(cloud: list[Point], count: int) -> list[int]:
    """Point 0, then always the first of those whose nearest chosen point is farthest away."""
    allowed = [i for i, point in enumerate(cloud) if sum(x * x for x in point) > NEAR_ORIGIN]
    chosen = [0]
    while len(chosen) < count:
        gaps = [min(squared(cloud[i], cloud[j]) for j in chosen) for i in allowed]
        chosen.append(allowed[gaps.index(max(gaps))] if allowed else 0)
    return chosen


#: coordinates that float32 holds and squares without rounding: ties are ties, near the origin there are several
COORDINATES = st.integers(-64, 64).map(lambda number: number / 32)
CLOUDS = st.lists(st.tuples(COORDINATES, COORDINATES, COORDINATES), min_size=1, max_size=24)


@settings(deadline=None)
@given(CLOUDS, st.data())
def test_farthest_points_are_those_of_brute_force(cloud: list[Point], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(cloud)))
    for dtype in (torch.float32, torch.float64):
        assert farthest_points(torch.tensor([cloud], dtype=dtype), count).tolist() == [farthest(cloud, count)]


def test_points_near_the_origin_are_not_chosen_but_as_the_first() -> None:
    near, far = [0.0, 0.03, 0.0], [1.0, 0.0, 0.0]
    assert farthest_points(torch.tensor([[far, near, far, near]]), 4).tolist() == [[0, 0, 0, 0]]
    assert farthest_points(torch.tensor([[near, near, far, far]]), 4).tolist() == [[0, 2, 2, 2]]
    assert farthest_points(torch.zeros(1, 3, 3), 3).tolist() == [[0, 0, 0]]
    on_the_edge = [NEAR_ORIGIN**0.5 * 1.001, 0.0, 0.0]
    assert farthest_points(torch.tensor([[far, on_the_edge]]), 2).tolist() == [[0, 1]]


def test_every_cloud_of_a_batch_is_sampled_for_itself() -> None:
    clouds = torch.randn(5, 40, 3, generator=torch.Generator().manual_seed(0))
    together = farthest_points(clouds, 12)
    assert all(torch.equal(together[i : i + 1], farthest_points(clouds[i : i + 1], 12)) for i in range(5))
    assert all(len(set(row)) == 12 for row in together.tolist())


@settings(deadline=None)
@given(CLOUDS, st.data())
def test_nearest_points_are_those_of_brute_force(cloud: list[Point], data: st.DataObject) -> None:
    """By their distances: which of several at the same distance is taken is free."""
    count = data.draw(st.integers(1, len(cloud)))
    points = torch.tensor([cloud], dtype=torch.float64)
    found = knn(points, points, count)[0].tolist()
    for query, near in zip(cloud, found, strict=True):
        assert len(set(near)) == count
        assert sorted(squared(query, cloud[i]) for i in near) == sorted(squared(query, p) for p in cloud)[:count]


def grouped(cloud: Tensor, features: Tensor, module: AffineGroup) -> Tensor:
    """One cloud's groups (S, k, C'), sorted along k by their first channel, by loops."""
    chosen = farthest(cloud.tolist(), module.anchors) if module.anchors else list(range(len(cloud)))
    rows = torch.cat([features, cloud], dim=-1) if module.use_xyz else features
    away = []
    for anchor in chosen:
        order = sorted(range(len(cloud)), key=lambda i: squared(cloud[i].tolist(), cloud[anchor].tolist()))
        near = rows[order[: module.neighbors]]
        away.append(near - (near.mean(dim=0) if module.normalize == "center" else rows[anchor]))
    values = torch.cat(away).flatten()
    spread = math.sqrt(((values - values.mean()) ** 2).sum().item() / (len(values) - 1))
    out = []
    for anchor, group in zip(chosen, away, strict=True):
        scaled = module.affine_alpha[0, 0] * group / (spread + 1e-5) + module.affine_beta[0, 0]
        out.append(torch.cat([scaled, features[anchor].expand(module.neighbors, -1)], dim=-1))
    return sorted_groups(torch.stack(out))


def sorted_groups(groups: Tensor) -> Tensor:
    """With neighbours in an order that does not depend on how they were found: by their first channel."""
    return groups.gather(-2, groups[..., :1].argsort(dim=-2).expand_as(groups))


@pytest.mark.parametrize("anchors", [7, None])
@pytest.mark.parametrize("use_xyz", [False, True])
@pytest.mark.parametrize("normalize", ["anchor", "center"])
def test_groups_are_those_of_brute_force(normalize: str, use_xyz: bool, anchors: int | None) -> None:
    torch.manual_seed(0)
    module = AffineGroup(5, anchors=anchors, neighbors=4, normalize=normalize, use_xyz=use_xyz).double()
    with torch.no_grad():
        module.affine_alpha.normal_()
        module.affine_beta.normal_()
    xyz, features = torch.randn(3, 20, 3, dtype=torch.double), torch.randn(3, 20, 5, dtype=torch.double)
    anchor_xyz, groups = module(xyz, features)
    assert groups.shape == (3, anchors or 20, 4, module.out_channels)
    assert module.out_channels == (13 if use_xyz else 10)
    for i in range(3):
        torch.testing.assert_close(sorted_groups(groups[i]), grouped(xyz[i], features[i], module))
        chosen = farthest(xyz[i].tolist(), anchors) if anchors else list(range(20))
        assert torch.equal(anchor_xyz[i], xyz[i][chosen])


def test_groups_of_equal_points_and_of_equal_features_are_finite() -> None:
    module = AffineGroup(4, anchors=6, neighbors=3)
    xyz = torch.ones(2, 8, 3)
    assert module(xyz, torch.randn(2, 8, 4))[1].isfinite().all()
    features = torch.ones(2, 8, 4, requires_grad=True)
    groups = module(xyz, features)[1]
    assert torch.equal(groups[..., :4], torch.zeros(2, 6, 3, 4))
    assert torch.equal(groups[..., 4:], torch.ones(2, 6, 3, 4))


def test_neighbours_order_does_not_reach_a_stages_output() -> None:
    torch.manual_seed(0)
    stage = Stage(6, 16, anchors=10, neighbors=5, use_xyz=True).double().eval()
    xyz, features = torch.randn(2, 30, 3, dtype=torch.double), torch.randn(2, 30, 6, dtype=torch.double)
    order = torch.cat([torch.zeros(1, dtype=torch.long), 1 + torch.randperm(29)])
    anchors, out = stage(xyz, features)
    moved, same = stage(xyz[:, order], features[:, order])
    torch.testing.assert_close(moved, anchors)
    torch.testing.assert_close(same, out)
    assert out.shape == (2, 10, 16)


def test_a_stages_gradients() -> None:
    torch.manual_seed(0)
    stage = Stage(3, 4, anchors=5, neighbors=3, normalize="center", bias=True).double().eval()
    xyz = torch.randn(2, 9, 3, dtype=torch.double)
    features = torch.randn(2, 9, 3, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: stage(xyz, x)[1], (features,))
    stage(xyz, features)[1].sum().backward()
    assert all(parameter.grad is not None for parameter in stage.parameters())


def test_the_names_and_the_number_of_parameters() -> None:
    stage = Stage(8, 16, anchors=4, neighbors=2, pre_blocks=1, pos_blocks=2)
    names = {name for name, _ in stage.named_parameters()}
    assert {"grouper.affine_alpha", "pre.transfer.net.0.weight", "pre.operation.0.net1.0.weight"} <= names
    assert {"pos.operation.1.net2.1.bias"} <= names
    linear, norm = 16 * 16, 2 * 16
    assert sum(parameter.numel() for parameter in stage.parameters()) == 2 * 8 + 7 * (linear + norm)
    decoder = FeaturePropagation(24, 16)
    count = sum(parameter.numel() for parameter in decoder.parameters())
    assert count == 16 * 24 + 16 + norm + 4 * 2 * (linear + 16 + norm)


@pytest.mark.parametrize("coarse", [1, 2, 3, 9])
def test_interpolation_is_that_of_brute_force(coarse: int) -> None:
    torch.manual_seed(coarse)
    fine, known, values = (torch.randn(2, n, c, dtype=torch.double) for n, c in ((7, 3), (coarse, 3), (coarse, 5)))
    fine[0, 0] = known[0, 0]
    found = three_interpolate(fine, known, values)
    for b in range(2):
        for i in range(7):
            gaps = [squared(fine[b, i].tolist(), point) for point in known[b].tolist()]
            near = sorted(range(coarse), key=gaps.__getitem__)[:3]
            weights = torch.tensor([1 / (gaps[j] + 1e-8) for j in near], dtype=torch.double)
            expected = (weights / weights.sum()) @ values[b, near]
            torch.testing.assert_close(found[b, i], expected)
    torch.testing.assert_close(found[0, 0], values[0, 0], rtol=1e-6, atol=1e-6)


def test_the_decoder_joins_and_has_gradients() -> None:
    torch.manual_seed(0)
    module = FeaturePropagation(8, 6, blocks=1).double().eval()
    points = torch.randn(2, 12, 3, dtype=torch.double)
    fine = torch.randn(2, 12, 3, dtype=torch.double, requires_grad=True)
    coarse = torch.randn(2, 4, 5, dtype=torch.double, requires_grad=True)
    assert module(points, points[:, :4], fine, coarse).shape == (2, 12, 6)
    assert torch.autograd.gradcheck(lambda a, b: module(points, points[:, :4], a, b), (fine, coarse))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_chooses_as_float32_does(dtype: torch.dtype) -> None:
    xyz = torch.randn(2, 64, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert torch.equal(farthest_points(xyz, 16), farthest_points(xyz.float(), 16))
    values = torch.randn(2, 16, 4, generator=torch.Generator().manual_seed(1)).to(dtype)
    found, wanted = (
        three_interpolate(xyz, xyz[:, :16], values),
        three_interpolate(xyz.float(), xyz[:, :16].float(), values.float()),
    )
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), wanted, rtol=0.02, atol=0.02)
    anchors, groups = AffineGroup(4, anchors=8, neighbors=4).to(dtype)(xyz[:, :16], values)
    assert anchors.dtype == groups.dtype == dtype


@pytest.mark.parametrize(
    ("make", "points", "message"),
    [
        (lambda: AffineGroup(4, anchors=4, neighbors=9), 8, r"have 8 points, but 9 are needed \(4 anchors with 9"),
        (lambda: AffineGroup(4, anchors=9, neighbors=4), 8, r"have 8 points, but 9 are needed \(9 anchors with 4"),
        (lambda: Stage(5, 8, anchors=4, neighbors=4), 8, r"features at \(2, 8, 3\) points must be \(2, 8, 5\)"),
    ],
)
def test_clouds_that_do_not_fit_are_refused(make, points: int, message: str) -> None:
    with pytest.raises((ValueError, UsageError), match=message):
        make()(torch.randn(2, points, 3), torch.randn(2, points, 4))


def test_wrong_arguments_are_refused() -> None:
    for sizes in ({"neighbors": 0, "anchors": 4}, {"neighbors": 2, "anchors": 0}):
        with pytest.raises(ValueError, match="1 or more"):
            AffineGroup(4, **sizes)
    with pytest.raises(ValueError, match="'anchor' or 'center', not 'centre'"):
        AffineGroup(4, anchors=2, neighbors=2, normalize="centre")
    with pytest.raises(ValueError, match=r"points must be \(B, N, 3\)"):
        AffineGroup(4, anchors=2, neighbors=2)(torch.randn(8, 3), torch.randn(1, 8, 4))
    module, points = FeaturePropagation(8, 6), torch.randn(2, 12, 3)
    with pytest.raises(ValueError, match=r"coarse features at \(2, 4, 3\) points must be \(2, 4, 5\)"):
        module(points, points[:, :4], torch.randn(2, 12, 3), torch.randn(2, 4, 6))
    with pytest.raises(ValueError, match="fine features"):
        module(points, points[:, :4], torch.randn(2, 11, 3), torch.randn(2, 4, 5))
