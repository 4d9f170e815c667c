"""Cost of recording: a recorded forward pass relative to the plain one, and the memory of reduced maps.

    python bench/recording.py --threads 2 --pairs 40 --out benchmarks/recording.json

The model is ViT-S at 224 with fused attention, without gradients. Upper limits of the ratios of times: 1.8 if the attention
maps of all blocks are stored, batch 8; 2.0 for entropy and distance of all blocks, batches of 25 (40 pairs cover 1,000
images); 1.03 for a model after recording, relative to one that was never recorded. Upper limit of memory (weights of the
model plus the peak of a pass) of ViT-B at 384 with entropy and distance of all blocks, relative to a plain pass, each in a
separate process: 1.5. Before timing, outputs under recording must be unchanged, bit
for bit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import timm
import torch
from torch import Tensor, nn

import attngraft
from attngraft.bench.command import finish, options
from attngraft.bench.result import Measurement, check_outputs, current_setting, measured_once, measurement
from attngraft.timing import paired_ratio
from attngraft.timing.memory import growth, in_fresh_process

SMALL, BASE = "vit_small_patch16_224", "vit_base_patch16_384"
KEPT, REDUCED, AFTERWARDS, MEMORY = 1.8, 2.0, 1.03, 1.5
LARGE_BATCH, LARGE_PASSES = 8, 2  #: for the measurement of memory

Work = Callable[[], Tensor]


def plain(model: nn.Module, images: Tensor) -> Work:
    def work() -> Tensor:
        with torch.no_grad():
            found: Tensor = model(images)
        return found

    return work


def recorded(model: nn.Module, images: Tensor, *reductions: str) -> Work:
    """Return a function that runs a pass with recording of all weights, stored or reduced."""

    def work() -> Tensor:
        with torch.no_grad(), attngraft.record(model, "weights") as recording:
            if reductions:
                recording.reduce(*reductions)
            found: Tensor = model(images)
        if len(recording) != len(model.blocks):  # type: ignore[arg-type]
            raise SystemExit("a block was not recorded")
        return found

    return work


def memory_line(threads: int, model: str) -> Measurement:
    reduced, without = (
        in_fresh_process(__file__, kind, "--large", model, threads=threads) for kind in ("reduced", "plain")
    )
    name = f"{model}, entropy and distance: memory over plain inference's"
    return measured_once(name, reduced / without, bar=MEMORY)


def bytes_here(kind: str, name: str) -> int:
    """Return the bytes of the model's weights plus the peak of a pass over several batches."""
    model = timm.create_model(name).eval()
    side = model.patch_embed.img_size[0]

    def work() -> None:
        for _ in range(LARGE_PASSES):
            images = torch.randn(LARGE_BATCH, 3, side, side)
            model(images)

    def reduced() -> None:
        with attngraft.record(model, "weights") as recording:
            recording.reduce("entropy", "distance")
            work()

    with torch.no_grad():
        model(torch.randn(1, 3, side, side))  # excludes what libraries allocate at their first call
        used, _ = growth(reduced if kind == "reduced" else work)
    if used is None:
        raise SystemExit("this system does not report the memory of a process")
    return used + sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


def main() -> int:
    parser = options("Time and memory of a recorded forward pass, relative to a plain one.", pairs=40)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--large-batch", type=int, default=25, help="batch size of passes with reduced maps")
    parser.add_argument("--large", default=BASE, help="model for the measurement of memory")
    parser.add_argument("--threads", type=int, default=None, help="CPU threads of torch; torch's own choice by default")
    parser.add_argument("--bytes-here", default=None, help="measure memory in this process and print it")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.bytes_here:
        print(bytes_here(arguments.bytes_here, arguments.large))
        return 0
    setting = current_setting()
    torch.manual_seed(0)
    few, many = (torch.randn(batch, 3, 224, 224) for batch in (arguments.batch, arguments.large_batch))
    lines = [memory_line(torch.get_num_threads(), arguments.large)]
    never, model = timm.create_model(SMALL).eval(), timm.create_model(SMALL).eval()
    check_outputs([recorded(model, few)()], [plain(model, few)()], what="a recorded pass", rtol=0, atol=0)
    pairs = arguments.pairs
    after = paired_ratio(plain(never, few), plain(model, few), pairs=pairs)
    kept = paired_ratio(plain(model, few), recorded(model, few), pairs=pairs)
    reduced = paired_ratio(plain(model, many), recorded(model, many, "entropy", "distance"), pairs=pairs)
    lines += [
        measurement(f"{SMALL}, weights of all blocks kept, batch {len(few)}", kept, bar=KEPT),
        measurement(f"{SMALL}, entropy and distance of all blocks, batch {len(many)}", reduced, bar=REDUCED),
        measurement(f"{SMALL}, recorded once before, over never", after, bar=AFTERWARDS),
    ]
    result = setting.result(
        "Recording, over a plain forward pass",
        settings={"batch": len(few), "large_batch": len(many), "pairs": pairs},
        measurements=lines,
    )
    return finish(result, out=arguments.out, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
