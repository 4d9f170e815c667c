"""Both directions while the tokens of an image come piece by piece: what one piece adds, forward and backward.

A piece sees all M latents. So the softmax over latents is complete in it, and the one over tokens is gathered: running
maxima, sums of exponentials and sums of values. The scores of P tokens are (H, P, M), latents last, so that both
softmaxes have contiguous rows. They live in buffers that stay in the cache and serve every piece.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

#: numbers in the scores of a piece; on other devices than the CPU there is no cache to stay in, but a limit to memory
NUMBERS = 2**18
ELSEWHERE = 2**26
#: tokens below which products with a piece are no longer at full speed
FEWEST_TOKENS = 64


def pieces(tokens: int, scores: int, device: torch.device) -> list[slice]:
    """The pieces of so many tokens, all but the last of the same size, where one token has so many scores."""
    most = NUMBERS if device.type == "cpu" else ELSEWHERE
    step = min(tokens, max(most // scores, FEWEST_TOKENS))
    return [slice(start, min(start + step, tokens)) for start in range(0, tokens, step)]


class Buffers:
    """Room for so many tiles, the largest of shape `most`."""

    def __init__(self, count: int, most: tuple[int, ...], like: Tensor) -> None:
        self._flat = like.new_empty(count, torch.Size(most).numel())

    def tiles(self, *shape: int) -> tuple[Tensor, ...]:
        """All of them in this shape, no larger than `most`; what was in them is lost."""
        return tuple(flat[: torch.Size(shape).numel()].view(shape) for flat in self._flat)


class Forward:
    """What the latents of an image gather from tokens that come piece by piece.

    Args:
        r_latents: scale times the references (H, M, d). v_latents: (H, M, dl).
        buffers: two tiles.
    """

    def __init__(self, r_latents: Tensor, v_latents: Tensor, buffers: Buffers) -> None:
        self._r, self._v, self._buffers = r_latents, v_latents, buffers
        self._largest: Any = None  # (H, 1, M) of the scores so far
        self._sums: Any = None  # of exp(A - largest), (H, 1, M)
        self._gathered: Any = None  # of exp(A - largest) times the values, (H, M, dt)

    def step(self, r_tokens: Tensor, v_tokens: Tensor, *, out: Tensor | None = None) -> Tensor:
        """Take in references (H, P, d) and values (H, P, dt) of some tokens; returns what these get (H, P, dl)."""
        scores, weights = self._buffers.tiles(*r_tokens.shape[:2], self._r.shape[1])
        torch.bmm(r_tokens, self._r.mT, out=scores)
        largest, before = scores.amax(-2, keepdim=True), self._largest
        self._largest = largest if before is None else torch.maximum(largest, before)
        torch.sub(scores, self._largest, out=weights).exp_()
        sums = weights.sum(-2, keepdim=True)
        if before is None:
            self._sums, self._gathered = sums, torch.bmm(weights.mT, v_tokens)
        else:
            shrunk = before.sub_(self._largest).exp_()
            self._sums.mul_(shrunk).add_(sums)
            _gather(self._gathered.mul_(shrunk.mT), weights.mT, v_tokens)
        return torch.bmm(torch.softmax(scores, -1, out=scores), self._v, out=out)

    def latents(self) -> tuple[Tensor, Tensor]:
        """What the latents get (H, M, dt), and log sum over tokens of exp(A) (H, M); after the last piece."""
        return self._gathered.div_(self._sums.mT), self._sums.log_().add_(self._largest).squeeze(-2)


class Backward:
    """Gradients, from scores made once more.

    Args:
        r_latents, v_latents: as of `Forward`.
        to_latents: gradient (H, M, dt). latents, log_sums: what `Forward.latents` returned.
        buffers: three tiles.
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
    ) -> None:
        self._r, self._v, self._buffers = r_latents, v_latents, buffers
        self._to_latents, self._log_sums = to_latents, log_sums.unsqueeze(-2)
        self._shift = (to_latents * latents).sum(-1).unsqueeze(-2)
        self.to_r, self.to_v = (
            torch.zeros_like(r_latents),
            torch.zeros_like(v_latents),
        )  #: complete after the last piece

    def step(
        self,
        r_tokens: Tensor,
        v_tokens: Tensor,
        to_tokens: Tensor,
        *,
        out: tuple[Tensor | None, Tensor | None] = (None, None),
    ) -> tuple[Tensor, Tensor]:
        """From the gradient (H, P, dl) of what the tokens of a piece got, those of their references and values."""
        scores, weights, third = self._buffers.tiles(*r_tokens.shape[:2], self._r.shape[1])
        torch.bmm(r_tokens, self._r.mT, out=scores)
        torch.sub(scores, self._log_sums, out=weights).exp_()
        to_v = torch.bmm(weights, self._to_latents, out=out[1])
        to_scores = torch.bmm(v_tokens, self._to_latents.mT, out=third).sub_(self._shift).mul_(weights)
        torch.softmax(scores, -1, out=scores)
        _gather(self.to_v, scores.mT, to_tokens)
        to_scores.add_(through_softmax(torch.bmm(to_tokens, self._v.mT, out=weights), scores))
        _gather(self.to_r, to_scores.mT, r_tokens)
        return torch.bmm(to_scores, self._r, out=out[0]), to_v


def through_softmax(gradient: Tensor, weights: Tensor) -> Tensor:
    """The gradient of a softmax's input along the last axis, in place of that of its output `weights`."""
    return cast(
        Tensor,
        torch.ops.aten._softmax_backward_data.out(gradient, weights, -1, weights.dtype, grad_input=gradient),
    )


def _gather(so_far: Tensor, left: Tensor, right: Tensor) -> None:
    torch.baddbmm(so_far, left, right, out=so_far)
