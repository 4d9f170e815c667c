"""Time of a training step of grafted models, relative to the host's.

    python bench/graft_cost.py --out benchmarks/graft_cost.json

A step is forward, cross-entropy, backward and AdamW on ViT-Ti at 224, batch 8. Before timing, the patched classes
without grafts must give the host's output bit for bit, and each grafted model that of its reference backend. Two rows
without an upper limit show the cost of the matrix products of horizontal and vertical attention alone.
"""

from __future__ import annotations

import copy
import sys

import timm
import torch
from products import products_only
from steps import check_against_reference, grafted, training_step
from torch import nn

from attngraft.bench.command import finish, options
from attngraft.bench.result import check_outputs, current_setting, measurement
from attngraft.grafting.apply import patch
from attngraft.hosts import find_host
from attngraft.timing import several

PLAIN = "patched class, no graft"
BARS = {
    PLAIN: 1.00,
    "cb": 1.03,
    "cb_s": 1.04,
    "horizontal": 1.08,
    "vertical": 1.08,
    "horizontal + vertical": 1.18,
}
PRODUCTS = ", matrix products alone"
FLOORS = ("horizontal", "vertical")


def patched(host: nn.Module) -> nn.Module:
    """Copy `host` with patched classes at all sites and no grafts."""
    model = copy.deepcopy(host)
    found = find_host(model)
    for target in {target for site in found.sites for target in site.targets.values()}:
        patch(found.module(target))
    return model


def check(host: nn.Module, models: dict[str, nn.Module], images: torch.Tensor) -> None:
    """Check outputs before timing."""
    with torch.no_grad():
        expected = host.eval()(images)
        for name, model in models.items():
            if name == PLAIN:
                check_outputs(model.eval()(images), expected, what=name, rtol=0, atol=0)
            else:
                check_against_reference(model, images, what=name)


def main() -> int:
    parser = options("Training step of grafted models, relative to the host's.", pairs=30)
    parser.add_argument("--host", default="vit_tiny_patch16_224", help="the upper limits are for ViT-Ti")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=None, help="CPU threads of torch; torch's own choice by default")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    setting = current_setting()
    torch.manual_seed(0)
    host = timm.create_model(arguments.host)
    size = host.pretrained_cfg["input_size"]
    images, labels = torch.randn(arguments.batch, *size), torch.randint(host.num_classes, (arguments.batch,))
    models = {name: patched(host) if name == PLAIN else grafted(host, name) for name in BARS}
    check(host, models, images[:2])
    models |= {name + PRODUCTS: products_only(grafted(host, name)) for name in FLOORS}
    steps = {name: training_step(model, images, labels) for name, model in models.items()}
    measured = several(training_step(host, images, labels), steps, pairs=arguments.pairs)
    result = setting.result(
        f"Training step of {arguments.host}, batch {arguments.batch}, over the host's",
        settings={"host": arguments.host, "batch": arguments.batch, "pairs": arguments.pairs},
        measurements=tuple(measurement(name, ratio, bar=BARS.get(name)) for name, ratio in measured.items()),
    )
    return finish(result, out=arguments.out, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
