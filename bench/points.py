"""Cost of the operations on point clouds relative to their plain forms.

    python bench/points.py --threads 1 --out benchmarks/points.json

Plain forms: farthest point sampling of 512 of 1,024 points in 32 clouds by broadcasting; the 24 nearest points of these
anchors by `cdist` and `topk`; the affine group of 8 clouds of 1,024 points with 24 neighbors and 64 channels, its linear
layer, norm and maximum, from groups in memory. Neighbors are given to both forms of the group. Upper limits of the ratios:
1/3 for sampling, 1/2 for neighbors, 1/5 for the forward pass of the group and 1/3 for forward and backward. Results must be
equal before timing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from torch import Tensor

from attngraft.bench.command import finish, options
from attngraft.bench.result import WrongOutputsError, check_outputs, current_setting, measurement
from attngraft.models.points.layers import Stage
from attngraft.models.points.operations import farthest_points, group, knn
from attngraft.timing import paired_ratio

CLOUDS, POINTS, ANCHORS, NEIGHBORS = 32, 1024, 512, 24
GROUPED, CHANNELS = 8, 64


def clouds(number: int) -> Tensor:
    """Return clouds in the unit ball (number, POINTS, 3)."""
    points = torch.randn(number, POINTS, 3, generator=torch.Generator().manual_seed(0))
    return points / points.norm(dim=-1, keepdim=True).amax(dim=1, keepdim=True)


@torch.no_grad()
def plain_farthest(points: Tensor, count: int) -> Tensor:
    """Farthest point sampling by broadcasting over coordinates."""
    rows = torch.arange(len(points))
    distance = torch.where(points.square().sum(-1) > 1e-3, torch.inf, -1.0)
    chosen = torch.zeros(len(points), count, dtype=torch.int64)
    for step in range(1, count):
        last = points[rows, chosen[:, step - 1]].unsqueeze(1)
        distance = torch.minimum(distance, ((points - last) ** 2).sum(-1))
        chosen[:, step] = distance.max(-1).indices
    return chosen


def plain_knn(queries: Tensor, points: Tensor) -> Tensor:
    """Nearest points from all distances, in any order."""
    return torch.cdist(queries, points).topk(NEIGHBORS, largest=False, sorted=False).indices


def group_forms(*, train: bool) -> tuple[Callable[[], tuple[Tensor, ...]], Callable[[], tuple[Tensor, ...]]]:
    """Return the plain and our form of a group; with `train`, functions of outputs and gradients."""
    torch.manual_seed(0)
    stage = Stage(CHANNELS, CHANNELS, anchors=None, neighbors=NEIGHBORS, pre_blocks=0, pos_blocks=0).train(train)
    points = clouds(GROUPED)
    near = stage.grouper.neighborhoods(points)
    features = torch.randn(GROUPED, POINTS, CHANNELS).requires_grad_(train)
    cotangent = torch.randn(GROUPED, POINTS, CHANNELS)

    def plain() -> Tensor:
        return stage.pre(stage.grouper(points, features, near)[1])

    def ours() -> Tensor:
        return stage.pre.grouped(stage.grouper, points, features, near)

    def work(form: Callable[[], Tensor]) -> Callable[[], tuple[Tensor, ...]]:
        def call() -> tuple[Tensor, ...]:
            with torch.set_grad_enabled(train):
                output = form().transpose(1, 2)
                # beta is a constant, which batch norm removes: its gradient is zero
                wanted = [features, stage.grouper.affine_alpha, *stage.pre.parameters()]
                return (output, *torch.autograd.grad(output, wanted, cotangent)) if train else (output,)

        return call

    return work(plain), work(ours)


def main() -> int:
    parser = options("Operations on point clouds relative to their plain forms.", pairs=15)
    parser.add_argument("--threads", type=int, default=None, help="CPU threads of torch; torch's default if not given")
    arguments = parser.parse_args()
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    setting, lines = current_setting("cpu"), []

    def line(name: str, plain: Callable[[], object], ours: Callable[[], object], bar: float) -> None:
        ratio = paired_ratio(plain, ours, pairs=arguments.pairs, warmup=1)
        lines.append(measurement(f"{name}, over the plain form", ratio, bar=bar))

    points = clouds(CLOUDS)
    chosen = farthest_points(points, ANCHORS)
    at = group(points, chosen)
    if not torch.equal(chosen, plain_farthest(points, ANCHORS)):
        raise WrongOutputsError("both forms of sampling choose different points")
    if not torch.equal(knn(at, points, NEIGHBORS).sort(-1).values, plain_knn(at, points).sort(-1).values):
        raise WrongOutputsError("both forms find different neighbors")
    line("farthest points", lambda: plain_farthest(points, ANCHORS), lambda: farthest_points(points, ANCHORS), 1 / 3)
    line("nearest points", lambda: plain_knn(at, points), lambda: knn(at, points, NEIGHBORS), 1 / 2)
    for name, train, bar in (("affine group, forward", False, 1 / 5), ("forward and backward", True, 1 / 3)):
        plain, ours = group_forms(train=train)
        scaled = [(a / b.abs().max(), b / b.abs().max()) for a, b in zip(ours(), plain(), strict=True)]
        check_outputs([a for a, _ in scaled], [b for _, b in scaled], what=name, rtol=1e-3, atol=1e-4)
        line(name if not train else f"affine group, {name}", plain, ours, bar)
    result = setting.result(
        "Operations on point clouds",
        settings={"clouds": CLOUDS, "points": POINTS, "threads": torch.get_num_threads()},
        measurements=lines,
    )
    return finish(result, out=arguments.out, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
