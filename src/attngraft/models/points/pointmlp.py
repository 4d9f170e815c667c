"""PointMLP: four stages that halve the points and double the channels; for classes of shapes, and for parts of points.

    f = embedding(points);   xyz, f = stage(xyz, f), four times
    logits = classifier(max over points of f)

In the part model a decoder returns to all points (`layers.FeaturePropagation`), and the classifier of a point also gets the
maxima of all levels and the shape's category.

Source: X. Ma et al., "Rethinking Network Design and Local Geometry in Point Cloud: A Simple Residual MLP Framework", 2022.
Parameters have the names of the authors' weights, which load unchanged.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from attngraft.models.points.base import PointClassifier, PointPartModel, check_channels
from attngraft.models.points.layers import (
    AffineGroup,
    FeaturePropagation,
    NeighborhoodNetwork,
    Normalize,
    PointMap,
    ResidualNetwork,
)
from attngraft.models.points.neighborhoods import neighborhoods


class _Stages(nn.Module):
    """The embedding and the stages, which both models share.

    Args:
        embed_dim: width of the embedding; each stage multiplies it by an element of `expansions`.
        blocks: residual blocks of each stage, before and after the maximum over neighbors.
        reducers: each stage keeps one of so many points.
        neighbors: k.
        res_expansion: hidden width of residual blocks, relative to their width.
    """

    def __init__(
        self,
        in_chans: int,
        *,
        reducers: Sequence[int],
        neighbors: int,
        use_xyz: bool,
        bias: bool,
        embed_dim: int = 64,
        expansions: Sequence[int] = (2, 2, 2, 2),
        blocks: Sequence[int] = (2, 2, 2, 2),
        normalize: Normalize = "anchor",
        res_expansion: float = 1.0,
    ) -> None:
        super().__init__()
        self.in_chans, self.neighbors, self.reducers = in_chans, neighbors, tuple(reducers)
        self.embedding = PointMap(in_chans, embed_dim, bias=bias)
        self.local_grouper_list, self.pre_blocks_list = nn.ModuleList(), nn.ModuleList()
        self.pos_blocks_list = nn.ModuleList()
        self.widths = [embed_dim]
        for expansion, number in zip(expansions, blocks, strict=True):
            channels, out = self.widths[-1], expansion * self.widths[-1]
            grouper = AffineGroup(channels, anchors=None, neighbors=neighbors, normalize=normalize, use_xyz=use_xyz)
            shared: dict[str, Any] = {"blocks": number, "bias": bias, "expansion": res_expansion}
            self.local_grouper_list.append(grouper)
            self.pre_blocks_list.append(NeighborhoodNetwork(grouper.out_channels, out, **shared))
            self.pos_blocks_list.append(ResidualNetwork(out, **shared))
            self.widths.append(out)

    def levels(self, points: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return points (B, N, 3) and features (B, N, C) of all levels, the input's first."""
        xyz = points[..., :3]
        features = self.embedding(points.transpose(1, 2)).transpose(1, 2)
        found = [(xyz, features)]
        stages = zip(self.local_grouper_list, self.pre_blocks_list, self.pos_blocks_list, self.reducers, strict=True)
        for grouper, pre, pos, reducer in stages:
            near = neighborhoods(xyz, anchors=max(1, xyz.shape[1] // reducer), neighbors=self.neighbors)
            features = pos(cast(Any, pre).grouped(grouper, xyz, features, near)).transpose(1, 2)
            xyz = near.at_anchors(xyz)
            found.append((xyz, features))
        return found


class PointMLP(PointClassifier, _Stages):
    """PointMLP classifier: points (B, N, in_chans) to logits (B, num_classes).

    Args:
        in_chans: 3 for coordinates, 6 with normals.
        reducers: each stage keeps one of so many points.
        neighbors: k.
        use_xyz, bias: see `layers.Stage`.
        drop_rate: dropout in the head.
        stages: embed_dim, expansions, blocks, normalize and res_expansion.

    13.24M parameters with 40 classes. PointMLP-elite (0.7M) has `embed_dim=32`, `expansions=(2, 2, 2, 1)`,
    `blocks=(1, 1, 2, 1)` and `res_expansion=0.25`.
    """

    least_batch = 2

    def __init__(
        self,
        *,
        num_classes: int = 40,
        in_chans: int = 3,
        reducers: Sequence[int] = (2, 2, 2, 2),
        neighbors: int = 24,
        use_xyz: bool = False,
        bias: bool = False,
        drop_rate: float = 0.5,
        **stages: Any,
    ) -> None:
        super().__init__(in_chans, reducers=reducers, neighbors=neighbors, use_xyz=use_xyz, bias=bias, **stages)
        self.num_features = self.widths[-1]
        self.num_classes = num_classes
        self.classifier = nn.Sequential(
            *(nn.Linear(self.num_features, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Dropout(drop_rate)),
            *(nn.Linear(512, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(drop_rate)),
            nn.Linear(256, num_classes) if num_classes else nn.Identity(),
        )

    def forward_features(self, points: Tensor) -> Tensor:
        """Return the features (B, num_features) of clouds."""
        check_channels(points, self.in_chans)
        return self.levels(points)[-1][1].amax(dim=1)


class PointMLPParts(PointPartModel, _Stages):
    """PointMLP for parts: points (B, N, in_chans) and categories (B,) to logits (B, N, num_classes).

    Args:
        num_classes: number of parts of all categories.
        categories: number of categories of shapes.
        others: see `PointMLP`.

    16.76M parameters with 50 parts and 16 categories.
    """

    least_batch = 2

    def __init__(
        self,
        *,
        num_classes: int = 50,
        categories: int = 16,
        in_chans: int = 6,
        reducers: Sequence[int] = (4, 4, 4, 4),
        neighbors: int = 32,
        use_xyz: bool = True,
        bias: bool = True,
        decoder: Sequence[int] = (512, 256, 128, 128),
        decoder_blocks: int = 4,
        context: int = 64,
        drop_rate: float = 0.5,
        **stages: Any,
    ) -> None:
        super().__init__(in_chans, reducers=reducers, neighbors=neighbors, use_xyz=use_xyz, bias=bias, **stages)
        self.num_classes, self.categories = num_classes, categories
        self.decoder = PartDecoder(
            self.widths,
            decoder,
            num_classes=num_classes,
            categories=categories,
            blocks=decoder_blocks,
            context=context,
            drop_rate=drop_rate,
            bias=bias,
        )

    def last_layer(self) -> str:
        return "decoder.classifier.3"

    def forward(self, points: Tensor, category: Tensor) -> Tensor:
        check_channels(points, self.in_chans)
        return cast(Tensor, self.decoder(self.levels(points), category))


class PartDecoder(nn.Module):
    """Decoder from the levels of a hierarchy to parts of points.

        f = propagate(level, f), from the coarsest level to the points
        logits = classifier([f, map of the maxima of all levels, map of the category])

    Args:
        widths: channels of the levels, the points' first.
        decoder: channels after each step.
        context: channels of the maxima, and of the category.
    """

    def __init__(
        self,
        widths: Sequence[int],
        decoder: Sequence[int],
        *,
        num_classes: int,
        categories: int,
        blocks: int = 4,
        context: int = 64,
        drop_rate: float = 0.5,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.categories = categories
        coarse = [widths[-1], *decoder[:-1]]
        fine = list(reversed(widths[:-1]))
        self.decode_list = nn.ModuleList(
            FeaturePropagation(a + b, out, blocks=blocks, bias=bias)
            for a, b, out in zip(coarse, fine, decoder, strict=True)
        )
        self.gmp_map_list = nn.ModuleList(PointMap(width, context, bias=bias) for width in reversed(widths))
        self.gmp_map_end = PointMap(context * len(widths), context, bias=bias)
        self.cls_map = nn.Sequential(PointMap(categories, context, bias=bias), PointMap(context, context, bias=bias))
        self.classifier = nn.Sequential(
            nn.Conv1d(decoder[-1] + 2 * context, 128, 1, bias=bias),
            nn.BatchNorm1d(128),
            nn.Dropout(drop_rate),
            nn.Conv1d(128, num_classes, 1, bias=bias),
        )

    def forward(self, levels: Sequence[tuple[Tensor, Tensor]], category: Tensor) -> Tensor:
        """Return the logits (B, N, num_classes) of points, for categories (B,)."""
        levels = list(reversed(levels))
        maxima = [
            layer(features.transpose(1, 2)).amax(dim=2, keepdim=True)
            for layer, (_, features) in zip(self.gmp_map_list, levels, strict=True)
        ]
        context = self.gmp_map_end(torch.cat(maxima, dim=1))
        xyz, features = levels[0]
        for layer, (fine_xyz, fine) in zip(self.decode_list, levels[1:], strict=True):
            features = layer(fine_xyz, xyz, fine, features)
            xyz = fine_xyz
        one_hot = torch.nn.functional.one_hot(category, self.categories).to(features.dtype).unsqueeze(-1)
        whole = torch.cat([context, self.cls_map(one_hot)], dim=1).expand(-1, -1, xyz.shape[1])
        return cast(Tensor, self.classifier(torch.cat([features.transpose(1, 2), whole], dim=1)).transpose(1, 2))


def checkpoint_filter_fn(state: dict[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Adapt the authors' state dict: `module.` of data parallelism, and the decoder's names, which are in `decoder` here."""
    inner = ("decode_list.", "gmp_map_list.", "gmp_map_end.", "cls_map.", "classifier.")
    parts = isinstance(model, PointMLPParts)
    values = {name.removeprefix("module."): value for name, value in state.items()}
    return {f"decoder.{name}" if parts and name.startswith(inner) else name: value for name, value in values.items()}
