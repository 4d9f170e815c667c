"""Base class of BiXT and its baselines, with timm's interface: tokenizer, layers, head.

    tokens  = patch_embed(images) + positions;   latents = a parameter, shared by all images
    latents, tokens = layer(latents, tokens)     for each layer
    logits  = head(fc_norm(mean of the latents))

Subclasses (`model.BiXT`, `baselines.Iterative`, `baselines.Sequential`) implement the layers. The initial values are:

| | "jax", as the published models were trained | "skip", PyTorch's own |
|---|---|---|
| linear layers | Xavier's uniform, with a fused projection as a single matrix | as `torch.nn.Linear` |
| biases of linear layers | 0, in MLPs N(0, 1e-6) | as `torch.nn.Linear` |
| the head | 0 | as `torch.nn.Linear` |
| convolutions | LeCun's normal, biases 0 | as `torch.nn.Conv2d` |
| latents | truncated normal of std 0.02 | standard normal |
"""

from abc import ABC, abstractmethod
from typing import Any, Literal, cast

import torch
from timm.layers import lecun_normal_, trunc_normal_
from timm.models import checkpoint
from timm.models._features import feature_take_indices  # private, but used by all models in timm
from torch import Tensor, fx, nn

from attngraft.errors import UsageError
from attngraft.models.bixt.layers import EPS, check_latents
from attngraft.models.bixt.positions import Positions, StaticPositions, make_positions
from attngraft.models.bixt.tokenizers import Tokenizer, check_choice, make_tokenizer, token_grid
from attngraft.models.timm_model import TimmModel

Initialization = Literal["jax", "skip"]


