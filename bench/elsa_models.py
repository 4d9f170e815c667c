"""Time of ELSA-Swin-T: a training step relative to timm's Swin-T, and large images relative to small ones.

    python bench/elsa_models.py --threads 2 --out benchmarks/elsa_models.json

A step is forward, cross-entropy, backward and AdamW at 224, batch 8. The forward pass of one large image is compared
with that of 256-pixel images with the same total number of pixels: a cost that is linear in pixels gives 1 (upper
limit: 1.2). Before timing, the model's outputs must equal those of the equations.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import timm
import torch
from steps import check_against_reference, training_step
from torch import nn

import attngraft.models  # noqa: F401 - registers the names
from attngraft.bench.command import finish, options
from attngraft.bench.result import current_setting, measurement
from attngraft.timing import count_macs, paired_ratio

OURS, THEIRS, BAR = "elsa_swin_tiny", "swin_tiny_patch4_window7_224", 2.0
SMALL, LARGE, LINEAR = 256, (512, 1024), 1.2


def forward(model: nn.Module, images: int, size: int) -> Callable[[], object]:
    batch = torch.randn(images, 3, size, size)

    def work() -> object:
        with torch.no_grad():
            return model(batch)

    return work


def main() -> int:
    parser = options("Training step of ELSA-Swin-T relative to Swin-T's, and its cost by number of pixels.", pairs=30)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=None, help="CPU threads of torch; torch's own choice by default")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    setting = current_setting()
    torch.manual_seed(0)
    images, labels = torch.randn(arguments.batch, 3, 224, 224), torch.randint(1000, (arguments.batch,))
    theirs, ours = timm.create_model(THEIRS), timm.create_model(OURS)
    check_against_reference(ours, images[:2], what=OURS)
    macs = count_macs(ours, images[:1]) / count_macs(theirs, images[:1])
    steps = (training_step(each, images, labels) for each in (theirs, ours))
    line = f"{OURS}, training step (multiply-adds {macs:.2f}x)"
    lines = [measurement(line, paired_ratio(*steps, pairs=arguments.pairs), bar=BAR)]
    ours.eval()
    for size in LARGE:
        works = forward(ours, (size // SMALL) ** 2, SMALL), forward(ours, 1, size)
        name = f"{OURS}, forward, an image of {size} over as many pixels in images of {SMALL}"
        lines.append(measurement(name, paired_ratio(*works, pairs=arguments.pairs), bar=LINEAR))
    result = setting.result(
        f"ELSA-Swin-T, batch {arguments.batch}, over Swin-T",
        settings={"batch": arguments.batch, "pairs": arguments.pairs},
        measurements=lines,
    )
    return finish(result, out=arguments.out, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
