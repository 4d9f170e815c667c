"""BiXT: a few latents and many tokens that refine each other, layer by layer.

    tokens  = patch_embed(images) + positions;   latents = a parameter that all images share
    latents, tokens = layer(latents, tokens)     `depth` times; the last layer reads the tokens only
    logits  = head(fc_norm(mean of the latents))

Attention costs latents times tokens, so that the work grows linearly with the tokens.

Source: M. Hiller, K. A. Ehinger, T. Drummond, "Perceiving Longer Sequences With Bi-Directional Cross-Attention
Transformers", 2024. Parameters have the names of the published checkpoints.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import torch
from timm.layers import calculate_drop_path_rates
from timm.models import checkpoint
from timm.models._features import feature_take_indices  # what timm's own models use
from torch import Tensor, nn

from attngraft.errors import UsageError
from attngraft.models.bixt.initialization import Initialization, initialize, initialize_all
from attngraft.models.bixt.layers import EPS, Layer
from attngraft.models.bixt.positions import DynamicPositions, StaticPositions
from attngraft.models.bixt.tokenizers import Tokenizer, make_tokenizer, token_grid
from attngraft.models.bixt.words import known

Pool = Literal["avg", ""]
Positions = Literal["static", "dynamic"]


class BiXT(nn.Module):
    """Images (B, in_chans, H, W) to logits (B, num_classes).

    Args:
        img_size: of the images, one number or (rows, columns).
        global_pool: "avg", the mean of the latents, or "", all of them.
        patch_size, stride: of the tokenizer; the grid has H / stride x W / stride tokens. A stride of None is the patch's
            size, the only one of the convolutional tokenizer.
        tokenizer: "linear" or "conv" (`tokenizers`).
        positions: "static", of the one grid of `img_size`, or "dynamic", of each image's own (`positions`).
        embed_dim: width of the latents. token_dim, attention_dim: of tokens and cross-attention; the same where not given.
        depth: number of layers. The last is one-sided: it updates the latents only.
        num_heads: of self- and cross-attention; sa_heads, ca_heads: where they differ.
        init_values: what layer scale starts from; None: none.
        fc_norm: norm behind the pooling, and not in front of it.
        local: local patch interaction of the tokens in every layer that updates them (`layers.CrossAttentionBlock`).
        dense: without the last layer, see `drop_last_layer`.
        drop_rate: dropout in front of the head. drop_path_rate: of the last layer, from 0 at the first on;
            sa_drop_path_rate, ca_drop_path_rate: of self- and cross-attention, where they differ.
        weight_init: "jax", as the published models were trained, or "skip", PyTorch's own with standard-normal latents, as
            those of 384 pixels start, which are fine-tuned anyway.

    Raises:
        UsageError: sizes that do not go together, or an unknown word.
    """

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        *,
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
        attention_dim: int | None = None,
        depth: int = 12,
        num_heads: int = 6,
        sa_heads: int | None = None,
        ca_heads: int | None = None,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        rv_bias: bool = True,
        init_values: float | None = None,
        fc_norm: bool = True,
        local: bool = False,
        dense: bool = False,
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        sa_drop_path_rate: float | None = None,
        ca_drop_path_rate: float | None = None,
        weight_init: Initialization = "jax",
    ) -> None:
        super().__init__()
        token_dim = token_dim or embed_dim
        self.num_classes, self.in_chans = num_classes, in_chans
        self.global_pool = known("global_pool", global_pool, ("avg", ""))
        self.weight_init = known("weight_init", weight_init, ("jax", "skip"))
        self.num_features = self.head_hidden_size = self.embed_dim = embed_dim
        self.token_dim = token_dim
        self.grad_checkpointing = False

        self.patch_embed = make_tokenizer(tokenizer, patch_size, stride, in_chans=in_chans, dim=token_dim)
        self.grid_size = token_grid(img_size, self.patch_embed.stride)
        code: dict[str, Any] = {"dim": position_dim, "temperature": temperature}
        self.fourier_pos_encode = (
            StaticPositions(token_dim, self.grid_size, **code)
            if known("positions", positions, ("static", "dynamic")) == "static"
            else DynamicPositions(token_dim, **code)
        )
        self.latents = nn.Parameter(torch.empty(1, num_latents, embed_dim))
        sa_rate = drop_path_rate if sa_drop_path_rate is None else sa_drop_path_rate
        ca_rate = drop_path_rate if ca_drop_path_rate is None else ca_drop_path_rate
        rates = zip(calculate_drop_path_rates(sa_rate, depth), calculate_drop_path_rates(ca_rate, depth), strict=True)
        self.blocks = nn.ModuleList(
            Layer(
                embed_dim,
                token_dim,
                dim_attention=attention_dim or embed_dim,
                sa_heads=sa_heads or num_heads,
                ca_heads=ca_heads or num_heads,
                mlp_ratio=mlp_ratio,
                qkv_bias=qkv_bias,
                rv_bias=rv_bias,
                layer_scale=init_values,
                sa_drop_path=sa_drop_path,
                ca_drop_path=ca_drop_path,
                attn_drop=attn_drop_rate,
                proj_drop=proj_drop_rate,
                one_sided=index == depth - 1,
                local=local,
            )
            for index, (sa_drop_path, ca_drop_path) in enumerate(rates)
        )
        self.feature_info = [
            {"module": f"blocks.{index}", "num_chs": token_dim, "reduction": self.patch_embed.stride}
            for index in range(depth - 1)
        ]
        self.norm_lat = nn.Identity() if fc_norm else nn.LayerNorm(embed_dim, eps=EPS)
        self.fc_norm = nn.LayerNorm(embed_dim, eps=EPS) if fc_norm else nn.Identity()
        self.head_drop = nn.Dropout(drop_rate)
        self.head = _head(embed_dim, num_classes)
        self.init_weights()
        if dense:
            self.drop_last_layer()

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

    def drop_last_layer(self) -> None:
        """Take away the last layer, which does not update the tokens: what is left is for dense tasks.

        Train with 13 layers, then work with the tokens of the first 12 (`forward_tokens`).

        Raises:
            UsageError: it is gone already.
        """
        if not self.blocks or not self.blocks[-1].one_sided:
            raise UsageError("the last layer of this model updates its tokens, so there is no one-sided layer to drop")
        self.blocks = self.blocks[:-1]

    # -- forward -------------------------------------------------------------------------------------------------------

    def embed(self, images: Tensor) -> Tensor:
        """Images to the tokens (B, N, token_dim) that enter the first layer."""
        return self.patch_embed(images) + self.fourier_pos_encode(self._grid(images))

    def forward_features(self, images: Tensor) -> Tensor:
        """Images to latents (B, M, embed_dim) behind the last layer, normed where `fc_norm` is off."""
        latents, _ = self._layers(images, len(self.blocks))
        return cast(Tensor, self.norm_lat(latents))

    def forward_tokens(self, images: Tensor) -> Tensor:
        """Images to a map (B, token_dim, rows, columns): the tokens behind the last layer that updates them."""
        _, tokens = self._layers(images, self._full_layers())
        return _as_map(cast(Tensor, tokens), self._grid(images))

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
        taken, last = feature_take_indices(self._full_layers(), indices)
        grid, tokens = self._grid(x), self.embed(x)
        latents: Tensor = self.latents
        found: list[Any] = []
        for index, layer in enumerate(self.blocks[: last + 1] if stop_early else self.blocks):
            latents, tokens = self._run(layer, latents, tokens, grid)
            if index in taken:
                given = _as_map(tokens, grid) if output_fmt == "NCHW" else tokens
                found.append((given, self.norm_lat(latents) if norm else latents) if return_prefix_tokens else given)
        return found if intermediates_only else (self.norm_lat(latents), found)

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Take away the layers that `forward_intermediates` does not need for `indices`."""
        taken, last = feature_take_indices(self._full_layers(), indices)
        self.blocks = self.blocks[: last + 1]
        if prune_norm:
            self.norm_lat = nn.Identity()
        if prune_head:
            self.fc_norm = nn.Identity()
            self.reset_classifier(0, "")
        return cast(list[int], taken)

    def _layers(self, images: Tensor, count: int) -> tuple[Tensor, Tensor | None]:
        """Through the first `count` layers."""
        grid, tokens = self._grid(images), self.embed(images)
        latents: Tensor = self.latents
        for layer in self.blocks[:count]:
            latents, tokens = self._run(layer, latents, tokens, grid)
        return latents, tokens

    def _run(self, layer: nn.Module, *inputs: Any) -> Any:
        return checkpoint(layer, *inputs) if self.grad_checkpointing else layer(*inputs)

    def _full_layers(self) -> int:
        return sum(not layer.one_sided for layer in self.blocks)

    def _grid(self, images: Tensor) -> tuple[int, int]:
        """Rows and columns of the images' tokens.

        Raises:
            UsageError: the model's positions are of another grid.
        """
        grid = token_grid((images.shape[2], images.shape[3]), self.patch_embed.stride)
        if isinstance(self.fourier_pos_encode, StaticPositions) and grid != self.grid_size:
            height, width = (side * self.patch_embed.stride for side in self.grid_size)
            raise UsageError(
                f"this BiXT is for images of {height} x {width}, and these are {images.shape[2]} x {images.shape[3]}; "
                "call set_input_size, make it with another img_size, or with positions='dynamic'"
            )
        return grid


def checkpoint_filter_fn(state_dict: dict[str, Tensor], model: BiXT) -> dict[str, Tensor]:
    """Published weights, or ours, made to fit `model`: its grid's position code, and no more layers than it has where it
    went without its last one."""
    layers = len(model.blocks)
    dropped = f"blocks.{layers}." if layers and not model.blocks[-1].one_sided else None
    values = {name: value for name, value in state_dict.items() if dropped is None or not name.startswith(dropped)}
    model.fourier_pos_encode.adapt(values, "fourier_pos_encode.pos")
    return values


def _as_map(tokens: Tensor, grid: tuple[int, int]) -> Tensor:
    """(B, N, C) to (B, C, rows, columns)."""
    return tokens.transpose(1, 2).unflatten(2, grid).contiguous()


def _head(dim: int, classes: int) -> nn.Module:
    return nn.Linear(dim, classes) if classes > 0 else nn.Identity()