class LatentModel(ABC, TimmModel):
    """Classifier with layers of latents and tokens: images (B, in_chans, H, W) to logits (B, num_classes).

    A subclass passes the layers, implements `run_layer`, and calls `init_weights` at the end of its `__init__`.

    Args:
        img_size: image size, one number or (rows, columns).
        blocks: the layers.
        global_pool: "avg", the mean of the latents, or "", all latents.
        patch_size, stride: patches of the tokenizer; the grid has H / stride x W / stride tokens. Stride None: the
            patch size, which is the only stride of the convolutional tokenizer.
        tokenizer: "linear" or "conv" (`tokenizers`).
        positions: "static" for the grid of `img_size`, "dynamic" for any grid, or "none" (`positions`).
        embed_dim: width of the latents.
        token_dim: width of the tokens; None: the width of the latents.
        fc_norm: apply the norm after pooling instead of before it.
        drop_rate: dropout before the head.
        weight_init: "jax", the initialization of the published models; or "skip", PyTorch's defaults with standard normal
            latents, as in the published models for 384 pixels, which are fine-tuned.

    Raises:
        UsageError: sizes are inconsistent, or an option has an unknown value.
    """

    pools = ("avg", "")
    norm_name = "norm_lat"

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        *,
        blocks: nn.ModuleList,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "avg",
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
        check_latents(num_latents)
        if not blocks:
            raise UsageError("depth of BiXT must be 1 or more, not 0")
        token_dim = token_dim or embed_dim
        self.num_classes, self.in_chans = num_classes, in_chans
        self.global_pool = self.check_pool(global_pool)
        self.weight_init = check_choice("weight_init", weight_init, ("jax", "skip"))
        self.num_features = self.head_hidden_size = self.embed_dim = embed_dim
        self.token_dim = token_dim

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
        self.head = super().make_head(num_classes)

    @abstractmethod
    def run_layer(
        self, index: int, latents: Tensor, tokens: Tensor, grid: tuple[int, int]
    ) -> tuple[Tensor, Tensor | None]:
        """Run layer `index` on latents (B or 1, M, embed_dim) and tokens (B, N, token_dim).

        `grid` is (rows, columns) of the tokens. Returns (latents, tokens), or (latents, None) if no
        later layer may use the tokens.
        """

    def init_weights(self) -> None:
        """Initialize parameters by `weight_init`, and position codes."""
        self.fourier_pos_encode.set_grid(self.grid_size)
        if self.latents.is_meta:  # PyTorch would initialize slowly, without effect
            return
        if self.weight_init == "skip":
            nn.init.normal_(self.latents)
            return
        trunc_normal_(self.latents, std=0.02)
        for name, module in self.named_modules():
            _initialize(module, name)

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return timm's patterns for grouping parameters by layer."""
        return {
            "stem": r"^latents|^patch_embed|^fourier_pos_encode",
            "blocks": [(r"^blocks\.(\d+)", None), (r"^norm_lat|^fc_norm", (99999,))],
        }

    def make_head(self, classes: int) -> nn.Module:
        """Return a new head, initialized by `weight_init`."""
        head = super().make_head(classes)
        if self.weight_init == "jax":
            _initialize(head, "head")
        return head

    def check_pool(self, pool: str) -> str:
        """Return `pool` after checking it.

        Raises:
            UsageError: `pool` is not one of `pools`.
        """
        return check_choice("global_pool", pool, self.pools)

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        """Change the image size and recompute position codes; nothing else depends on the size."""
        self.grid_size = token_grid(img_size, self.patch_embed.stride)
        self.fourier_pos_encode.set_grid(self.grid_size)

    def embed(self, images: Tensor) -> Tensor:
        """Return the input tokens (B, N, token_dim) of the first layer."""
        return self.patch_embed(images) + self.fourier_pos_encode(self.grid(images))

    def forward_features(self, images: Tensor) -> Tensor:
        """Return the latents (B, M, embed_dim) after the last layer, normalized unless `fc_norm` is set."""
        latents, _ = self._layers(images, len(self.blocks))
        return cast(Tensor, self.norm_lat(latents))

    def forward_tokens(self, images: Tensor) -> Tensor:
        """Return the map (B, token_dim, rows, columns) of the tokens after the last layer that updates them."""
        _, tokens = self._layers(images, self.token_layers())
        return as_map(cast(Tensor, tokens), self.grid(images))

    def pooled(self, latents: Tensor) -> Tensor:
        """Return the mean of the latents, or all latents, normalized if `fc_norm` is set."""
        return cast(Tensor, self.fc_norm(latents.mean(dim=1) if self.global_pool == "avg" else latents))

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
        """Return the tokens after selected layers, with the interface of timm's models.

        Returns (output of `forward_features`, list of tokens), or with `intermediates_only` the list alone. Only layers
        that update the tokens can be selected.

        Args:
            indices: a number n for the last n of the layers that can be selected, a list of layers, or None for all.
            return_prefix_tokens: return pairs (tokens, latents) of each layer.
            norm: apply the final norm to the latents in these pairs; tokens have no final norm.
            stop_early: stop after the last layer in `indices`.
            output_fmt: "NCHW" or "NLC".

        Raises:
            ValueError: `output_fmt` is unknown.
        """
        if output_fmt not in ("NCHW", "NLC"):
            raise ValueError(f"output_fmt must be NCHW or NLC, not {output_fmt!r}")
        taken, last = feature_take_indices(self.token_layers(), indices)
        grid, tokens = self.grid(x), self.embed(x)
        latents: Tensor = self.latents
        found: list[Any] = []
        for index in range(last + 1 if stop_early else len(self.blocks)):
            latents, tokens = self._run(index, latents, tokens, grid)
            if index in taken:
                layer_tokens = as_map(tokens, grid) if output_fmt == "NCHW" else tokens
                prefix = self.norm_lat(latents) if norm else latents
                found.append((layer_tokens, prefix) if return_prefix_tokens else layer_tokens)
        return found if intermediates_only else (self.norm_lat(latents), found)

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Remove the layers that `forward_intermediates` does not need for `indices`."""
        if prune_head:
            self.fc_norm = nn.Identity()
        return super().prune_intermediate_layers(indices, prune_norm, prune_head)

    def _layers(self, images: Tensor, count: int) -> tuple[Tensor, Tensor | None]:
        """Return latents and tokens after the first `count` layers."""
        grid, tokens = self.grid(images), self.embed(images)
        latents: Tensor = self.latents
        for index in range(count):
            latents, tokens = self._run(index, latents, tokens, grid)
        return latents, tokens

    def _run(self, *inputs: Any) -> Any:
        return checkpoint(self.run_layer, *inputs) if self.grad_checkpointing else self.run_layer(*inputs)

    def grid(self, images: Tensor) -> tuple[int, int]:
        """Return (rows, columns) of the images' tokens.

        Raises:
            UsageError: the images have no such grid, or the model's position codes are for another grid.
        """
        fixed = self.grid_size if isinstance(self.fourier_pos_encode, StaticPositions) else None
        return image_grid(images.shape[2], images.shape[3], self.patch_embed.stride, fixed)


@fx.wrap
def image_grid(height: int, width: int, stride: int, fixed: tuple[int, int] | None) -> tuple[int, int]:
    """Return (rows, columns) of an image's tokens, as one node of a traced graph.

    Args:
        fixed: the grid of a model with static positions.
    """
    grid = token_grid((height, width), stride)
    if fixed is not None and grid != fixed:
        rows, columns = fixed
        raise UsageError(
            f"this model is for images of {rows * stride} x {columns * stride}, but these are {height} x {width}; "
            "call set_input_size, or create it with another img_size or with positions='dynamic'"
        )
    return grid


def as_map(tokens: Tensor, grid: tuple[int, int]) -> Tensor:
    """Reshape tokens (B, N, C) to a map (B, C, rows, columns)."""
    return tokens.transpose(1, 2).unflatten(2, grid).contiguous()


def _initialize(module: nn.Module, name: str) -> None:
    """Initialize a linear layer or a convolution by the rule "jax"; `name` is its path in the model."""
    if isinstance(module, nn.Conv2d):
        lecun_normal_(module.weight)
    elif not isinstance(module, nn.Linear):
        return
    elif name == "head":
        nn.init.zeros_(module.weight)
    else:
        nn.init.xavier_uniform_(module.weight)
    if module.bias is not None:
        if "mlp" in name:
            nn.init.normal_(module.bias, std=1e-6)
        else:
            nn.init.zeros_(module.bias)
