"""The variants of bi-directional attention, and the module that combines both branches."""

import math
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attngraft.attention import Recordable
from attngraft.attention.geometry import Projection
from attngraft.attention.mixing import MixContext, Mixed
from attngraft.errors import UsageError
from attngraft.mechanisms.bisa import ops, reference
from attngraft.mechanisms.bisa.branch import LINEAR, HyperTransform, InverseBranch, SeparateProjections
from attngraft.mechanisms.common import InitRule

NORM_EPS = 1e-5
Transform = Literal["hyper", "mlp"]
Order = Literal["parallel", "inverse_then_self", "self_then_inverse"]


@dataclass(frozen=True)
class MixVariant:
    """Variant of the two branches and their combination; the default is the paper's.

    Raises:
        ValueError: lambda is outside 0 to 1, a name is unknown, or options are mutually exclusive.
    """

    weight: float = 0.5  #: lambda, the share of self-attention; 0 is MISA
    learned: bool = False  #: learn one lambda per layer, initialized to `weight`
    norm: bool = False  #: normalize each branch over the tokens, channel by channel, before mixing
    #: transform of a query by a value: hypernetwork, or MLP of equal size (the ablation)
    transform: Transform = "hyper"
    order: Order = "parallel"  #: apply both branches to the same tokens, or the second to the output of the first
    separate: bool = False  #: give the inverse branch separate queries, keys and output projection
    #: divide by lambda, and start with zero output of the inverse branch, so the host is unchanged at first
    identity: bool = False

    def __post_init__(self) -> None:
        for name, choices in (("transform", get_args(Transform)), ("order", get_args(Order))):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)!r}")
        if not 0 <= self.weight <= 1:
            raise ValueError(f"weight (lambda) must be between 0 (the inverse branch alone) and 1, not {self.weight}")
        if self.learned and self.weight in (0, 1):
            raise ValueError(
                f"a learned lambda is a sigmoid, which cannot start at weight={self.weight:g}; choose a weight strictly "
                "between 0 and 1"
            )
        if self.identity and self.weight == 0:
            raise ValueError("identity requires self-attention, which weight=0 omits; choose a larger weight")
        if self.identity and self.norm:
            raise ValueError(
                "identity and norm are mutually exclusive: normalized heads differ from the host's; omit one of them"
            )
        if self.separate and self.weight == 0:
            raise ValueError(
                "separate with weight=0 leaves nothing of the host's attention in use; choose a larger weight"
            )
        if self.order != "parallel":
            mixing = [name for name in ("learned", "norm", "separate", "identity") if getattr(self, name)]
            if self.weight != 0.5:
                mixing.append("weight")
            if mixing:
                raise ValueError(
                    f"{mixing[0]} sets how the branches are mixed, but order={self.order} does not mix them; "
                    "use order=parallel"
                )

    @property
    def attends(self) -> bool:
        """Whether self-attention is used."""
        return self.weight > 0


PAPER = MixVariant()


