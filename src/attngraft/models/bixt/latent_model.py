"""The frame that BiXT and its baselines share: images in, latents that layers refine, a head; and timm's interface.

    tokens  = patch_embed(images) + positions;   latents = a parameter that all images share
    latents, tokens = layer(latents, tokens)     for each layer
    logits  = head(fc_norm(mean of the latents))

What a layer does is the subclasses' to say: `model.BiXT`, `baselines.Iterative`, `baselines.Sequential`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal, cast

import torch
from timm.models import checkpoint
from timm.models._features import feature_take_indices  # what timm's own models use
from torch import Tensor, nn

from attngraft.errors import UsageError
from attngraft.models.bixt.initialization import Initialization, initialize, initialize_all
from attngraft.models.bixt.layers import EPS
from attngraft.models.bixt.positions import Positions, StaticPositions, make_positions
from attngraft.models.bixt.tokenizers import Tokenizer, make_tokenizer, token_grid
from attngraft.models.bixt.words import known

Pool = Literal["avg", ""]


class LatentModel(ABC, nn.Module):
    """Images (B, in_chans, H, W) to logits (B, num_classes), by layers of latents and tokens.

    A subclass gives the layers, says what one does, and calls `init_weights` when it is complete.

    Args:
        img_size: of the images, one number or (rows, columns).
        blocks: the layers.
        global_pool: "avg", the mean of the latents, or "", all of them.
        patch_size, stride: of the tokenizer; the grid has H / stride x W / stride tokens. A stride of None is the patch's
            size, the only one of the convolutional tokenizer.
        tokenizer: "linear" or "conv" (`tokenizers`).
        positions: "static", of the one grid of `img_size`, "dynamic", of each image's own, or "none" (`positions`).
        embed_dim: width of the latents. token_dim: of the tokens; the same where not given.
        fc_norm: norm behind the pooling, and not in front of it.
        drop_rate: dropout in front of the head.
        weight_init: "jax", as the published models were trained, or "skip", PyTorch's own with standard-normal latents, as
            those of 384 pixels start, which are fine-tuned anyway.

    Raises:
        UsageError: sizes that do not go together, or an unknown word.
    """

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        *,
        blocks: nn.ModuleList,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: Pool = "avg",
        patch_size: int = 16,
        stride: int | None = None,
        tokenizer: Tokenizer = "linear",
        positions: Positions = "static",
        position_dim: int = 32,
        temperature: float = 10000.0,
        num_latents: int = 64,
        embed_dim: int = 192,
        token_dim: int | None = None,
        fc_norm: bool = True,
        drop_rate: float = 0.0,
        weight_init: Initialization = "jax",
    ) -> None:
        super().__init__()
        if not blocks or num_latents < 1:
            raise UsageError(f"depth and num_latents of BiXT are 1 or more, not {len(blocks)} and {num_latents}")
        token_dim = token_dim or embed_dim
        self.num_classes, self.in_chans = num_classes, in_chans
        self.global_pool = known("global_pool", global_pool, ("avg", ""))
        self.weight_init = known("weight_init", weight_init, ("jax", "skip"))
        self.num_features = self.head_hidden_size = self.embed_dim = embed_dim
        self.token_dim = token_dim
        self.grad_checkpointing = False

        self.patch_embed = make_tokenizer(tokenizer, patch_size, stride, in_chans=in_chans, dim=token_dim)
        self.grid_size = token_grid(img_size, self.patch_embed.stride)
        self.fourier_pos_encode = make_positions(
            positions, token_dim, self.grid_size, dim=position_dim, temperature=temperature
        )
        self.latents = nn.Parameter(torch.empty(1, num_latents, embed_dim))
        self.blocks = blocks
        self.feature_info = [
            {"module": f"blocks.{index}", "num_chs": token_dim, "reduction": self.patch_embed.stride}
            for index in range(self.token_layers())
        ]
        self.norm_lat = nn.Identity() if fc_norm else nn.LayerNorm(embed_dim, eps=EPS)
        self.fc_norm = nn.LayerNorm(embed_dim, eps=EPS) if fc_norm else nn.Identity()
        self.head_drop = nn.Dropout(drop_rate)
        self.head = _head(embed_dim, num_classes)

    # -- what a subclass says ------------------------------------------------------------------------------------------

    @abstractmethod
    def run_layer(
        self, index: int, latents: Tensor, tokens: Tensor, grid: tuple[int, int]
    ) -> tuple[Tensor, Tensor | None]:
        """Layer `index` of latents (B or 1, M, embed_dim) and tokens (B, N, token_dim), on a grid of (rows, columns): both
        anew; None for tokens that no layer behind it may read."""

    @abstractmethod
    def token_layers(self) -> int:
        """How many layers, from the first on, give tokens."""

    # -- as timm's models ----------------------------------------------------------------------------------------------

    def init_weights(self) -> None:
        """Initial values, by `weight_init`, and position codes."""
        self.fourier_pos_encode.set_grid(self.grid_size)
        initialize_all(self, self.weight_init)

    def no_weight_decay(self) -> set[str]:
        """Names of parameters that are not decayed, beside vectors: none. The paper's recipe decays the latents."""
        return set()

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """How timm groups the parameters in layers."""
        return {
            "stem": r"^latents|^patch_embed|^fourier_pos_encode",
            "blocks": [(r"^blocks\.(\d+)", None), (r"^norm_lat|^fc_norm", (99999,))],
        }

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Compute the layers again in the backward pass, to save memory."""
        self.grad_checkpointing = enable

    def get_classifier(self) -> nn.Module:
        """The head."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: Pool | None = None) -> None:
        """A new head for `num_classes`, which starts as the model's did; 0: none."""
        self.num_classes = num_classes
        if global_pool is not None:
            self.global_pool = known("global_pool", global_pool, ("avg", ""))
        head = _head(self.embed_dim, num_classes).to(device=self.latents.device, dtype=self.latents.dtype)
        if self.weight_init == "jax":
            initialize(head, "head")
        self.head = head.train(self.training)

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        """Take images of another size: position codes are computed anew, nothing else depends on it."""
        self.grid_size = token_grid(img_size, self.patch_embed.stride)
        self.fourier_pos_encode.set_grid(self.grid_size)

    # -- forward -------------------------------------------------------------------------------------------------------

    def embed(self, images: Tensor) -> Tensor:
        """Images to the tokens (B, N, token_dim) that enter the first layer."""
        return self.patch_embed(images) + self.fourier_pos_encode(self.grid(images))

    def forward_features(self, images: Tensor) -> Tensor:
        """Images to latents (B, M, embed_dim) behind the last layer, normed where `fc_norm` is off."""
        latents, _ = self._layers(images, len(self.blocks))
        return cast(Tensor, self.norm_lat(latents))

    def forward_tokens(self, images: Tensor) -> Tensor:
        """Images to a map (B, token_dim, rows, columns): the tokens behind the last layer that updates them."""
        _, tokens = self._layers(images, self.token_layers())
        return as_map(cast(Tensor, tokens), self.grid(images))

    def forward_head(self, latents: Tensor, pre_logits: bool = False) -> Tensor:
        """Latents to logits, or to what enters the head."""
        pooled = self.fc_norm(latents.mean(dim=1) if self.global_pool == "avg" else latents)
        pooled = self.head_drop(pooled)
        return pooled if pre_logits else cast(Tensor, self.head(pooled))

    def forward(self, images: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(images))

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """The tokens that leave some of the layers that update them, as timm's models give it: (latents, intermediates),
        or the latter alone. The first is what `forward_features` gives.

        Args:
            indices: the last so many of these layers, those named, or all (None).
            return_prefix_tokens: give pairs (map, latents of that layer).
            norm: apply the final norm to those latents too; tokens have none.
            stop_early: leave out the layers above.
            output_fmt: "NCHW" or "NLC".

        Raises:
            ValueError: another format.
        """
        if output_fmt not in ("NCHW", "NLC"):
            raise ValueError(f"output_fmt is NCHW or NLC, not {output_fmt!r}")
        taken, last = feature_take_indices(self.token_layers(), indices)
        grid, tokens = self.grid(x), self.embed(x)
        latents: Tensor = self.latents
        found: list[Any] = []
        for index in range(last + 1 if stop_early else len(self.blocks)):
            latents, tokens = self._run(index, latents, tokens, grid)
            if index in taken:
                given = as_map(tokens, grid) if output_fmt == "NCHW" else tokens
                found.append((given, self.norm_lat(latents) if norm else latents) if return_prefix_tokens else given)
        return found if intermediates_only else (self.norm_lat(latents), found)

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Take away the layers that `forward_intermediates` does not need for `indices`."""
        taken, last = feature_take_indices(self.token_layers(), indices)
        self.blocks = self.blocks[: last + 1]
        if prune_norm:
            self.norm_lat = nn.Identity()
        if prune_head:
            self.fc_norm = nn.Identity()
            self.reset_classifier(0, "")
        return cast(list[int], taken)

    def _layers(self, images: Tensor, count: int) -> tuple[Tensor, Tensor | None]:
        """Through the first `count` layers."""
        grid, tokens = self.grid(images), self.embed(images)
        latents: Tensor = self.latents
        for index in range(count):
            latents, tokens = self._run(index, latents, tokens, grid)
        return latents, tokens

    def _run(self, *inputs: Any) -> Any:
        return checkpoint(self.run_layer, *inputs) if self.grad_checkpointing else self.run_layer(*inputs)

    def grid(self, images: Tensor) -> tuple[int, int]:
        """Rows and columns of the images' tokens.

        Raises:
            UsageError: the model's positions are of another grid.
        """
        grid = token_grid((images.shape[2], images.shape[3]), self.patch_embed.stride)
        if isinstance(self.fourier_pos_encode, StaticPositions) and grid != self.grid_size:
            height, width = (side * self.patch_embed.stride for side in self.grid_size)
            raise UsageError(
                f"this model is for images of {height} x {width}, and these are {images.shape[2]} x {images.shape[3]}; "
                "call set_input_size, make it with another img_size, or with positions='dynamic'"
            )
        return grid


def as_map(tokens: Tensor, grid: tuple[int, int]) -> Tensor:
    """(B, N, C) to (B, C, rows, columns)."""
    return tokens.transpose(1, 2).unflatten(2, grid).contiguous()


def _head(dim: int, classes: int) -> nn.Module:
    return nn.Linear(dim, classes) if classes > 0 else nn.Identity()
