"""Time of a training step with BiSA in the first two attention layers, relative to the host's.

    python bench/bisa_models.py --threads 2 --out benchmarks/bisa_models.json

A step is forward, cross-entropy, backward and AdamW at 224, batch 8. Before timing, the outputs of the grafted models must
equal those of the equations. Each line contains the ratio of multiply-adds.
"""

from __future__ import annotations

import sys

import timm
import torch
from steps import check_against_reference, grafted, training_step

from attngraft.bench.command import finish, options
from attngraft.bench.result import current_setting, measurement
from attngraft.timing import count_macs, paired_ratio

SPEC = "bisa@first:2"
BARS = {"swin_tiny_patch4_window7_224": 1.35, "levit_128s": 1.5}


def main() -> int:
    parser = options("Training step of models with BiSA in two layers, relative to their hosts.", pairs=30)
    parser.add_argument("--hosts", nargs="+", choices=list(BARS), default=list(BARS))
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=None, help="CPU threads of torch; torch's own choice by default")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    setting = current_setting()
    lines = []
    for name in arguments.hosts:
        torch.manual_seed(0)
        host = timm.create_model(name)
        images, labels = torch.randn(arguments.batch, 3, 224, 224), torch.randint(1000, (arguments.batch,))
        model = grafted(host, SPEC)
        check_against_reference(model, images[:2], what=name)
        macs = count_macs(model, images[:1]) / count_macs(host, images[:1])
        steps = (training_step(each, images, labels) for each in (host, model))
        line = f"{name}, {SPEC} (multiply-adds {macs:.2f}x)"
        lines.append(measurement(line, paired_ratio(*steps, pairs=arguments.pairs), bar=BARS[name]))
    result = setting.result(
        f"Training step with BiSA in two layers, batch {arguments.batch}, over the host's",
        settings={"hosts": arguments.hosts, "batch": arguments.batch, "pairs": arguments.pairs},
        measurements=lines,
    )
    return finish(result, out=arguments.out, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
