"""BiXT for point clouds: tokens are points, and a few latents attend to them and they to the latents.

    tokens  = projection(code(x), code(y), code(z));    latents = a parameter
    latents, tokens = layer(latents, tokens)            `depth` times
    logits  = head(norm(mean of the latents))           classes: the last layer does not update the tokens
    logits  = head(norm(tokens))                        parts: the last layer does not update the latents

With `group`, neighborhoods refine the tokens of each layer, or reduce them to fewer anchors ("hierarchy"). The paper gives
only widths, neighbors and anchors; what it leaves open is an option here, and its default is our choice:

| option | default |
|---|---|
| `scale` of the code | 1: the angle of a coordinate x is (x + 1) / 2 * 2 pi before division by the periods |
| place of a group | after the layer, t + G(t), for `group="refine"`; before the layer, G(t), for `group="hierarchy"` |
| `group_blocks` | 1 residual block before the maximum over neighbors |
| end of a group | a linear layer, at zero for "refine", so that the model starts as the one without groups |
| `last` of the part model | "tokens": the last layer only updates tokens; "both": also latents, without effect |

Source: M. Hiller, K. A. Ehinger, T. Drummond, "Perceiving Longer Sequences With Bi-Directional Cross-Attention
Transformers", 2024, section 4.3 and Tables 1 (b) and 4.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, cast

import torch
from timm.models import checkpoint
from torch import Tensor, nn

from attngraft.errors import UsageError
from attngraft.mechanisms.bixt.layer import TokensAttend
from attngraft.models.bixt.layers import EPS, Layer, OneSidedBlock, check_latents
from attngraft.models.points.base import PointClassifier, PointPartModel, check_channels
from attngraft.models.points.layers import AffineGroup, NeighborhoodNetwork
from attngraft.models.points.neighborhoods import Neighborhoods, neighborhoods
from attngraft.models.points.pointmlp import PartDecoder
from attngraft.models.timm_model import drop_path_rates

Groups = Literal["none", "refine", "hierarchy"]


class PointCode(nn.Module):
    """Sines and cosines of coordinates and normals: points (B, N, channels) to tokens (B, N, width).

    channel 2j      sin(scale (x + 1) pi / temperature^(2j / dim))
    channel 2j + 1  cos of the same,         `dim` channels for each coordinate, then a linear layer
    """

    def __init__(
        self, channels: int, width: int, *, dim: int = 32, scale: float = 1.0, temperature: float = 10000.0
    ) -> None:
        super().__init__()
        self.dim, self.scale, self.temperature = dim, scale, temperature
        self.projection = nn.Linear(channels * dim, width)

    def forward(self, points: Tensor) -> Tensor:
        channel = torch.arange(self.dim, device=points.device)
        period = self.temperature ** (2 * torch.div(channel, 2, rounding_mode="floor") / self.dim)
        angle = (self.scale * math.pi * (points.float() + 1)).unsqueeze(-1) / period
        code = torch.where(channel % 2 == 0, angle.sin(), angle.cos()).flatten(2)
        return cast(Tensor, self.projection(code.to(self.projection.weight.dtype)))


class PointGroup(nn.Module):
    """Features of neighborhoods: the maximum over neighbors of a network on the affine group, then a linear layer.

    Tokens (B, N, width) at points (B, N, 3) to (B, S, width) at the anchors.
    """

    def __init__(self, width: int, *, neighbors: int, blocks: int = 1) -> None:
        super().__init__()
        self.grouper = AffineGroup(width, anchors=None, neighbors=neighbors)
        self.network = NeighborhoodNetwork(self.grouper.out_channels, width, blocks=blocks, bias=False)
        self.projection = nn.Linear(width, width)

    def forward(self, xyz: Tensor, tokens: Tensor, near: Neighborhoods) -> Tensor:
        found = self.network.grouped(self.grouper, xyz, tokens, near).transpose(1, 2)
        return cast(Tensor, self.projection(found))


class PointsAttend(OneSidedBlock):
    """Points attend to the latents, which do not change: `OneSidedBlock` with swapped roles."""

    attention = TokensAttend


class _Frame(nn.Module):
    """What both models share: the code, the latents, the layers and their groups.

    Args:
        last: what the last layer updates.
        group: "none", "refine" or "hierarchy".
        neighbors: k of the groups.
        reducers: each layer's group of a hierarchy keeps one of so many points.
        group_blocks, scale: see the table above.
    """

    def __init__(
        self,
        in_chans: int,
        *,
        last: Literal["latents", "tokens", "both"],
        neighbors: int,
        reducers: Sequence[int],
        embed_dim: int = 192,
        depth: int = 12,
        num_heads: int = 6,
        num_latents: int = 64,
        mlp_ratio: float = 4.0,
        group: Groups = "none",
        group_blocks: int = 1,
        scale: float = 1.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        if group not in ("none", "refine", "hierarchy"):
            raise UsageError(f"group must be 'none', 'refine' or 'hierarchy', not {group!r}")
        check_latents(num_latents)
        if min(depth, neighbors) < 1:
            raise UsageError(f"depth and neighbors must be 1 or more, not {depth} and {neighbors}")
        if group == "hierarchy" and len(reducers) != depth:
            raise UsageError(f"a hierarchy needs a reducer for each of the {depth} layers, not {len(reducers)}")
        self.in_chans, self.group, self.neighbors, self.reducers = in_chans, group, neighbors, tuple(reducers)
        self.num_features = self.embed_dim = embed_dim
        self.code = PointCode(in_chans, embed_dim, scale=scale)
        self.latents = nn.Parameter(torch.empty(1, num_latents, embed_dim))
        branches: dict[str, Any] = {"dim_attention": embed_dim, "mlp_ratio": mlp_ratio}
        rates = drop_path_rates(drop_path_rate, depth)
        self.blocks = nn.ModuleList(
            Layer(
                embed_dim,
                embed_dim,
                sa_heads=num_heads,
                ca_heads=num_heads,
                sa_drop_path=rate,
                ca_drop_path=rate,
                one_sided=last == "latents" and index == depth - 1,
                **branches,
            )
            for index, rate in enumerate(rates[: depth - 1] if last == "tokens" else rates)
        )
        if last == "tokens":
            self.blocks.append(PointsAttend(embed_dim, embed_dim, heads=num_heads, drop_path=rates[-1], **branches))
        groups = {"none": 0, "refine": depth - (last == "latents"), "hierarchy": depth}[group]
        self.groups = nn.ModuleList(
            PointGroup(embed_dim, neighbors=neighbors, blocks=group_blocks) for _ in range(groups)
        )
        self.grad_checkpointing = False
        self._initialize()

    def _initialize(self) -> None:
        nn.init.trunc_normal_(self.latents, std=0.02)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.normal_(module.bias, std=1e-6) if "mlp" in name else nn.init.zeros_(module.bias)
        for group in self.groups if self.group == "refine" else []:
            nn.init.zeros_(cast(PointGroup, group).projection.weight)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Enable activation checkpointing of the layers."""
        self.grad_checkpointing = enable

    def _run(self, block: nn.Module, *inputs: Tensor) -> Any:
        return checkpoint(block, *inputs) if self.grad_checkpointing else block(*inputs)

    def run_layers(self, points: Tensor, latents: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Run all layers, with latents (B or 1, M, C) at the start.

        Returns the latents (B, M, C), and points (B, N, 3) and tokens (B, N, C) of all levels, the input's first; without
        a hierarchy, after the last layer.
        """
        check_channels(points, self.in_chans)
        xyz, tokens = points[..., :3], self.code(points)
        levels, near = [(xyz, tokens)], None
        if self.group == "refine":  # found once: the points do not change
            near = neighborhoods(xyz, anchors=None, neighbors=self.neighbors)
        for index, block in enumerate(self.blocks):
            if self.group == "hierarchy":
                count = max(1, xyz.shape[1] // self.reducers[index])
                near = neighborhoods(xyz, anchors=count, neighbors=self.neighbors)
                tokens, xyz = self.groups[index](xyz, tokens, near), near.at_anchors(xyz)
            if isinstance(block, PointsAttend):
                tokens = self._run(block, tokens, latents.expand(len(tokens), -1, -1))
            else:
                latents, changed = self._run(block, latents, tokens)
                tokens = tokens if changed is None else changed
            if self.group == "refine" and index < len(self.groups):
                tokens = tokens + self.groups[index](xyz, tokens, near)
            if self.group == "hierarchy":
                levels.append((xyz, tokens))
        return latents, levels if self.group == "hierarchy" else [(xyz, tokens)]


class BiXTPoints(PointClassifier, _Frame):
    """BiXT classifier of point clouds: (B, N, in_chans) to logits (B, num_classes). N is free.

    Args:
        in_chans: 3 for coordinates, 6 with normals.
        neighbors, reducers: of 1,024 points, a hierarchy keeps 512, 256, 128 and 64.
        drop_rate: dropout before the head.
        frame: embed_dim, depth, num_heads, num_latents, mlp_ratio, group, group_blocks, scale and drop_path_rate.

    14,794,408 parameters with 40 classes and no group.

    Raises:
        UsageError: an option does not fit; on a call, the clouds have another shape or too few points.
    """

    def __init__(
        self,
        *,
        num_classes: int = 40,
        in_chans: int = 3,
        neighbors: int = 24,
        reducers: Sequence[int] = (2, 2, 2, 2),
        drop_rate: float = 0.0,
        **frame: Any,
    ) -> None:
        super().__init__(in_chans, last="latents", neighbors=neighbors, reducers=reducers, **frame)
        self.num_classes = num_classes
        self.classifier = nn.Sequential(nn.LayerNorm(self.embed_dim, eps=EPS), nn.Dropout(drop_rate))
        self.classifier.append(self.make_head(self.embed_dim, num_classes))

    def make_head(self, width: int, num_classes: int) -> nn.Module:
        head = super().make_head(width, num_classes)
        if isinstance(head, nn.Linear):
            nn.init.zeros_(head.weight)
            nn.init.zeros_(head.bias)
        return head

    def forward_features(self, points: Tensor) -> Tensor:
        """Return the mean of the latents (B, num_features)."""
        return self.run_layers(points, self.latents)[0].mean(dim=1)


class BiXTPointParts(PointPartModel, _Frame):
    """BiXT for parts: points (B, N, in_chans) and categories (B,) to logits (B, N, num_classes).

    Args:
        num_classes: number of parts of all categories.
        categories: number of categories of shapes; only used with a decoder, or with `use_category`.
        in_chans: 3 for coordinates, 6 with normals.
        neighbors, reducers: of 2,048 points, a hierarchy keeps 512, 128, 32 and 8; a decoder returns to all points.
        use_category: add a linear map of the category to the latents.
        last: see the table above; "tokens" or "both".
        decoder: channels of the decoder after each step.
        frame: as in `BiXTPoints`.

    14,369,906 parameters with 50 parts, no group and `last="tokens"`; 15,185,138 with "both".
    """

    def __init__(
        self,
        *,
        num_classes: int = 50,
        categories: int = 16,
        in_chans: int = 6,
        neighbors: int = 32,
        reducers: Sequence[int] = (4, 4, 4, 4),
        use_category: bool = False,
        last: Literal["tokens", "both"] = "tokens",
        decoder: Sequence[int] = (512, 256, 128, 128),
        **frame: Any,
    ) -> None:
        super().__init__(in_chans, last=last, neighbors=neighbors, reducers=reducers, **frame)
        self.num_classes, self.categories = num_classes, categories
        self.least_batch = 2 if self.group == "hierarchy" else 1  # of the decoder
        self.category = nn.Linear(categories, self.embed_dim) if use_category else None
        if self.group == "hierarchy":
            widths = [self.embed_dim] * (len(self.blocks) + 1)
            self.decoder = PartDecoder(widths, decoder, num_classes=num_classes, categories=categories)
        else:
            self.head = nn.Sequential(nn.LayerNorm(self.embed_dim, eps=EPS), nn.Linear(self.embed_dim, num_classes))

    def last_layer(self) -> str:
        return "decoder.classifier.3" if self.group == "hierarchy" else "head.1"

    def forward(self, points: Tensor, category: Tensor) -> Tensor:
        latents: Tensor = self.latents
        if self.category is not None:
            one_hot = torch.nn.functional.one_hot(category, self.categories)
            latents = latents + self.category(one_hot.to(latents.dtype)).unsqueeze(1)
        _, levels = self.run_layers(points, latents)
        found = self.decoder(levels, category) if self.group == "hierarchy" else self.head(levels[0][1])
        return cast(Tensor, found)
