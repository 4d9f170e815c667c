"""Training steps, loss and decoding of the translation Transformer.

    python bench/translation.py --threads 1 --out benchmarks/translation.json

Sizes are those of the recipe `tiny-translation`: width 192, 2 + 2 layers. A step is forward, cross-entropy with label
smoothing, backward and AdamW; the baseline is a `torch.nn.Transformer` of the same size between the same embeddings, or
the plain host for grafted ones. Decoding runs to the limit, because a new model writes no end token. Before timing, grafted
models must equal their reference backend, the loss its one-hot form, and cached decoding must give the tokens of decoding
without a cache.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from steps import grafted
from torch import Tensor, nn

from attngraft.bench.command import finish, options
from attngraft.bench.result import check_outputs, current_setting, measurement
from attngraft.dispatch import reference_backend
from attngraft.models import create_model
from attngraft.models.beam import beam_search
from attngraft.timing import duration, paired_ratio, several

SIZES: dict[str, Any] = {"vocab_size": 8000, "dim": 192, "depth": 2, "heads": 3, "hidden": 768}
GRAFTS = {"horizontal": 1.10, "vertical": 1.10, "horizontal + vertical": 1.20}
SMOOTHING = 0.1
PAPER_VOCABULARY = 9521
LONGEST = 20  #: tokens of the longest sentence
WRITTEN = 30  #: tokens that are decoded
GREEDY = 25  #: sentences of the comparison with decoding without a cache
BEAM = {"num_beams": 5, "length_penalty": 0.7, "early_stopping": True}

Batch = tuple[Tensor, Tensor, Tensor, Tensor]


class Peer(nn.Module):
    """`torch.nn.Transformer` with the same sizes, embeddings and arguments as the host."""

    def __init__(self, *, vocab_size: int, dim: int, depth: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim)
        self.positions = nn.Buffer(torch.randn(200, dim), persistent=False)
        self.transformer = nn.Transformer(dim, heads, depth, depth, hidden, dropout=0.1, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(dim, vocab_size, bias=False)
        self.head.weight = self.embed.weight
        nn.init.xavier_uniform_(self.embed.weight)

    def embedded(self, ids: Tensor) -> Tensor:
        return self.drop(self.embed(ids) * self.embed.embedding_dim**0.5 + self.positions[: ids.shape[1]])

    def forward(self, source: Tensor, mask: Tensor, target: Tensor) -> Tensor:
        padding = mask == 0
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        given = {"src_key_padding_mask": padding, "memory_key_padding_mask": padding, "tgt_is_causal": True}
        x = self.transformer(self.embedded(source), self.embedded(target), tgt_mask=causal, **given)
        return self.head(x)


def sentences(count: int) -> tuple[Tensor, Tensor]:
    """Return random sources (B, N) of different lengths, and their mask."""
    lengths = torch.randint(LONGEST // 2, LONGEST + 1, (count,))
    lengths[0] = LONGEST
    mask = (torch.arange(LONGEST) < lengths.unsqueeze(1)).long()
    return torch.randint(4, SIZES["vocab_size"], (count, LONGEST)) * mask, mask


def batch_of(tokens: int) -> Batch:
    """Return sources, mask, targets and labels with so many padded tokens on either side."""
    source, mask = sentences(tokens // LONGEST)
    target, shown = sentences(tokens // LONGEST)
    labels = target.roll(-1, dims=1).masked_fill(shown == 0, -100)
    return source, mask, target, labels


def smoothed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy with smoothing over the other V - 1 classes."""
    classes = logits.shape[-1]
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), label_smoothing=SMOOTHING * classes / (classes - 1))


def one_hot_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the same loss written out, as in the code of the paper's host."""
    classes = logits.shape[-1]
    one_hot = torch.zeros_like(logits).scatter(1, labels.clamp(min=0).unsqueeze(1), 1)
    wanted = one_hot * (1 - SMOOTHING) + (1 - one_hot) * SMOOTHING / (classes - 1)
    losses = -(wanted * F.log_softmax(logits, dim=1)).sum(dim=1)
    kept = labels != -100
    return losses.masked_select(kept).sum() / kept.sum()


