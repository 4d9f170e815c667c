"""`torch.nn.MultiheadAttention`: one projection or three, masks of three kinds, weights on request."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attngraft.attention import (
    AttentionGeometry,
    AttentionSite,
    HeadRows,
    HookPoint,
    LinearLayer,
    Projected,
    Projection,
)
from attngraft.errors import UsageError
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.calls import check_call
from attngraft.hosts.sites import GLOBAL, NO_WINDOWS
from attngraft.hosts.torch_nn.plain import plain_twin, without_graph

Output = tuple[Tensor, Tensor | None]


class _Call(NamedTuple):
    """What the verbs need of one call."""

    weights: bool  #: whether the map is asked for, which torch then spells out
    seen: list[Tensor]  #: the map, once it was spelled out, after its dropout


class _Masked(NamedTuple):
    """The masks of a call as its scores need them."""

    bias: Tensor | None  #: (1 or B, 1 or H, 1 or Nq, Nk), added to the scores
    causal: bool  #: the kernel's own causal mask takes the place of the bias


class GraftedMultiheadAttention(AttentionSite, nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention`, which never takes torch's fast path while it has grafts.

    The weights that it returns on request are those of the host: after softmax, weights grafts and dropout, averaged over
    heads where asked. Where a mix graft stands they are those of the self-attention, whatever the graft adds to it.
    """

    @property
    def scale(self) -> float:  # type: ignore[override]
        """What the scores are multiplied by."""
        return math.sqrt(1.0 / self.head_dim)

    def forward(  # type: ignore[override]
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        drop: Callable[[Tensor], Tensor] | None = None,
    ) -> Output:
        """As the host's; `drop` is the dropout of the block around, which then leaves it to us.

        Raises:
            UsageError: a graft cannot work with what this call gives, or tensors are nested.
        """
        arguments = (query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal)
        if self.grafts or not without_graph(self, query, key, value):
            return self._spelled(*arguments, drop=drop)
        plain = plain_twin(self).forward(*arguments)
        if self.is_recording() and not query.is_nested:
            self._spelled(*arguments, drop=drop)  # for what it offers
        return plain if drop is None else (drop(plain[0]), plain[1])

    def _spelled(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None,
        need_weights: bool,
        attn_mask: Tensor | None,
        average: bool,
        is_causal: bool,
        *,
        drop: Callable[[Tensor], Tensor] | None,
    ) -> Output:
        if query.is_nested or key.is_nested or value.is_nested:
            raise UsageError(
                "nested tensors go through torch's fast path alone, which goes past grafts; give padded ones"
            )
        one, shared = query is key and key is value, key is value
        masked = attn_mask is not None or is_causal
        check_call(self, causal=masked, padded=key_padding_mask is not None, cross=not one)
        cast(Any, F)._mha_shape_check(query, key, value, key_padding_mask, attn_mask, self.num_heads)
        batched = query.dim() == 3
        x = self._inward(query, batched)
        keys = None if one else self._inward(key, batched)
        values = None if shared else self._inward(value, batched)
        masks = self._masks(x, x if keys is None else keys, key_padding_mask, attn_mask, need_weights, is_causal)
        call = _Call(need_weights, [])

        def dropped(tokens: Tensor) -> Tensor:
            return self._inward(cast(Any, drop)(self._outward(tokens, batched)), batched)

        projected = self.project(x, keys, values, masks=masks, call=call)
        tokens = self.forward_projected(
            projected,
            lambda again: self.project(again, masks=masks, call=call),
            drop=None if drop is None else dropped,
        )
        return self._outward(tokens, batched), self._weights(projected, batched, average) if need_weights else None

    def _inward(self, x: Tensor, batched: bool) -> Tensor:
        """The host's order of axes to (B, N, C)."""
        if not batched:
            return x.unsqueeze(0)
        return x if self.batch_first else x.transpose(0, 1)

    def _outward(self, x: Tensor, batched: bool) -> Tensor:
        """(B, N, C) to the host's order of axes."""
        if not batched:
            return x.squeeze(0)
        return x if self.batch_first else x.transpose(0, 1)

    @property
    def _added(self) -> int:
        """Keys that stand for no token."""
        return (self.bias_k is not None) + bool(self.add_zero_attn)

    def _masks(
        self,
        x: Tensor,
        keys: Tensor,
        padding: Tensor | None,
        mask: Tensor | None,
        need_weights: bool,
        is_causal: bool,
    ) -> _Masked:
        """What the host makes of its masks."""
        canonical = cast(Any, F)._canonical_mask
        batch, queries, number = x.shape[0], x.shape[1], keys.shape[1] + self._added
        padding = canonical(padding, "key_padding_mask", cast(Any, F)._none_or_dtype(mask), "attn_mask", x.dtype)
        mask = canonical(mask, "attn_mask", None, "", x.dtype, check_other=False)
        if is_causal and mask is None:
            raise UsageError(
                "is_causal is only a hint in torch.nn.MultiheadAttention: give attn_mask too "
                "(nn.Transformer.generate_square_subsequent_mask)"
            )
        causal = is_causal and padding is None and not need_weights
        if causal:
            return _Masked(None, causal=True)
        if mask is not None:
            by_head = mask.dim() == 3
            _check_shape("attn_mask", mask, (*((batch * self.num_heads,) if by_head else ()), queries, keys.shape[1]))
            mask = F.pad(mask, (0, self._added)) if self._added else mask
            mask = mask.view((batch, self.num_heads, queries, -1) if by_head else (1, 1, queries, -1))
        if padding is not None:
            padding = padding if padding.dim() == 2 else padding.unsqueeze(0)
            _check_shape("key_padding_mask", padding, (batch, keys.shape[1]))
            padding = F.pad(padding, (0, self._added)) if self._added else padding
            padding = padding.view(batch, 1, 1, number).expand(-1, self.num_heads, -1, -1)
            mask = padding if mask is None else mask + padding
        return _Masked(mask, causal=False)

    def project(
        self, x: Tensor, keys: Tensor | None = None, values: Tensor | None = None, *, masks: _Masked, call: _Call
    ) -> Projected:
        """(B, N, C); keys are x where None, values are keys."""
        query = x.transpose(0, 1)
        key = query if keys is None else keys.transpose(0, 1)
        value = key if values is None else values.transpose(0, 1)
        functional, bias = cast(Any, F), self.in_proj_bias
        if not self._qkv_same_embed_dim:
            separate = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
            biases = (None, None, None) if bias is None else bias.chunk(3)
            q, k, v = functional._in_projection(query, key, value, *separate, *biases)
        else:
            q, k, v = functional._in_projection_packed(query, key, value, self.in_proj_weight, bias)
        batch = x.shape[0]
        if self.bias_k is not None:
            k = torch.cat([k, self.bias_k.repeat(1, batch, 1)])
            v = torch.cat([v, cast(Tensor, self.bias_v).repeat(1, batch, 1)])
        q, k, v = (self._heads(each, batch) for each in (q, k, v))
        if self.add_zero_attn:
            k, v = (torch.cat([each, each.new_zeros(*each.shape[:2], 1, each.shape[-1])], dim=2) for each in (k, v))
        return Projected(q, k, v, x, bias=masks.bias, causal=masks.causal, keys=keys, rest=call)

    def _heads(self, x: Tensor, batch: int) -> Tensor:
        """(N, B, H * d) to (B, H, N, d)."""
        number = x.shape[0]
        return (
            x.contiguous()
            .view(number, batch * self.num_heads, self.head_dim)
            .transpose(0, 1)
            .view(batch, self.num_heads, number, self.head_dim)
        )

    def attend(self, projected: Projected) -> Tensor:
        """Fused unless somebody asks for the map, or changes it."""
        changed = bool(self.grafts_at("weights"))
        if not changed and not projected.rest.weights:
            self.record_map(projected)
            return F.scaled_dot_product_attention(
                projected.q, projected.k, projected.v, projected.bias, self.dropped(), projected.causal
            )
        visible = self.visible(projected) if changed else None
        return self.spread_parts(self.run("weights", self.attention_map(projected), visible), projected)

    def dropped(self) -> float:
        return self.dropout if self.training else 0.0

    def scores(self, projected: Projected) -> Tensor:
        """The host adds its mask in the product."""
        q, k = (projected.q * self.scale).flatten(0, 1), projected.k.flatten(0, 1).transpose(-2, -1)
        bias = projected.bias
        if projected.causal:
            bias = q.new_full((1, 1, q.shape[-2], k.shape[-1]), float("-inf")).triu_(1)
        scores = torch.bmm(q, k) if bias is None else torch.baddbmm(bias.flatten(0, 1), q, k)
        return scores.unflatten(0, projected.q.shape[:2])

    def spread(self, weights: Tensor, projected: Projected) -> Tensor:
        if self.dropped() > 0:
            weights = F.dropout(weights, self.dropped())
        projected.rest.seen.append(weights)
        heads = torch.bmm(weights.flatten(0, 1), projected.v.flatten(0, 1))
        return heads.unflatten(0, weights.shape[:2])

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        batch, _, number, _ = heads.shape
        rows = heads.permute(2, 0, 1, 3).reshape(number * batch, self.embed_dim)
        rows = F.linear(rows, self.out_proj.weight, self.out_proj.bias)
        return rows.view(number, batch, -1).transpose(0, 1)

    def drop(self, tokens: Tensor) -> Tensor:
        return tokens  # the block's, where there is one: see `forward`

    def output_layer(self) -> LinearLayer | None:
        return self.out_proj

    def _weights(self, projected: Projected, batched: bool, average: bool) -> Tensor:
        seen = projected.rest.seen
        weights = cast(Tensor, seen[-1] if seen else self.normalize(self.scores(projected)))  # a mix graft needed none
        weights = weights.mean(dim=1) if average else weights
        return weights if batched else weights.squeeze(0)


