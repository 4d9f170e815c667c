"""How the two branches join, wherever an attention forms its heads."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attngraft.attention import Recordable
from attngraft.attention.geometry import Projection
from attngraft.attention.mixing import MixContext, Mixed
from attngraft.errors import UsageError
from attngraft.mechanisms.bisa import ops, reference
from attngraft.mechanisms.bisa.inverse import InverseBranch, OwnEnds
from attngraft.mechanisms.bisa.maps import LINEAR
from attngraft.mechanisms.bisa.operands import check_bias
from attngraft.mechanisms.bisa.transform import HyperTransform
from attngraft.mechanisms.bisa.variant import PAPER, Variant
from attngraft.mechanisms.initialization import InitRule

NORM_EPS = 1e-5


class BidirectionalMix(Recordable, nn.Module):
    """lambda SA + (1 - lambda) MISA (Eq. 3), from one score matrix, with the heads of both merged alike.

    | variant | what comes out |
    |---|---|
    | `norm` | lambda n(SA) + (1 - lambda) n(MISA), n over a sequence's tokens, by channel (no affine, eps 1e-5) |
    | `learned` | lambda = sigmoid(logit) |
    | `order` | one branch on the merged heads of the other, under the same projections; no residual, no mixing |
    | `separate` | MISA from scores of its own, through an output projection of its own; mixed behind the projections |
    | `identity` | SA + ((1 - lambda) / lambda) MISA, Eq. 3 divided by lambda; the inverse branch starts at 0 |

    At 0 by a transform of zeros. With `separate` on a host with batch norm it is the norm's weight behind the branch's own
    output projection that starts at 0, and the transform as ever: the norm of a constant has no use for a small change.

    With an `order` on such a host a projection's norm sees the host's tokens and the first branch's result in one step. In
    training each is normalized by its own statistics; the running ones, those of evaluation, blend both.

    Offers `self` and `inverse` (B, H, Nq, dv), what the branches put out before they are mixed, `inverse_weights`
    (B, H, Nq, Nk), whose columns sum to 1, and `lambda` to a recorder.

    Args:
        dim: C. num_heads: H. key_dim: dk. value_dim: dv.
        hyper_dim: s, width of q_hat and v_hat per head; dv where not given, as in all of the paper's models.
        out_dim: width of the tokens behind the output projection; C where not given.
        mlp_hidden: units of the MLP transform, see `MlpTransform`.
        projection, init: how the host makes its own maps.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        key_dim: int,
        value_dim: int,
        hyper_dim: int | None = None,
        out_dim: int | None = None,
        mlp_hidden: int | None = None,
        variant: Variant = PAPER,
        projection: Projection = LINEAR,
        init: InitRule = "trunc_normal",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.variant = variant
        made: dict[str, Any] = {"projection": projection, "init": init, "device": device, "dtype": dtype}
        # A norm behind the branch would divide by a variance of 0, and the first step away from it be one of any size.
        zero_by_norm = variant.identity and variant.separate and projection.norm is not None
        self.inverse = InverseBranch(
            dim,
            num_heads,
            value_dim=value_dim,
            hyper_dim=value_dim if hyper_dim is None else hyper_dim,
            transform=variant.transform,
            mlp_hidden=mlp_hidden,
            zero=variant.identity and not zero_by_norm,
            **made,
        )
        self.own: OwnEnds | None = None
        if variant.separate:
            out = dim if out_dim is None else out_dim
            self.own = OwnEnds(
                dim, num_heads, key_dim=key_dim, value_dim=value_dim, out_dim=out, zero=zero_by_norm, **made
            )
        self.logit: nn.Parameter | None = None
        if variant.learned:
            start = math.log(variant.weight / (1 - variant.weight))
            self.logit = nn.Parameter(torch.full((1,), start, device=device, dtype=dtype))

    def forward(self, context: MixContext) -> Mixed:
        """The heads of a place where scores become heads.

        Raises:
            UsageError: under a causal mask, or where one branch cannot go through the projections after the other.
        """
        if context.projected.causal:
            raise UsageError(
                "the softmax over queries sees later tokens, so bi-directional attention cannot be causal; "
                "call without is_causal"
            )
        if self.variant.order != "parallel":
            return Mixed(self._in_turn(context))
        attended, inverse = self._branches(context)
        if self.variant.norm:
            present = context.projected.present
            inverse = _over_tokens(inverse, present)
            attended = attended if attended is None else _over_tokens(attended, present)
        if self.own is None:
            return Mixed(inverse if attended is None else self._mixed(attended, inverse))
        beside = self.own.merge(context.join(inverse))
        return Mixed(cast(Tensor, attended), after=lambda tokens: self._mixed(tokens, beside))

    def _branches(self, context: MixContext) -> tuple[Tensor | None, Tensor]:
        """SA, None where it has no part, and MISA (B, H, Nq, dv)."""
        attended: Tensor | None
        transform, projected = self.inverse.transform, context.projected
        if not (self.variant.attends and context.plain and self.own is None and isinstance(transform, HyperTransform)):
            attended = context.attend() if self.variant.attends else None
            inverse = self._inverse(context)
        else:
            if context.is_recording:
                context.attend()  # for what it offers: the heads stay those of the shared scores
            attended, u = ops.two_way_attention(
                projected.q,
                projected.k,
                projected.v,
                _of_present(self.inverse.values(context.keys), projected.present),
                **_masks(context, shared=True),
                scale=context.scale,
            )
            inverse = ops.hyper_transform(u, self.inverse.queries(projected.queries), transform.weight)
            if self.is_recording("inverse_weights"):
                self.record("inverse_weights", _share(context, projected.q, projected.k))
        if attended is not None:
            self.record("self", attended)
        self.record("inverse", inverse)
        return attended, inverse

    def _inverse(self, context: MixContext) -> Tensor:
        """MISA (B, H, Nq, dv), from the host's scores or from its own."""
        queries, keys = context.projected.queries, context.keys
        q, k = context.projected.q, context.projected.k
        if self.own is not None:
            q, k = self.own.scored(queries, keys)
        q_hat, v_hat = self.inverse.queries(queries), self.inverse.values(keys)
        if self.is_recording("inverse_weights"):
            self.record("inverse_weights", _share(context, q, k))
        if context.dropout:  # a draw of its own
            share = F.dropout(_share(context, q, k), context.dropout)
            return self.inverse.transform.of_map(share, q_hat, v_hat)
        return cast(Tensor, self.inverse.transform(q, k, q_hat, v_hat, **_masks(context), scale=context.scale))

    def _in_turn(self, context: MixContext) -> Tensor:
        """The heads of the second branch, on what the first puts out."""
        inverse_first = self.variant.order == "inverse_then_self"
        first = self._inverse(context) if inverse_first else context.attend()
        self.record("inverse" if inverse_first else "self", first)
        tokens = context.join(first)
        if tokens.shape[-1] != context.projected.queries.shape[-1]:
            raise UsageError(
                f"order={self.variant.order} sends merged heads of width {tokens.shape[-1]} through projections that take "
                f"{context.projected.queries.shape[-1]}; use order=parallel"
            )
        again = context.project_again(tokens)
        second = again.attend() if inverse_first else self._inverse(again)
        self.record("self" if inverse_first else "inverse", second)
        return second

    def _mixed(self, attended: Tensor, inverse: Tensor) -> Tensor:
        """Eq. 3, or it divided by lambda."""
        if self.logit is not None:
            weight = torch.sigmoid(self.logit)
            self.record("lambda", weight)
            if self.variant.identity:
                return attended + torch.exp(-self.logit) * inverse
            return weight * attended + (1 - weight) * inverse
        fixed = self.variant.weight
        if self.is_recording("lambda"):
            self.record("lambda", attended.new_tensor([fixed]))
        if self.variant.identity:
            return torch.add(attended, inverse, alpha=(1 - fixed) / fixed)
        return torch.add((1 - fixed) * inverse, attended, alpha=fixed)

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in vars(self.variant).items())


