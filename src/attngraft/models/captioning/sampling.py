"""Several captions of each image, for training by rewards."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

State = TypeVar("State")


@torch.no_grad()
def sample(
    step: Callable[[Tensor, State], tuple[Tensor, State]],
    reorder: Callable[[State, Tensor], State],
    state: State,
    *,
    start: Tensor,
    end: int,
    pad: int,
    max_new_tokens: int,
    count: int,
    draws: Tensor | None = None,
) -> Tensor:
    """Return tokens (B, K, L) of K captions of each image, without the start token, padded after the end token.

    Without `draws`, they are the beams of a beam search that keeps complete captions among its K beams, as in the
    meshed-memory transformer. With them, each token is drawn from its probabilities.

    Args:
        step: function (tokens (B K, 1), state) -> (logits (B K, V), new state); rows of an image are adjacent.
        reorder: function (state, rows (B K)) -> state with these rows.
        start: start token of each image (B,).
        count: K.
        draws: uniform random numbers in (0, 1], (B, K, max_new_tokens); a token is the first whose cumulative probability
            reaches its number, so the captions of an image depend neither on the device nor on the batch.
    """
    images, device = len(start), start.device
    tokens = start.repeat_interleave(count)[:, None]
    written = start.new_empty(images, count, 0)
    done = torch.zeros(images, count, dtype=torch.bool, device=device)
    totals = torch.full((images, count), float("-inf"), device=device)
    totals[:, 0] = 0.0  # beams are equal at first: continue only one of them
    for place in range(max_new_tokens):
        logits, state = step(tokens, state)
        scores = logits.float().log_softmax(dim=-1).unflatten(0, (images, count))
        only_pad = torch.full_like(scores[:1, :1], float("-inf"))
        only_pad[..., pad] = 0.0
        scores = torch.where(done.unsqueeze(-1), only_pad, scores)
        if draws is not None:
            reached = scores.exp().cumsum(dim=-1)
            token = (reached < draws[..., place, None] * reached[..., -1:]).sum(dim=-1)
        else:
            vocabulary = scores.shape[-1]
            totals, chosen = (totals.unsqueeze(-1) + scores).flatten(1).topk(count)
            parents, token = chosen // vocabulary, chosen % vocabulary
            state = reorder(state, (parents + count * torch.arange(images, device=device)[:, None]).flatten())
            written = written.gather(1, parents.unsqueeze(-1).expand(-1, -1, written.shape[-1]))
            done = done.gather(1, parents)
        written = torch.cat([written, token.unsqueeze(-1)], dim=-1)
        done = done | (token == end)
        if bool(done.all()):
            break
        tokens = token.reshape(-1, 1)
    return written