class BidirectionalMix(Recordable, nn.Module):
    """Both branches mixed, lambda SA + (1 - lambda) MISA (Eq. 3), from one score matrix.

    | variant | output |
    |---|---|
    | `norm` | lambda n(SA) + (1 - lambda) n(MISA), n over a sequence's tokens, by channel (no affine, eps 1e-5) |
    | `learned` | lambda = sigmoid(logit) |
    | `order` | one branch on the merged heads of the other, under the same projections; no residual, no mixing |
    | `separate` | MISA from its own scores, through its own output projection; mixed after the projections |
    | `identity` | SA + ((1 - lambda) / lambda) MISA, Eq. 3 divided by lambda; the inverse branch starts at 0 |

    With `identity` the inverse branch starts at 0 because its transform is zero. With `separate` on a host with batch norms,
    the weight of the norm after the branch's output projection starts at 0 instead, and the transform is
    initialized as usual, because a norm after an all-zero branch would divide by a variance of 0.

    With a sequential `order` on a host with batch norms, a projection's norm is applied to the host's tokens and to the
    first branch's result in the same step. In training, both are normalized by separate statistics; the running statistics,
    used in evaluation, average over both.

    Records `self` and `inverse` (B, H, Nq, dv), the branches before mixing, `inverse_weights` (B, H, Nq, Nk), whose
    columns sum to 1, and `lambda`.

    Args:
        dim: C.
        num_heads: H.
        key_dim: dk.
        value_dim: dv.
        hyper_dim: s, width of q_hat and v_hat per head; dv by default, as in all of the paper's models.
        out_dim: width of the tokens after the output projection; C by default.
        mlp_hidden: units of the MLP transform, see `MlpTransform`.
        projection, init: the host's kind of projection and initialization.
        factory: device and dtype.
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
        variant: MixVariant = PAPER,
        projection: Projection = LINEAR,
        init: InitRule = "trunc_normal",
        **factory: Any,
    ) -> None:
        super().__init__()
        self.variant = variant
        options: dict[str, Any] = {"value_dim": value_dim, "projection": projection, "init": init, **factory}
        # after a zero branch, the norm would divide by a variance of 0, and the first update could have any size
        zero_by_norm = variant.identity and variant.separate and projection.norm is not None
        self.inverse = InverseBranch(
            dim,
            num_heads,
            hyper_dim=value_dim if hyper_dim is None else hyper_dim,
            transform=variant.transform,
            mlp_hidden=mlp_hidden,
            zero=variant.identity and not zero_by_norm,
            **options,
        )
        self.own: SeparateProjections | None = None
        if variant.separate:
            out = dim if out_dim is None else out_dim
            self.own = SeparateProjections(dim, num_heads, key_dim=key_dim, out_dim=out, zero=zero_by_norm, **options)
        self.logit: nn.Parameter | None = None
        if variant.learned:
            start = math.log(variant.weight / (1 - variant.weight))
            self.logit = nn.Parameter(torch.full((1,), start, **factory))

    def forward(self, context: MixContext) -> Mixed:
        """Compute the heads of an attention from its projections.

        Raises:
            UsageError: the mask is causal.
        """
        if context.projected.causal:
            raise UsageError(
                "the softmax over queries depends on later tokens, so bi-directional attention cannot be causal; "
                "call without is_causal"
            )
        if self.variant.order != "parallel":
            return Mixed(self._one_after_the_other(context))
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
        """Return SA (None if not used) and MISA, (B, H, Nq, dv) each."""
        attended: Tensor | None
        transform, projected = self.inverse.transform, context.projected
        if not (self.variant.attends and context.plain and self.own is None and isinstance(transform, HyperTransform)):
            attended = context.attend() if self.variant.attends else None
            inverse = self._inverse(context)
        else:
            if context.is_recording:
                context.attend()  # only to record tensors; the heads below are computed from the shared scores
            attended, u = ops.two_way_attention(
                projected.q,
                projected.k,
                projected.v,
                _without_padding(self.inverse.values(context.keys), projected.present),
                **_masks(context, shared=True),
                scale=context.scale,
            )
            inverse = ops.hyper_transform(u, self.inverse.queries(projected.queries), transform.weight)
            if self.is_recording("inverse_weights"):
                self.record("inverse_weights", _inverse_weights(context, projected.q, projected.k))
        if attended is not None:
            self.record("self", attended)
        self.record("inverse", inverse)
        return attended, inverse

    def _inverse(self, context: MixContext) -> Tensor:
        """Return MISA (B, H, Nq, dv), from the host's scores or, with `separate`, from scores of the branch."""
        queries, keys = context.projected.queries, context.keys
        q, k = context.projected.q, context.projected.k
        if self.own is not None:
            q, k = self.own.queries_and_keys(queries, keys)
        q_hat, v_hat = self.inverse.queries(queries), self.inverse.values(keys)
        if self.is_recording("inverse_weights"):
            self.record("inverse_weights", _inverse_weights(context, q, k))
        if context.dropout:  # independent of the dropout of self-attention
            share = F.dropout(_inverse_weights(context, q, k), context.dropout)
            return self.inverse.transform.of_map(share, q_hat, v_hat)
        return self.inverse.transform(q, k, q_hat, v_hat, **_masks(context), scale=context.scale)

    def _one_after_the_other(self, context: MixContext) -> Tensor:
        """Return the heads of the second branch, applied to the output of the first."""
        inverse_first = self.variant.order == "inverse_then_self"
        first = self._inverse(context) if inverse_first else context.attend()
        self.record("inverse" if inverse_first else "self", first)
        again = context.project_again(context.join(first))
        second = again.attend() if inverse_first else self._inverse(again)
        self.record("self" if inverse_first else "inverse", second)
        return second

    def _mixed(self, attended: Tensor, inverse: Tensor) -> Tensor:
        """Mix both branches by Eq. 3, or by Eq. 3 divided by lambda."""
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
    """Return the host's bias and mask in the format of the operations, with the padding of windows masked.

    Args:
        shared: whether the result is also used for self-attention. The host's queries attend to padding tokens, so these are
            then masked as queries only. The inverse branch ignores them as keys, because their values are 0
            (`_without_padding`).
    """
    bias, present = context.bias(), context.projected.present
    if present is not None:
        seen = present[:, None, :, None]
        bias = _hide_queries(bias, seen) if shared else _hide(bias, seen & present[:, None, None])
    if bias is None or bias.dtype != torch.bool:
        return {"bias": bias, "visible": None}
    batch, heads, queries, _ = context.projected.q.shape
    ops.check_bias(bias, (batch, heads, queries, context.keys.shape[1]))
    if bias.shape[0] not in (1, batch):  # entry i mod b applies to image i, which `visible` does not support
        bias = bias.repeat(batch // bias.shape[0], 1, 1, 1)
    return {"bias": None, "visible": bias}


def _hide(bias: Tensor | None, seen: Tensor) -> Tensor:
    """Return a bias or mask that hides everything but `seen` (b, 1, Nq, Nk or 1)."""
    if bias is None:
        return seen
    bias, seen = _as_often(bias, seen)
    return bias & seen if bias.dtype == torch.bool else torch.where(seen, bias, float("-inf"))


def _hide_queries(bias: Tensor | None, seen: Tensor) -> Tensor:
    """Return a bias or mask that hides all queries but `seen` (b, 1, Nq, 1) from the softmax over queries.

    A bias stays finite where it is, so a query whose keys are all masked by the dtype's minimum attends to all of them.
    """
    if bias is None or bias.dtype == torch.bool:
        return _hide(bias, seen)
    bias, seen = _as_often(bias, seen)
    return torch.where(seen, bias, bias.clamp_max(torch.finfo(bias.dtype).min / 2))


def _as_often(bias: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Repeat a bias and a mask (b, ...) to a common b; both are repeated over the batch."""
    if bias.shape[0] == seen.shape[0]:
        return bias, seen
    turns = math.lcm(bias.shape[0], seen.shape[0])
    return bias.repeat(turns // bias.shape[0], 1, 1, 1), seen.repeat(turns // seen.shape[0], 1, 1, 1)


def _present_tokens(present: Tensor, values: Tensor) -> Tensor:
    """Return (b, N), repeated over the batch, as (B, 1, N, 1); `len` would fix the batch size of an exported program."""
    return present.repeat(values.shape[0] // present.shape[0], 1)[:, None, :, None]


def _without_padding(values: Tensor, present: Tensor | None) -> Tensor:
    """Return values (B, H, N, s), with zeros for tokens that pad a window."""
    return values if present is None else values * _present_tokens(present, values)


def _inverse_weights(context: MixContext, q: Tensor, k: Tensor) -> Tensor:
    """Return L (B, H, Nq, Nk), the softmax over queries."""
    return reference.masked_softmax(reference.scores(q, k, **_masks(context), scale=context.scale), -2)


def _over_tokens(heads: Tensor, present: Tensor | None) -> Tensor:
    """Normalize to zero mean and unit variance over the tokens of every sequence and channel of (B, H, N, dv).

    Tokens that pad a window are excluded.
    """
    if present is None:
        normalized = F.layer_norm(heads.transpose(2, 3), heads.shape[2:3], eps=NORM_EPS)
        return normalized.transpose(2, 3)
    wide = heads.to(
        torch.promote_types(heads.dtype, torch.float32)
    )  # as in layer_norm; gradients can exceed the range of float16
    counted = _present_tokens(present, heads).to(wide.dtype)
    number = counted.sum(2, keepdim=True).clamp_min(1)
    centred = (wide - (wide * counted).sum(2, keepdim=True) / number) * counted
    return (centred * (centred.square().sum(2, keepdim=True) / number + NORM_EPS).rsqrt()).to(heads.dtype)
