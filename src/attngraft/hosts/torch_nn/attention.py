"""`torch.nn.MultiheadAttention`: joint or separate projections, three kinds of masks, optional weights."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attngraft.attention import (
    AttentionGeometry,
    AttentionSite,
    GraftedModule,
    HeadRows,
    HookPoint,
    LinearLayer,
    Projected,
    Projection,
    plain_class,
)
from attngraft.errors import UsageError
from attngraft.hosts.adapter import Site, check_known
from attngraft.hosts.patched import check_call
from attngraft.hosts.sites import global_site

Output = tuple[Tensor, Tensor | None]
ModuleT = TypeVar("ModuleT", bound=nn.Module)


def may_use_fast_path(module: nn.Module, *inputs: Tensor) -> bool:
    """Return whether torch may run its fused inference kernels, which round differently."""
    if module.training:
        return False
    tensors = (*inputs, *module.parameters())
    return not (torch.is_grad_enabled() and any(each.requires_grad for each in tensors))


def plain_copy(module: ModuleT) -> ModuleT:
    """Return a module of the host's class that shares all of `module` except grafts and recorders."""
    copy: Any = object.__new__(plain_class(module))
    copy.__dict__.update(module.__dict__)
    copy.__dict__.pop("recorder", None)
    copy.__dict__["_modules"] = {
        name: plain_copy(child) if child is not None and _has_patched(child) else child
        for name, child in module._modules.items()
        if name != "grafts"
    }
    return cast(ModuleT, copy)


def _has_patched(module: nn.Module) -> bool:
    return any(isinstance(each, GraftedModule) for each in module.modules())


class _Call(NamedTuple):
    """State of one call."""

    weights: bool  #: whether the weights are requested; the fused kernel does not return them
    bias: Tensor | None  #: (1 or B, 1 or H, 1 or Nq, Nk), the combined masks, added to the scores
    causal: bool  #: whether the kernel's causal mask replaces the bias
    maps: list[Tensor]  #: the map after dropout, once computed


