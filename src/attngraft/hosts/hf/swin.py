"""Hugging Face's Swin: the layer cuts the map into windows, shifts them, puts them back, and drops behind both branches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, cast

import torch.nn.functional as F
from torch import Tensor
from transformers.models.swin import modeling_swin as swin

from attngraft.attention import GraftedModule, Projected, record_coordinates
from attngraft.hosts.adapter import Site, check_known, own_parameters
from attngraft.hosts.hf.attention import ScalingSite, attention_site
from attngraft.hosts.hf.family import ImageFamily, pair
from attngraft.hosts.hf.mlp import TwoLayers, mlp_site
from attngraft.hosts.registry import register_host
from attngraft.hosts.sites import windowed


class GraftedSwinAttention(ScalingSite, swin.SwinAttention):
    """`transformers.models.swin.modeling_swin.SwinAttention`: B counts windows, those of one image side by side."""

    ends = ("attn.window",)

    def check(self, mask: Tensor | None) -> None:
        """The mask keeps shifted windows apart, and hides no token from all."""

    def project(
        self, x: Tensor, attention_mask: Tensor | None = None, present: Tensor | None = None, **kwargs: Any
    ) -> Projected:
        q, k, v = self.split(x)
        bias = self.relative_position_bias()
        if attention_mask is not None:  # (windows of an image, N, N)
            images, tokens = x.shape[0] // attention_mask.shape[0], x.shape[1]
            mask = attention_mask.unsqueeze(1).unsqueeze(0).expand(images, -1, -1, -1, -1)
            bias = bias + mask.reshape(-1, 1, tokens, tokens)
        return Projected(q, k, v, x, bias=bias, rest=attention_mask, present=present)

    def shared_bias(self, projected: Projected) -> Tensor:
        bias, mask = cast(Tensor, self.relative_position_bias()), projected.rest.more
        return bias if mask is None else bias + mask.unsqueeze(1)

    def visible(self, projected: Projected) -> Tensor | None:
        mask = projected.rest.more
        if mask is None:
            return None
        return cast(Tensor, (mask == 0).unsqueeze(1).repeat(projected.q.shape[0] // mask.shape[0], 1, 1, 1))


class GraftedSwinMLP(TwoLayers, swin.SwinMLP):
    """`transformers.models.swin.modeling_swin.SwinMLP`."""


class GraftedSwinLayer(GraftedModule, swin.SwinLayer):
    """`transformers.models.swin.modeling_swin.SwinLayer`.

    It alone knows which tokens are zeros that fill up a window, and tells the mix graft of its attention.
    """

    @property
    def in_use(self) -> bool:
        return super().in_use or self._mixes()

    def _mixes(self) -> bool:
        return isinstance(self.attention, GraftedSwinAttention) and bool(self.attention.grafts_at("mix"))

    def forward(
        self, hidden_states: Tensor, input_dimensions: tuple[int, int], always_partition: bool = False, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """The host's own, with places at both ends."""
        if not always_partition:
            self.set_shift_and_window_size(input_dimensions)
        height, width = input_dimensions
        batch, _, channels = hidden_states.shape
        maps = self.layernorm_before(hidden_states).view(batch, height, width, channels)
        own, (maps, padding) = maps, self.maybe_pad(maps, height, width)
        padded = maps.shape[1:3]
        record_coordinates(self, own, lambda maps: self._partition(self.cyclic_shift(F.pad(maps, padding))))
        filled = {"present": self._present(height, width, padding, maps)} if self._mixes() and any(padding) else {}
        windows = self._partition(self.cyclic_shift(maps))
        mask = self.get_attn_mask(*padded, dtype=maps.dtype, device=maps.device)
        attended, weights = self.attention(windows, mask, **filled, **kwargs)
        side = self.window_size
        attended = self.dropout(attended).view(-1, side, side, channels)
        attended = self.cyclic_shift(swin.window_reverse(attended, side, *padded), reverse=True)
        attended = self.run("attn.end", attended[:, :height, :width].contiguous())
        hidden_states = hidden_states + self.drop_path(attended.view(batch, height * width, channels))
        out = self.run("mlp.end", self.dropout(self.mlp(self.layernorm_after(hidden_states))))
        return out + hidden_states, weights

    def _partition(self, maps: Tensor) -> Tensor:
        """(B, H, W, C) to (B * windows, N, C)."""
        return cast(Tensor, swin.window_partition(maps, self.window_size)).flatten(1, 2)

    def _present(self, height: int, width: int, padding: tuple[int, ...], maps: Tensor) -> Tensor:
        """(windows of an image, N), False for what fills up."""
        present = F.pad(maps.new_ones(1, height, width, 1), padding)
        return self._partition(self.cyclic_shift(present)).flatten(1) > 0


class TransformersSwin(ImageFamily):
    """Sites `encoder.layers.<i>.blocks.<j>.attention` and `.mlp`."""

    name = "hf.swin"
    summary = "transformers Swin, backbones too"
    patched: ClassVar = {
        swin.SwinAttention: GraftedSwinAttention,
        swin.SwinMLP: GraftedSwinMLP,
        swin.SwinLayer: GraftedSwinLayer,
    }
    models = (
        swin.SwinModel,
        swin.SwinForImageClassification,
        swin.SwinForMaskedImageModeling,
        swin.SwinBackbone,
    )
    layers = (swin.SwinLayer,)
    inner = ("swin",)

    def read(self, layer: Any, path: str) -> Iterable[Site]:
        check_known(
            layer,
            path,
            arguments=("hidden_states", "input_dimensions", "always_partition", "kwargs"),
            children=("attention", "layernorm_before", "layernorm_after", "mlp", "dropout", "drop_path"),
        )
        attention, grid = layer.attention, self._grid(layer, path)
        side = attention.relative_position_bias.window_size[0]
        dim = attention.q_proj.in_features
        table = own_parameters(attention, "relative_position_bias")
        yield attention_site(
            attention,
            f"{path}.attention",
            end=path,
            children=("relative_position_bias",),
            dim=dim,
            **windowed(grid, (side, side)),
            query_key_parameters=table,
            score_columns=table,
        )
        yield mlp_site(layer.mlp, f"{path}.mlp", end=path, dim=dim, tokens=grid[0] * grid[1], grid=grid)

    def _grid(self, layer: Any, path: str) -> tuple[int, int]:
        """The map of the stage; odd ones are filled up before they are halved."""
        config, stage = layer.attention.config, int(self.canonical(path).split(".")[2])
        rows, columns = (
            -(-side // patch // 2**stage)
            for side, patch in zip(pair(config.image_size), pair(config.patch_size), strict=True)
        )
        return rows, columns


register_host(TransformersSwin())
