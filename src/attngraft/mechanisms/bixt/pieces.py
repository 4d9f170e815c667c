"""Both directions in pieces of tokens: the contribution of one piece, forward and backward.

A piece contains all M latents, so the softmax over latents is complete within it. The softmax over tokens is accumulated:
running maxima, sums of exponentials and sums of values. The scores of P tokens are (H, P, M), with latents last so that both
softmaxes have contiguous rows. All pieces share buffers that fit the cache.
"""

from typing import Any

import torch
from torch import Tensor

from attngraft.mechanisms.running_softmax import RunningSoftmax, add_product

#: number of scores in a piece: on the CPU, as many as fit the cache; on other devices this only limits the memory
NUMBERS = 2**18
NUMBERS_OFF_CPU = 2**26
#: number of tokens below which products with a piece are slower per token
FEWEST_TOKENS = 64


def pieces(tokens: int, scores: int, device: torch.device) -> list[slice]:
    """Return slices that split the tokens into pieces of equal size, except the last, for `scores` scores per token."""
    most = NUMBERS if device.type == "cpu" else NUMBERS_OFF_CPU
    step = min(tokens, max(most // scores, FEWEST_TOKENS))
    return [slice(start, min(start + step, tokens)) for start in range(0, tokens, step)]


class Buffers:
    """Memory for `count` tiles, the largest of shape `most`."""

    def __init__(self, count: int, most: tuple[int, ...], like: Tensor) -> None:
        self._flat = like.new_empty(count, torch.Size(most).numel())

    def tiles(self, *shape: int) -> tuple[Tensor, ...]:
        """Return all tiles in this shape, no larger than `most`; contents are overwritten."""
        return tuple(flat[: torch.Size(shape).numel()].view(shape) for flat in self._flat)


class Forward:
    """Forward of both directions, in pieces of tokens.

    The scores are n matrices with L = heads * M columns, the latents of all heads that share tokens. With one matrix per
    head, n = H and heads = 1; if all heads share the tokens, n = 1 and heads = H.

    Args:
        r_latents: scale times the references (n, L, d).
        v_latents: (n, L, dl).
        buffers: two tiles.
        heads: number of heads that share tokens.
        shift: added to the scores of all tokens (n, 1, L).
    """

    def __init__(
        self, r_latents: Tensor, v_latents: Tensor, buffers: Buffers, *, heads: int = 1, shift: Tensor | None = None
    ) -> None:
        self._r, self._v, self._buffers = r_latents, v_latents, buffers
        self._heads, self._shift = heads, shift
        self._latents = RunningSoftmax()

    def step(self, r_tokens: Tensor, v_tokens: Tensor, *, out: Tensor) -> None:
        """Add references (n, P, d) and values (n, P, dt) of a piece; write its tokens' results (n, P, dl) to `out`."""
        scores, weights = self._buffers.tiles(*r_tokens.shape[:2], self._r.shape[1])
        _similarity(r_tokens, self._r, self._shift, scores)
        self._latents.add(scores.mT, v_tokens, buffer=weights.mT)
        by_head = scores.unflatten(-1, (self._heads, -1))
        torch.softmax(by_head, -1, out=by_head)
        torch.bmm(scores, self._v, out=out)

    def latents(self) -> tuple[Tensor, Tensor]:
        """Return the latents (n, L, dt) and log sum over tokens of exp(A) (n, L), after the last piece."""
        return self._latents.output(), self._latents.log_sums().squeeze(-1)


class Backward:
    """Backward of both directions, in pieces of tokens, from recomputed scores.

    Args:
        r_latents, v_latents, heads, shift: as for `Forward`.
        to_latents: gradient of the latents (n, L, dt).
        latents, log_sums: as returned by `Forward.latents`.
        buffers: three tiles.

    Attributes:
        to_r, to_v, to_shift: gradients of the latents' operands, complete after the last piece.
    """

    def __init__(
        self,
        r_latents: Tensor,
        v_latents: Tensor,
        *,
        to_latents: Tensor,
        latents: Tensor,
        log_sums: Tensor,
        buffers: Buffers,
        heads: int = 1,
        shift: Tensor | None = None,
    ) -> None:
        self._r, self._v, self._buffers = r_latents, v_latents, buffers
        self._heads, self._shift = heads, shift
        self._to_latents, self._log_sums = to_latents, log_sums.unsqueeze(-2)
        self._mean = (to_latents * latents).sum(-1).unsqueeze(-2)
        self.to_r, self.to_v = torch.zeros_like(r_latents), torch.zeros_like(v_latents)
        self.to_shift: Any = None if shift is None else torch.zeros_like(shift)

    def step(self, r_tokens: Tensor, v_tokens: Tensor, to_tokens: Tensor, *, to_r: Tensor, to_v: Tensor) -> None:
        """Write the gradients of a piece's references and values, from the gradient (n, P, dl) of its tokens' results.

        If `to_r` and `to_v` are the same tensor, it receives the sum of both.
        """
        scores, weights, third = self._buffers.tiles(*r_tokens.shape[:2], self._r.shape[1])
        _similarity(r_tokens, self._r, self._shift, scores)
        torch.sub(scores, self._log_sums, out=weights).exp_()
        torch.bmm(weights, self._to_latents, out=to_v)
        to_scores = torch.bmm(v_tokens, self._to_latents.mT, out=third).sub_(self._mean).mul_(weights)
        by_head = scores.unflatten(-1, (self._heads, -1))
        torch.softmax(by_head, -1, out=by_head)
        add_product(self.to_v, scores.mT, to_tokens)
        torch.bmm(to_tokens, self._v.mT, out=weights)
        # through the softmax over latents, in place of the gradient of its output
        gradient = weights.unflatten(-1, (self._heads, -1))
        torch.ops.aten._softmax_backward_data.out(gradient, by_head, -1, by_head.dtype, grad_input=gradient)
        to_scores.add_(gradient.view(to_scores.shape))
        add_product(self.to_r, to_scores.mT, r_tokens)
        if self.to_shift is not None:
            self.to_shift.add_(to_scores.sum(-2, keepdim=True))
        if to_r is to_v:
            add_product(to_r, to_scores, self._r)
        else:
            torch.bmm(to_scores, self._r, out=to_r)


def _similarity(r_tokens: Tensor, r_latents: Tensor, shift: Tensor | None, out: Tensor) -> None:
    """Write the scores (n, P, L) to `out`."""
    if shift is None:
        torch.bmm(r_tokens, r_latents.mT, out=out)
    else:
        torch.baddbmm(shift, r_tokens, r_latents.mT, out=out)