def _check_shape(name: str, mask: Tensor, expected: tuple[int, ...]) -> None:
    if tuple(mask.shape) != expected:
        raise UsageError(f"{name} has shape {tuple(mask.shape)}, and these queries and keys need {expected}")


KNOWN = (nn.MultiheadAttention, GraftedMultiheadAttention)
_ARGUMENTS = (
    *("query", "key", "value", "key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal"),
    "drop",
)


def attention_site(
    module: Any,
    path: str,
    *,
    target: str | None = None,
    companions: tuple[str, ...] = (),
    ending: tuple[str, ...] = (),
    **known: Any,
) -> Site:
    """The site that torch's attention is.

    Args:
        target: path of the module, where that of the site is another.
        companions: of all hook points. ending: of the last one besides.
        known: fields of its geometry that the module does not know.
    """
    target = path if target is None else target
    check_known(module, path, arguments=_ARGUMENTS, children=("out_proj",))
    missing = {**NO_WINDOWS, **_missing(module)}
    hook_points = tuple(hook_point for hook_point in GLOBAL if hook_point not in missing)
    same = module.kdim == module.vdim == module.embed_dim
    geometry = AttentionGeometry(
        **{"init": "xavier_uniform", "cross": not same, **known},
        dim=module.embed_dim,
        heads=module.num_heads,
        key_width=module.head_dim,
        value_width=module.head_dim,
        projection=Projection(bias=module.in_proj_bias is not None),
        rows={role: _rows(module, role, index) for index, role in enumerate(("q", "k", "v"))},
        query_key_parameters=() if module.bias_k is None else ("bias_k",),
    )
    told: dict[HookPoint, tuple[str, ...]] = dict.fromkeys(hook_points, companions)
    told["attn.end"] = (*companions, *ending)
    return Site(
        path=path,
        kind="attention",
        geometry=geometry,
        targets=dict.fromkeys(hook_points, target),
        missing=missing,
        record_tensors={"weights": target}
        if "weights" in missing
        else {},  # a map that takes no graft can still be looked at
        rounds=True,
        companions={hook_point: paths for hook_point, paths in told.items() if paths},
    )


def _missing(module: Any) -> dict[HookPoint, str]:
    if module.bias_k is not None or module.add_zero_attn:
        what = "a learned key (add_bias_kv)" if module.bias_k is not None else "a key of zeros (add_zero_attn)"
        why = f"every query also sees {what}, which stands for no token; horizontal and vertical can stand here"
        return {"mix": why, "weights": why}
    if not module._qkv_same_embed_dim:
        return {
            "mix": f"its keys and values are tokens of other widths ({module.kdim}, {module.vdim}) than its queries"
        }
    return {}


def _rows(module: Any, role: str, index: int) -> tuple[HeadRows, ...]:
    """The rows of one of q, k, v: in one matrix with the others, or in its own; biases always stand together."""
    width, start = module.head_dim, index * module.embed_dim
    fused = {"in_proj_weight": module.embed_dim} if module.in_proj_weight is not None else {}
    biases = {"in_proj_bias": 1} if module.in_proj_bias is not None else {}
    found = [HeadRows({**fused, **biases}, start, width, width)] if fused or biases else []
    if module.in_proj_weight is None:
        name = f"{role}_proj_weight"
        found.append(HeadRows({name: getattr(module, name).shape[1]}, 0, width, width))
    return tuple(found)
