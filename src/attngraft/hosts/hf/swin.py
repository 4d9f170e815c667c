"""Hugging Face's Swin: the layer partitions, shifts and merges windows; both branches have dropout."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar, cast

import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.swin import modeling_swin as swin

from attngraft.attention import GraftedModule, Projected, record_coordinates
from attngraft.hosts.adapter import check_known, own_parameters
from attngraft.hosts.family import ShapeProbe, Sites
from attngraft.hosts.hf.attention import ScalingSite, attention_site
from attngraft.hosts.hf.family import pair
from attngraft.hosts.hf.mlp import mlp_site
from attngraft.hosts.sites import map_fields, windowed


class GraftedSwinAttention(ScalingSite, swin.SwinAttention):
    """`transformers.models.swin.modeling_swin.SwinAttention`; its batch is (images * windows)."""

    ends = ("attn.window",)
    may_hide_all: ClassVar[bool] = False

    def check_mask(self, mask: Tensor | None) -> None:
        """Accept any mask: it separates shifted windows and hides no token from all queries."""

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


class GraftedSwinLayer(GraftedModule, swin.SwinLayer):
    """`transformers.models.swin.modeling_swin.SwinLayer`.

    Passes the mask of the window padding to its attention if a graft at `mix` requires it.
    """

    @property
    def in_use(self) -> bool:
        return super().in_use or self._mixes()

    def _mixes(self) -> bool:
        return isinstance(self.attention, GraftedSwinAttention) and bool(self.attention.grafts_at("mix"))

    def forward(
        self, hidden_states: Tensor, input_dimensions: tuple[int, int], always_partition: bool = False, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        if not always_partition:
            self.set_shift_and_window_size(input_dimensions)
        height, width = input_dimensions
        batch, _, channels = hidden_states.shape
        unpadded = self.layernorm_before(hidden_states).view(batch, height, width, channels)
        maps, padding = self.maybe_pad(unpadded, height, width)
        padded, side = maps.shape[1:3], self.window_size
        record_coordinates(self, unpadded, lambda maps: self._windows(F.pad(maps, padding)))
        present = {}
        if self._mixes() and any(padding):  # (windows of an image, N), False for padding
            present["present"] = self._windows(F.pad(maps.new_ones(1, height, width, 1), padding)).flatten(1) > 0
        mask = self.get_attn_mask(*padded, dtype=maps.dtype, device=maps.device)
        attended, weights = self.attention(self._windows(maps), mask, **present, **kwargs)
        attended = self.dropout(attended).view(-1, side, side, channels)
        attended = self.cyclic_shift(swin.window_reverse(attended, side, *padded), reverse=True)
        attended = self.run("attn.end", attended[:, :height, :width].contiguous())
        hidden_states = hidden_states + self.drop_path(attended.view(batch, height * width, channels))
        out = self.run("mlp.end", self.dropout(self.mlp(self.layernorm_after(hidden_states))))
        return out + hidden_states, weights

    def _windows(self, maps: Tensor) -> Tensor:
        """Shift and partition padded maps (B, H, W, C) into windows (B * windows, N, C)."""
        return cast(Tensor, swin.window_partition(self.cyclic_shift(maps), self.window_size)).flatten(1, 2)


def swin_sites(layer: Any, path: str, shapes: ShapeProbe) -> Sites:
    """Yield the sites `attention` and `mlp` of a layer."""
    check_known(
        layer,
        path,
        arguments=("hidden_states", "input_dimensions", "always_partition", "kwargs"),
        children=("attention", "layernorm_before", "layernorm_after", "mlp", "dropout", "drop_path"),
    )
    attention, config = layer.attention, layer.attention.config
    # size of the stage's map; odd sizes are padded before they are halved
    stage = int(cast(re.Match[str], re.search(r"layers\.(\d+)", path))[1])
    sizes = zip(pair(config.image_size), pair(config.patch_size), strict=True)
    rows, columns = (-(-side // patch // 2**stage) for side, patch in sizes)
    window = attention.relative_position_bias.window_size[0]
    dim, table = attention.q_proj.in_features, own_parameters(attention, "relative_position_bias")
    yield attention_site(
        attention,
        f"{path}.attention",
        end=path,
        children=("relative_position_bias",),
        dim=dim,
        **windowed((rows, columns), (window, window)),
        query_key_parameters=table,
        score_columns=table,
    )
    yield mlp_site(layer.mlp, f"{path}.mlp", end=path, **map_fields(dim, rows, columns))


PATCHED: Mapping[type[nn.Module], type[GraftedModule]] = {
    swin.SwinAttention: GraftedSwinAttention,
    swin.SwinLayer: GraftedSwinLayer,
}
