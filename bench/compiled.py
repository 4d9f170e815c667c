"""Time of compiled models: what a graft costs of a compiled host, relative to what it costs of the eager host.

    python bench/compiled.py --threads 1 --out FILE

Grafts are timed on a ViT-Ti of three blocks and on the first stage of a Swin-T, at 224; models of our own with fewer layers
relative to their eager form. All are compiled with `fullgraph=True` and Inductor. The upper limit of a compiled graft is the
upper end of its eager ratio's interval, that of a model is 1. Before timing, compiled outputs must equal the eager ones.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import timm
import torch
from steps import grafted, training_step
from torch import nn

import attngraft.models  # noqa: F401 - registers the names
from attngraft.bench.command import finish, options
from attngraft.bench.result import Measurement, check_outputs, current_setting, measurement
from attngraft.timing import paired_ratio, several

HOSTS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "vit_tiny_patch16_224": (
        {"depth": 3},
        ("cb_s", "horizontal", "vertical", "bisa@first:2", "ghost", "uniform_heads"),
    ),
    "swin_tiny_patch4_window7_224": ({"depths": (2,), "num_heads": (3,)}, ("cb_s", "bisa", "elsa")),
}
MODELS: dict[str, dict[str, Any]] = {
    "bixt_ti_l64_p16": {"depth": 3},
    "elsa_swin_tiny": {"depths": (2, 2), "num_heads": (3, 6)},
}


def compiled(model: nn.Module, images: torch.Tensor, *, what: str, backend: str) -> nn.Module:
    """Compile `model` and check its outputs."""
    found = torch.compile(model.eval(), fullgraph=True, backend=backend)
    with torch.no_grad():
        check_outputs(found(images), model(images), what=what, rtol=1e-3, atol=1e-4)
    return found  # type: ignore[return-value]


def forward(model: nn.Module, images: torch.Tensor, _: torch.Tensor) -> Callable[[], object]:
    model.eval()

    def work() -> object:
        with torch.no_grad():
            return model(images)

    return work


def main() -> int:
    parser = options("Compiled grafted models relative to the compiled host.", pairs=30)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--threads", type=int, default=None, help="CPU threads of torch; torch's own choice by default")
    parser.add_argument("--backend", default="inductor", help="backend of torch.compile")
    parser.add_argument("--only", nargs="+", help="these hosts, specifications and models only")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    torch._dynamo.config.recompile_limit = 100  # the models share the code of their modules
    setting = current_setting()
    torch.manual_seed(0)
    batch = torch.randn(arguments.batch, 3, 224, 224), torch.randint(1000, (arguments.batch,))
    lines: list[Measurement] = []
    for host_name, (changes, specs) in HOSTS.items():
        only = {host_name, *specs} & set(arguments.only or [host_name])
        if names := [spec for spec in specs if host_name in only or spec in only]:
            host = timm.create_model(host_name, **changes)
            eager = {name: grafted(host, name) for name in names}
            fast_host = compiled(host, batch[0], what=host_name, backend=arguments.backend)
            fast = {
                name: compiled(model, batch[0], what=name, backend=arguments.backend) for name, model in eager.items()
            }
            for what, work in (("inference", forward), ("training step", training_step)):
                plain, whole = (
                    several(work(base, *batch), {n: work(m, *batch) for n, m in models.items()}, pairs=arguments.pairs)
                    for base, models in ((host, eager), (fast_host, fast))
                )
                for name in names:
                    title = f"{host_name}, {name}, {what}"
                    lines.append(measurement(f"{title}, eager", plain[name], bar=None))
                    lines.append(measurement(f"{title}, compiled", whole[name], bar=plain[name].high))
    for name in [name for name in MODELS if name in (arguments.only or MODELS)]:
        model = timm.create_model(name, **MODELS[name])
        fast_model = compiled(model, batch[0], what=name, backend=arguments.backend)
        for what, work in (("inference", forward), ("training step", training_step)):
            ratio = paired_ratio(work(model, *batch), work(fast_model, *batch), pairs=arguments.pairs)
            lines.append(measurement(f"{name}, {what}, compiled over eager", ratio, bar=1.0))
    result = setting.result(
        f"Compiled models, batch {arguments.batch}",
        settings={"batch": arguments.batch, "pairs": arguments.pairs},
        measurements=lines,
    )
    return finish(result, out=arguments.out, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
