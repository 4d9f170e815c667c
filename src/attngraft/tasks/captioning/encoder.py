"""Image encoders, whose last map gives features as rows, one per position; and captioners with one."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from PIL import Image
from torch import Tensor, nn

from attngraft.errors import HostError
from attngraft.hosts import HostedModel
from attngraft.models.create import create_model
from attngraft.models.host_input import host_input
from attngraft.strict import require
from attngraft.tasks.images.inputs import HostInput, image_to_tensor
from attngraft.tasks.images.stored import read_image
from attngraft.timing.macs import evaluating


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """An image model and its weights."""

    name: str  #: any host with a grid of features, such as timm:resnet50
    args: Mapping[str, Any] = field(default_factory=dict)  #: arguments of its factory
    pretrained: bool = False  #: load its published weights
    weights: str | None = None  #: load the weights of a file or a run instead

    def __post_init__(self) -> None:
        require(self, "name", bool(self.name.strip()), "is empty; name an image model, such as timm:resnet50")
        require(self, "weights", self.weights is None or not self.pretrained, "cannot be combined with pretrained")

    @property
    def trained(self) -> bool:
        """Whether the model has trained weights."""
        return self.pretrained or self.weights is not None


class ImageEncoder(nn.Module):
    """An image model without its head.

    Args:
        model: a model that `grid_features` supports.
        given: its input.
    """

    def __init__(self, model: nn.Module, given: HostInput) -> None:
        super().__init__()
        self.model, self.given = model, given

    def forward(self, images: Tensor) -> Tensor:
        """Return the features (B, R, C) of uint8 images (B, 3, H, W)."""
        return grid_features(self.model, self.given.normalize(images))

    def blank(self) -> Tensor:
        """Return a black image, uint8 (1, C, H, W)."""
        given = self.given
        device = next(self.model.parameters()).device
        return torch.zeros(1, given.channels, given.height, given.width, dtype=torch.uint8, device=device)

    def unused(self) -> list[nn.Parameter]:
        """Return the parameters that have no effect on the features, such as those of the head."""
        with evaluating(self), torch.enable_grad():
            used = [each for each in self.parameters() if each.requires_grad]
            gradients = torch.autograd.grad(self(self.blank()).sum(), used, allow_unused=True)
        return [each for each, gradient in zip(used, gradients, strict=True) if gradient is None]

    def digest(self) -> str:
        """Return a digest of the weights."""
        found = hashlib.sha256()
        for name, tensor in self.model.state_dict().items():
            found.update(name.encode())
            found.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        return found.hexdigest()[:16]


def grid_features(model: nn.Module, images: Tensor) -> Tensor:
    """Return the last map of a model as rows, (B, R, C): after its last norm, without prefix tokens, pooling and head.

    Args:
        model: a model with `forward_intermediates`, or `forward_features` that returns tokens (B, N, C).
        images: normalized images (B, 3, H, W).

    Raises:
        HostError: the model has neither.
    """
    intermediates, features = (getattr(model, name, None) for name in ("forward_intermediates", "forward_features"))
    if callable(intermediates):
        found: Tensor = intermediates(images, indices=1, norm=True, output_fmt="NCHW", intermediates_only=True)[-1]
        return found.flatten(2).transpose(1, 2)
    if callable(features):
        found = features(images)
        if isinstance(found, Tensor) and found.ndim == 3:
            return found[:, getattr(model, "num_prefix_tokens", 0) :]
    raise HostError(
        f"{type(model).__name__}: has neither forward_intermediates nor tokens in forward_features, which return a grid of "
        "features; use a timm model, such as timm:resnet50"
    )


def grid_of(rows: int, given: HostInput) -> tuple[int, int] | None:
    """Return the rows and columns of a grid of so many positions with the aspect ratio of the input; None: there is none."""
    down = round(math.sqrt(rows * given.height / given.width))
    across = rows // max(1, down)
    fits = down * across == rows and down * given.width == across * given.height
    return (down, across) if fits else None


def create_encoder(config: EncoderConfig) -> ImageEncoder:
    """Create the image model, always with the same values if they are random.

    Raises:
        ConfigError: it takes no images.
        UsageError, HostError: see `create_model`.
    """
    arguments = dict(config.args)
    given = replace(HostInput.from_model(host_input(config.name, arguments)), interpolation="bicubic")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = create_model(config.name, pretrained=config.pretrained, weights=config.weights, **arguments)
    return ImageEncoder(model, given)


def resized(image: Image.Image, given: HostInput) -> Tensor:
    """Return an image resized to a model's input, uint8 (C, H, W); its aspect ratio may change."""
    filter = Image.Resampling[given.interpolation.upper()]
    return image_to_tensor(image.convert(given.mode).resize((given.width, given.height), filter))


def read_images(files: Sequence[Path], given: HostInput) -> Tensor:
    """Return resized images, uint8 (B, C, H, W).

    Raises:
        DataError: a file cannot be read.
    """
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        return torch.stack(list(threads.map(lambda file: resized(read_image(file), given), files)))


class EncodedCaptioner(HostedModel):
    """A captioner with the image encoder whose features it takes.

    Args:
        host: the captioner.
        encoder: the image model.
        trained: whether to train it; otherwise it stays in evaluation mode.
    """

    def __init__(self, host: nn.Module, encoder: ImageEncoder, *, trained: bool) -> None:
        super().__init__(host)
        self.encoder = encoder.requires_grad_(trained)
        self._trained = trained
        for parameter in encoder.unused() if trained else ():
            parameter.requires_grad_(False)

    def train(self, mode: bool = True) -> EncodedCaptioner:
        super().train(mode)
        self.encoder.train(mode and self._trained)
        return self

    def forward(self, images: Tensor, ids: Tensor, captions: Tensor | None = None) -> Tensor:
        """Return logits for uint8 images (B, C, H, W), as the captioner does for their features."""
        logits: Tensor = self.host(self.encoder(images), ids, captions)
        return logits

    def generate(self, images: Tensor, **options: Any) -> Tensor:
        """Return tokens, as the captioner's `generate`."""
        tokens: Tensor = cast(Any, self.host).generate(self.encoder(images), **options)
        return tokens

    def sample(self, images: Tensor, **options: Any) -> Tensor:
        """Return tokens, as the captioner's `sample`."""
        tokens: Tensor = cast(Any, self.host).sample(self.encoder(images), **options)
        return tokens