def training_step(model: nn.Module, batch: Batch) -> Callable[[], object]:
    """Return a function that makes one optimizer step on a fixed batch."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    *inputs, labels = batch

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        smoothed_loss(model(*inputs), labels).backward()
        optimizer.step()

    return step


def with_gradient(loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, labels: Tensor) -> Callable[[], Any]:
    def work() -> tuple[Tensor, Tensor]:
        logits.grad = None
        value = loss(logits, labels)
        value.backward()
        return value.detach(), logits.grad.clone()

    return work


def uncached(model: Any, source: Tensor, mask: Tensor, *, limit: int) -> Tensor:
    """Decode greedily, with all tokens at every step."""

    def step(tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        written = tokens if state is None else torch.cat([state, tokens], dim=1)
        return model.decode(written, memory, mask)[0][:, -1], written

    with torch.no_grad():
        memory = model.encode(source, mask)
    return beam_search(
        step,
        lambda written, rows, _: written[rows],
        None,
        start=source.new_full((len(source), 1), model.start),
        end=-1,  # no sentence leaves the batch, whose memory is fixed
        pad=model.pad,
        max_new_tokens=limit,
    )[0]


def decode_all(model: Any, source: Tensor, mask: Tensor, arguments: argparse.Namespace) -> Callable[[], object]:
    """Return a function that translates all sentences, batch by batch."""

    def work() -> None:
        for each, shown in zip(source.split(arguments.decoded), mask.split(arguments.decoded), strict=True):
            model.generate(each, shown, max_new_tokens=WRITTEN, **BEAM)

    return work


def main() -> int:
    parser = options("Training steps, loss and decoding of the translation Transformer.", pairs=30)
    parser.add_argument("--tokens", type=int, default=1000, help="padded tokens of a batch, on either side")
    parser.add_argument("--sentences", type=int, default=1000, help="sentences to translate with a beam of 5")
    parser.add_argument("--decoded", type=int, default=50, help="sentences of a batch of this translation")
    parser.add_argument("--threads", type=int, default=None, help="CPU threads of torch; torch's own choice by default")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    setting, pairs = current_setting(), arguments.pairs
    torch.manual_seed(0)
    host, batch = create_model("mt_transformer", **SIZES), batch_of(arguments.tokens)
    models = {name: grafted(host, name) for name in GRAFTS}
    with torch.no_grad():
        for name, model in models.items():
            found = model.eval()(*batch[:3])
            with reference_backend():
                check_outputs(found, model(*batch[:3]), what=name, rtol=1e-4, atol=1e-5)
    step = training_step(host, batch)
    peer = paired_ratio(training_step(Peer(**SIZES), batch), step, pairs=pairs)
    costs = several(step, {name: training_step(model, batch) for name, model in models.items()}, pairs=pairs)

    logits = torch.randn(arguments.tokens, PAPER_VOCABULARY, requires_grad=True)
    labels = torch.randint(PAPER_VOCABULARY, (arguments.tokens,)).masked_fill(
        torch.arange(arguments.tokens) % 9 == 0, -100
    )
    written, ours = (with_gradient(loss, logits, labels) for loss in (one_hot_loss, smoothed_loss))
    check_outputs(ours(), written(), what="loss")
    loss = paired_ratio(written, ours, pairs=pairs)

    host.eval().end = -1
    source, mask = sentences(GREEDY)
    check_outputs(
        host.generate(source, mask, max_new_tokens=WRITTEN),
        uncached(host, source, mask, limit=WRITTEN),
        what="decoding",
    )
    greedy = paired_ratio(
        lambda: uncached(host, source, mask, limit=WRITTEN),
        lambda: host.generate(source, mask, max_new_tokens=WRITTEN),
        pairs=pairs,
        warmup=1,
    )
    beam = duration(decode_all(host, *sentences(arguments.sentences), arguments), samples=1, warmup=0)
    result = setting.result(
        "Translation Transformer, width 192, 2 + 2 layers",
        settings={
            **SIZES,
            "tokens": arguments.tokens,
            "decoded": arguments.decoded,
            "longest": LONGEST,
            "written": WRITTEN,
            "pairs": pairs,
        },
        measurements=(
            measurement("training step, over torch.nn.Transformer's", peer, bar=1.0),
            *(measurement(f"training step with {name}", costs[name], bar=bar) for name, bar in GRAFTS.items()),
            measurement("loss, over its one-hot form", loss, bar=0.5),
            measurement(f"greedy decoding of {WRITTEN} tokens, over uncached", greedy, bar=0.25),
            measurement(f"beam of 5, {arguments.sentences} sentences, {WRITTEN} tokens each", beam, bar=40.0),
        ),
    )
    return finish(result, out=arguments.out, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
