"""Semantic segmentation: a grafted host with levels, a decoder and a classifier."""

from collections.abc import Sequence
from typing import Any, Literal, cast

import torch.nn.functional as F
from torch import Tensor, nn

from attngraft.models.dense.heads import AuxiliaryHead, Classifier, Last, Norm, SemanticFPN, UPerNet
from attngraft.models.dense.levels import STRIDES, Levels, host_levels
from attngraft.models.dense.model import DenseModel, prune

Head = Literal["upernet", "semantic_fpn", "linear"]
WIDTHS = {"upernet": 512, "semantic_fpn": 256}  #: of the papers


class Segmenter(DenseModel):
    """Images (B, C, H, W) to logits (B, K, h, w) at stride 4, or at the stride of the host's last map for a linear head.

    In training with an auxiliary head, the output is (logits, logits of the auxiliary head). Created by `segmenter`.
    """

    def __init__(
        self, host: nn.Module, levels: Levels | None, decoder: nn.Module, *, classes: int, auxiliary: nn.Module | None
    ) -> None:
        super().__init__(host)
        self.levels, self.decoder = levels, decoder
        self.classifier = Classifier(cast(Any, decoder).width, classes)
        self.auxiliary = auxiliary

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return logits, see the class. Images are padded with zeros to multiples of 32, and the logits cover all of it."""
        images = F.pad(images, (0, -images.shape[3] % STRIDES[-1], 0, -images.shape[2] % STRIDES[-1]))
        if self.levels is None:
            maps = cast(Any, self.host).forward_intermediates(
                images, indices=1, norm=False, output_fmt="NCHW", intermediates_only=True
            )
        else:
            maps = self.levels(self.host, images)
        logits: Tensor = self.classifier(self.decoder(maps))
        return (logits, self.auxiliary(maps[2])) if self.training and self.auxiliary is not None else logits


def segmenter(
    host: nn.Module,
    *,
    classes: int,
    head: Head,
    width: int | None = None,
    pools: Sequence[int] = (1, 2, 3, 6),
    auxiliary: bool = True,
    norm: Norm = "batch",
) -> Segmenter:
    """Build a segmentation model around a host, whose classifier and other unused modules are removed.

    Args:
        host: the host, grafted or not.
        classes: K.
        head: `upernet`, `semantic_fpn` or `linear` (a 1x1 convolution of the last map).
        width: width of the decoder; None: the papers', 512 (UPerNet) or 256 (semantic FPN).
        pools: pooled sides of UPerNet.
        auxiliary: add an FCN head on the third level, for training; not with a linear head.
        norm: norm of the head's layers: batch norm, group norm or synchronized batch norm.

    Raises:
        HostError: the host has no intermediate maps.
    """
    levels = host_levels(host)
    last = [levels[-1].index]
    prune(host, last)
    if head == "linear":
        return Segmenter(host, None, Last(levels[-1].channels), classes=classes, auxiliary=None)
    neck = Levels(levels)
    chosen = width or WIDTHS[head]
    decoder: nn.Module
    if head == "upernet":
        decoder = UPerNet(neck.channels, width=chosen, pools=pools, norm=norm)
    else:
        decoder = SemanticFPN(neck.channels, width=chosen, norm=norm)
    extra = AuxiliaryHead(neck.channels[2], classes, norm=norm) if auxiliary else None
    return Segmenter(host, neck, decoder, classes=classes, auxiliary=extra)
