"""Time of `generate` of a grafted encoder-decoder of transformers, relative to the plain one's.

    python bench/generation.py --threads 1 --out benchmarks/generation.json

The host is a Marian translator of random weights, with horizontal and vertical attention at all sites; 8 sentences of 16
tokens, 5 beams, 16 new tokens. Sizes: widths 192 and 256 with 2 + 2 layers, and 512 with 6 + 6, all with a vocabulary of
9,521. A larger vocabulary lowers the ratio. Before timing, grafts that start as the identity must give the host's own
translations, and the cache must not change those of the timed grafts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
import transformers
from steps import grafted
from torch import Tensor

import attngraft
from attngraft.bench.command import finish, options
from attngraft.bench.result import check_outputs, current_setting, measurement
from attngraft.timing import paired_ratio

SPEC = "horizontal + vertical"
BAR = 1.15
SIZES: Mapping[str, dict[str, int]] = {
    "192": {"dim": 192, "layers": 2, "heads": 3},
    "256": {"dim": 256, "layers": 2, "heads": 4},
    "512": {"dim": 512, "layers": 6, "heads": 8},
}


def marian(*, dim: int, layers: int, heads: int) -> Any:
    torch.manual_seed(0)
    sides = {"layers": layers, "attention_heads": heads, "ffn_dim": 4 * dim}
    config = transformers.MarianConfig(
        vocab_size=9_521,
        d_model=dim,
        max_position_embeddings=128,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        forced_eos_token_id=None,
        **{f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in sides.items()},
    )
    return transformers.MarianMTModel(config).eval()


def translate(model: Any, ids: Tensor, length: int, **given: Any) -> Callable[[], Tensor]:
    """Return a function that generates `length` tokens for each sentence."""
    lengths = {"min_new_tokens": length, "max_new_tokens": length}

    def work() -> Tensor:
        with torch.no_grad():
            found: Tensor = model.generate(input_ids=ids, num_beams=5, do_sample=False, **lengths, **given)
        return found

    return work


def check(host: Any, model: Any, ids: Tensor, *, what: str) -> None:
    """Check the translations before timing."""
    expected = translate(host, ids, 6)()
    attngraft.graft(host, "horizontal(identity=true) + vertical(identity=true)")
    check_outputs(translate(host, ids, 6)(), expected, what=f"{what}, grafts that start as the identity")
    attngraft.ungraft(host)
    expected = translate(model, ids, 6, use_cache=False)()
    check_outputs(translate(model, ids, 6)(), expected, what=f"{what}, with a cache")


def main() -> int:
    parser = options("`generate` of grafted Marian models, relative to the plain one's.", pairs=30)
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=list(SIZES), help="widths")
    parser.add_argument("--tokens", type=int, default=16, help="new tokens per sentence")
    parser.add_argument("--threads", type=int, default=None, help="CPU threads of torch; torch's own choice by default")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    setting = current_setting()
    transformers.utils.logging.set_verbosity_error()
    lines = []
    for name in arguments.sizes:
        host = marian(**SIZES[name])
        model = grafted(host, SPEC)
        ids = torch.randint(2, 9_000, (8, 16))
        check(host, model, ids[:2], what=name)
        works = [translate(each, ids, arguments.tokens) for each in (host, model)]
        ratio = paired_ratio(*works, pairs=arguments.pairs, warmup=1)
        lines.append(measurement(f"{SPEC}, width {name}", ratio, bar=BAR))
    result = setting.result(
        "generate of Marian with 5 beams, grafted over plain",
        settings={"sizes": arguments.sizes, "tokens": arguments.tokens, "pairs": arguments.pairs},
        measurements=tuple(lines),
    )
    return finish(result, out=arguments.out, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