def _masks(context: MixContext, *, shared: bool = False) -> dict[str, Any]:
    """The host's bias and mask, as the operations take them; tokens that fill up a window take no part.

    Args:
        shared: self-attention goes by them too. There the host's queries see such tokens, so they are hidden as queries
            only, whose own result is thrown away; as keys of the inverse they share out nothing (`_of_present`).
    """
    bias, present = context.bias(), context.projected.present
    if present is not None:
        seen = present[:, None, :, None]
        bias = _hide(bias, seen if shared else seen & present[:, None, None])
    if bias is None or bias.dtype != torch.bool:
        return {"bias": bias, "visible": None}
    batch, heads, queries, _ = context.projected.q.shape
    check_bias(bias, (batch, heads, queries, context.keys.shape[1]))
    if bias.shape[0] not in (1, batch):  # entries that take turns: what an operation calls visible does not
        bias = bias.repeat(batch // bias.shape[0], 1, 1, 1)
    return {"bias": None, "visible": bias}


def _hide(bias: Tensor | None, seen: Tensor) -> Tensor:
    """A bias or mask that hides all but what is `seen` (b, 1, Nq, Nk or 1)."""
    if bias is None:
        return seen
    if bias.shape[0] != seen.shape[0]:  # entries take turns; the least common multiple would fix an open batch size
        turns = math.lcm(bias.shape[0], seen.shape[0])
        bias, seen = (each.repeat(turns // each.shape[0], 1, 1, 1) for each in (bias, seen))
    return bias & seen if bias.dtype == torch.bool else torch.where(seen, bias, float("-inf"))


def _each(present: Tensor, values: Tensor) -> Tensor:
    """(b, N) as (B, 1, N, 1), entries taking turns; by shape, as `len` would fix the batch size of an exported program."""
    return present.repeat(values.shape[0] // present.shape[0], 1)[:, None, :, None]


def _of_present(values: Tensor, present: Tensor | None) -> Tensor:
    """Values (B, H, N, s), zero where a token only fills up a window."""
    if present is None:
        return values
    return values * _each(present, values)


def _share(context: MixContext, q: Tensor, k: Tensor) -> Tensor:
    """L (B, H, Nq, Nk), the softmax over queries."""
    return reference.masked_softmax(reference.scores(q, k, **_masks(context), scale=context.scale), -2)


def _over_tokens(heads: Tensor, present: Tensor | None) -> Tensor:
    """Zero mean and unit variance over the tokens of every sequence and channel of (B, H, N, dv).

    Tokens that fill up a window do not count.
    """
    if present is None:
        normalized = F.layer_norm(heads.transpose(2, 3), heads.shape[2:3], eps=NORM_EPS)
        return normalized.transpose(2, 3)
    counted = _each(present, heads).to(heads.dtype)
    number = counted.sum(2, keepdim=True)
    centred = (heads - (heads * counted).sum(2, keepdim=True) / number) * counted
    return centred * (centred.square().sum(2, keepdim=True) / number + NORM_EPS).rsqrt()