class GraftedMultiheadAttention(AttentionSite, nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention`; with grafts, it never uses torch's fast path.

    Weights are returned as by the host: after the softmax, the grafts at `weights`, and dropout. With a graft at `mix`, the
    weights are those of the host without the graft.
    """

    @property
    def scale(self) -> float:  # type: ignore[override]
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
        """Run the host's forward; the surrounding block's dropout `drop` precedes grafts at `attn.end`.

        Raises:
            UsageError: a graft does not support this call, or tensors are nested.
        """
        arguments = (query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal)
        if self.grafts or not may_use_fast_path(self, query, key, value):
            return self._explicit(*arguments, drop=drop)
        plain = plain_copy(self).forward(*arguments)
        if self.is_recording() and not query.is_nested:
            self._explicit(*arguments, drop=drop)  # only to record
        return plain if drop is None else (drop(plain[0]), plain[1])

    def _explicit(
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
            raise UsageError("nested tensors require torch's fast path, which bypasses grafts; pass padded tensors")
        same, same_kv = query is key and key is value, key is value
        has_mask = attn_mask is not None or is_causal
        check_call(self, causal=has_mask, padded=key_padding_mask is not None, cross=not same)
        cast(Any, F)._mha_shape_check(query, key, value, key_padding_mask, attn_mask, self.num_heads)
        batched = query.dim() == 3
        x = self._batch_first(query, batched)
        keys = None if same else self._batch_first(key, batched)
        values = None if same_kv else self._batch_first(value, batched)
        bias, causal = self._mask(x, x if keys is None else keys, key_padding_mask, attn_mask, need_weights, is_causal)
        call = _Call(need_weights, bias, causal, [])

        def dropped(tokens: Tensor) -> Tensor:
            return self._batch_first(cast(Any, drop)(self._host_order(tokens, batched)), batched)

        projected = self.project(x, keys, values, call=call)
        tokens = self.forward_projected(
            projected, lambda tokens: self.project(tokens, call=call), drop=None if drop is None else dropped
        )
        weights = self._weights(projected, batched, average) if need_weights else None
        return self._host_order(tokens, batched), weights

    def _batch_first(self, x: Tensor, batched: bool) -> Tensor:
        """Convert from the host's order of axes to (B, N, C)."""
        if not batched:
            return x.unsqueeze(0)
        return x if self.batch_first else x.transpose(0, 1)

    def _host_order(self, x: Tensor, batched: bool) -> Tensor:
        """Convert (B, N, C) to the host's order of axes."""
        if not batched:
            return x.squeeze(0)
        return x if self.batch_first else x.transpose(0, 1)

    def _mask(
        self,
        x: Tensor,
        keys: Tensor,
        padding: Tensor | None,
        mask: Tensor | None,
        need_weights: bool,
        is_causal: bool,
    ) -> tuple[Tensor | None, bool]:
        """Combine the masks as the host does.

        Returns:
            The bias (1 or B, 1 or H, 1 or Nq, Nk), and whether the kernel's causal mask replaces it.
        """
        canonical = cast(Any, F)._canonical_mask
        extra = (self.bias_k is not None) + bool(self.add_zero_attn)  # keys without a token
        batch, queries, number = x.shape[0], x.shape[1], keys.shape[1] + extra
        padding = canonical(padding, "key_padding_mask", cast(Any, F)._none_or_dtype(mask), "attn_mask", x.dtype)
        mask = canonical(mask, "attn_mask", None, "", x.dtype, check_other=False)
        if is_causal and mask is None:
            raise UsageError(
                "is_causal is only a hint in torch.nn.MultiheadAttention: pass attn_mask too, for "
                "example from nn.Transformer.generate_square_subsequent_mask"
            )
        if is_causal and padding is None and not need_weights:
            return None, True
        if mask is not None:
            by_head = mask.dim() == 3
            _check_shape("attn_mask", mask, (*((batch * self.num_heads,) if by_head else ()), queries, keys.shape[1]))
            mask = F.pad(mask, (0, extra)) if extra else mask
            mask = mask.view((batch, self.num_heads, queries, -1) if by_head else (1, 1, queries, -1))
        if padding is not None:
            padding = padding if padding.dim() == 2 else padding.unsqueeze(0)
            _check_shape("key_padding_mask", padding, (batch, keys.shape[1]))
            padding = F.pad(padding, (0, extra)) if extra else padding
            padding = padding.view(batch, 1, 1, number).expand(-1, self.num_heads, -1, -1)
            mask = padding if mask is None else mask + padding
        return mask, False

    def project(self, x: Tensor, keys: Tensor | None = None, values: Tensor | None = None, *, call: _Call) -> Projected:
        """Project (B, N, C); `keys` defaults to `x`, `values` to `keys`."""
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
        return Projected(q, k, v, x, bias=call.bias, causal=call.causal, keys=keys, rest=call)

    def _heads(self, x: Tensor, batch: int) -> Tensor:
        """Reshape (N, B, H * d) to (B, H, N, d)."""
        number = x.shape[0]
        heads = x.contiguous().view(number, batch * self.num_heads, self.head_dim).transpose(0, 1)
        return heads.view(batch, self.num_heads, number, self.head_dim)

    def attend(self, projected: Projected) -> Tensor:
        """Use the fused kernel unless the weights are requested or `weights` has a graft."""
        if not self.grafts_at("weights") and not projected.rest.weights:
            self.record_map(projected)
            return F.scaled_dot_product_attention(
                projected.q, projected.k, projected.v, projected.bias, self.dropped(), projected.causal
            )
        return self.attend_explicitly(projected)

    def dropped(self) -> float:
        return self.dropout if self.training else 0.0

    def scores(self, projected: Projected) -> Tensor:
        """Compute the scores and add the mask in a single `baddbmm`, as the host does."""
        q, k = (projected.q * self.scale).flatten(0, 1), projected.k.flatten(0, 1).transpose(-2, -1)
        bias = projected.bias
        if projected.causal:
            bias = q.new_full((1, 1, q.shape[-2], k.shape[-1]), float("-inf")).triu_(1)
        scores = torch.bmm(q, k) if bias is None else torch.baddbmm(bias.flatten(0, 1), q, k)
        return scores.unflatten(0, projected.q.shape[:2])

    def spread(self, weights: Tensor, projected: Projected) -> Tensor:
        if self.dropped() > 0:
            weights = F.dropout(weights, self.dropped())
        projected.rest.maps.append(weights)
        heads = torch.bmm(weights.flatten(0, 1), projected.v.flatten(0, 1))
        return heads.unflatten(0, weights.shape[:2])

    def merge(self, heads: Tensor, projected: Projected) -> Tensor:
        batch, _, number, _ = heads.shape
        rows = heads.permute(2, 0, 1, 3).reshape(number * batch, self.embed_dim)
        rows = F.linear(rows, self.out_proj.weight, self.out_proj.bias)
        return rows.view(number, batch, rows.shape[-1]).transpose(0, 1)

    def drop(self, tokens: Tensor) -> Tensor:
        return tokens  # the surrounding block applies the dropout, if any: see `forward`

    def output_layer(self) -> LinearLayer | None:
        return self.out_proj

    def _weights(self, projected: Projected, batched: bool, average: bool) -> Tensor:
        maps = projected.rest.maps
        # mix grafts compute no map
        weights: Tensor = maps[-1] if maps else self.normalize(self.scores(projected))
        weights = weights.mean(dim=1) if average else weights
        return weights if batched else weights.squeeze(0)


def _check_shape(name: str, mask: Tensor, expected: tuple[int, ...]) -> None:
    if tuple(mask.shape) != expected:
        raise UsageError(f"{name} must have shape {expected} for these queries and keys, not {tuple(mask.shape)}")


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
    dropout_block: str | None = None,
    **fields: Any,
) -> Site:
    """Return the site of a `torch.nn.MultiheadAttention`.

    Args:
        target: path of the module, if it differs from the site's.
        companions: paths of the companions of every hook point.
        dropout_block: path of the block that passes its dropout to patched attention, for `attn.end`.
        fields: geometry fields that the module does not determine.
    """
    target = path if target is None else target
    check_known(module, path, arguments=_ARGUMENTS, children=("out_proj",))
    missing = _missing(module)
    same = module.kdim == module.vdim == module.embed_dim
    geometry = AttentionGeometry(
        **{"init": "xavier_uniform", "cross": not same, **fields},
        dim=module.embed_dim,
        heads=module.num_heads,
        key_width=module.head_dim,
        value_width=module.head_dim,
        projection=Projection(bias=module.in_proj_bias is not None),
        rows={role: _rows(module, role, index) for index, role in enumerate(("q", "k", "v"))},
        query_key_parameters=() if module.bias_k is None else ("bias_k",),
    )
    # the map can be recorded even if it cannot have grafts
    site = global_site(target, geometry, missing, record_tensors={"weights": target} if "weights" in missing else {})
    by_hook_point: dict[HookPoint, tuple[str, ...]] = dict.fromkeys(site.targets, companions)
    by_hook_point["attn.end"] = (*companions, *(() if dropout_block is None else (dropout_block,)))
    by_hook_point = {hook_point: paths for hook_point, paths in by_hook_point.items() if paths}
    return replace(site, path=path, rounds=True, companions=by_hook_point)


def _missing(module: Any) -> dict[HookPoint, str]:
    if module.bias_k is not None or module.add_zero_attn:
        what = "a learned key (add_bias_kv)" if module.bias_k is not None else "a zero key (add_zero_attn)"
        why = f"every query also attends to {what}, which belongs to no token; horizontal and vertical work here"
        return {"mix": why, "weights": why}
    if not module._qkv_same_embed_dim:
        return {"mix": f"its keys and values have widths ({module.kdim}, {module.vdim}) that differ from its queries'"}
    return {}


def _rows(module: Any, role: str, index: int) -> tuple[HeadRows, ...]:
    """Return the rows of q, k or v in a fused or separate weight matrix; biases are always fused."""
    width, start = module.head_dim, index * module.embed_dim
    fused = {"in_proj_weight": module.embed_dim} if module.in_proj_weight is not None else {}
    biases = {"in_proj_bias": 1} if module.in_proj_bias is not None else {}
    rows = [HeadRows({**fused, **biases}, start, width, width)] if fused or biases else []
    if module.in_proj_weight is None:
        name = f"{role}_proj_weight"
        rows.append(HeadRows({name: getattr(module, name).shape[1]}, 0, width, width))
    return tuple(rows)
