"""Batched greedy decoding and beam search, for any model that decodes one token at a time."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

State = TypeVar("State")


@torch.no_grad()
def beam_search(
    step: Callable[[Tensor, State], tuple[Tensor, State]],
    reorder: Callable[[State, Tensor, Tensor], State],
    state: State,
    *,
    start: Tensor,
    end: int,
    pad: int,
    max_new_tokens: int,
    num_beams: int = 1,
    length_penalty: float = 1.0,
    early_stopping: bool = False,
) -> tuple[Tensor, Tensor]:
    """Return the best sequence of each sentence, and its score.

    The score of a sequence of n new tokens, the end token included, is the sum of their log-probabilities divided by
    n^length_penalty. A sequence with the end token is complete: it is put aside with its score and never extended. A
    sequence is complete too at `max_new_tokens`. The result of a sentence does not depend on the others, which leave the
    batch when they are done.

    Args:
        step: function (tokens (n * num_beams, N), state) -> (logits of the next token (n * num_beams, V), new state).
            N is 1, except in the first call, whose tokens are `start`. Rows of a sentence are adjacent.
        reorder: function (state, rows, sentences) -> state, which selects rows (m * num_beams) of what depends on the
            tokens, and sentences (m) of what depends on the source alone.
        start: first tokens (B, N) of each sentence, usually only the start token.
        num_beams: number of sequences that are continued; 1 is greedy decoding.
        early_stopping: whether a sentence is done with its first `num_beams` complete sequences, as in transformers.
            Otherwise it is done when no sequence can exceed the best one.

    Returns:
        Tokens (B, L), beginning with `start` and padded after the end token, and scores (B,).
    """
    count, device = start.shape[0], start.device
    early_stopping = early_stopping or num_beams == 1
    tokens = start.repeat_interleave(num_beams, dim=0)
    live = start.new_full((count, num_beams, max_new_tokens), pad)
    totals = torch.full((count, num_beams), float("-inf"), device=device)
    totals[:, 0] = 0.0  # the sequences are equal at first: continue only one of them
    best, best_scores = live[:, 0].clone(), totals.new_full((count,), float("-inf"))
    completed = torch.zeros(count, dtype=torch.long, device=device)
    found, scores = best.clone(), best_scores.clone()
    sentences = torch.arange(count, device=device)
    for length in range(1, max_new_tokens + 1):
        logits, state = step(tokens, state)
        extended = logits.float().log_softmax(dim=-1).unflatten(0, (-1, num_beams)) + totals.unsqueeze(-1)
        vocabulary = extended.shape[-1]
        totals, chosen = extended.flatten(1).topk(min(2 * num_beams, num_beams * vocabulary))
        parents, token = chosen // vocabulary, chosen % vocabulary
        live = live.gather(1, parents.unsqueeze(-1).expand(-1, -1, max_new_tokens))
        live[:, :, length - 1] = token

        ended = token == end
        complete = ended | (length == max_new_tokens)
        complete[:, num_beams:] = False
        final, which = totals.div(length**length_penalty).masked_fill(~complete, float("-inf")).max(dim=1)
        better = final > best_scores
        best_scores = torch.where(better, final, best_scores)
        best = torch.where(better.unsqueeze(-1), live[torch.arange(len(live), device=device), which], best)
        completed += (complete & (totals > float("-inf"))).sum(dim=1)

        totals, order = totals.masked_fill(ended, float("-inf")).topk(num_beams)
        live = live.gather(1, order.unsqueeze(-1).expand(-1, -1, max_new_tokens))
        if early_stopping:
            done = completed >= num_beams
        else:  # totals only decrease, so this is the highest score that a longer sequence can have
            longest = max_new_tokens if length_penalty > 0 else length + 1
            done = best_scores >= totals[:, 0] / longest**length_penalty
        found[sentences], scores[sentences] = best, best_scores
        if length == max_new_tokens or bool(done.all()):
            break
        tokens = live[:, :, length - 1]
        parents = parents.gather(1, order) + torch.arange(len(live), device=device).unsqueeze(1) * num_beams
        left = (~done).nonzero().squeeze(1)
        if num_beams > 1 or len(left) < len(live):
            state = reorder(state, parents[left].flatten(), left)
            live, totals, tokens, completed = live[left], totals[left], tokens[left], completed[left]
            best, best_scores, sentences = best[left], best_scores[left], sentences[left]
        tokens = tokens.reshape(-1, 1)
    return torch.cat([start, found[:, : _longest(found, end)]], dim=1), scores


def _longest(tokens: Tensor, end: int) -> int:
    """Return the largest number of tokens (B, L) up to the end token, or all."""
    before = (tokens == end).cumsum(dim=1).sub((tokens == end).long()) == 0
    return int(before.sum(dim=1).max()) if len(tokens) else 0
