"""Startup times: imports, `--help`, the dry run of a graft, and grafting.

    python bench/import_time.py --out benchmarks/import_time.json

Imports and `--help` run in new processes and are timed in CPU seconds, which other processes affect little.
Upper limits: `import attngraft.models` 1.1 times `import timm`; `attngraft --help` 0.5 s of CPU; `plan` on an existing
ViT-L 0.3 s; `graft` on the largest ViT and Swin of timm, on the meta device, 1 s.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable

import timm
import torch

import attngraft
from attngraft.bench.command import finish, options
from attngraft.bench.result import current_setting, measurement
from attngraft.timing import Duration, duration, paired_ratio

IMPORT_BAR, HELP_BAR, PLAN_BAR, GRAFT_BAR = 1.1, 0.5, 0.3, 1.0
#: the models with the most parameters, and the largest Swin of the first version
LARGEST = (
    "vit_7b_patch16_dinov3",
    "aimv2_3b_patch14_448",
    "swinv2_cr_giant_384",
    "swin_large_patch4_window12_384",
)
PLANNED = "vit_large_patch16_224"
WARMUP = 1  #: number of imports before the first timed one
SPEC = "cb_s + horizontal + vertical"


def children_seconds() -> float:
    """Return the CPU seconds of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def python(code: str) -> Callable[[], object]:
    """Return a function that runs `code` in a new interpreter."""
    return lambda: subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def plan_duration(samples: int) -> Duration:
    """Time the dry run on an existing model."""
    model = timm.create_model(PLANNED)
    return duration(lambda: attngraft.plan(model, SPEC), samples=samples, clock=time.perf_counter)


def graft_duration(name: str, samples: int) -> Duration:
    """Time grafting and ungrafting of a model on the meta device."""
    with torch.device("meta"):
        model = timm.create_model(name)

    def there_and_back() -> None:
        attngraft.graft(model, SPEC)
        attngraft.ungraft(model)

    return duration(there_and_back, samples=samples, clock=time.perf_counter)


def main() -> int:
    arguments = options(__doc__ or "", pairs=30).parse_args()
    setting = current_setting()
    imports = paired_ratio(
        python("import timm"),
        python("import attngraft.models"),
        pairs=arguments.pairs,
        warmup=WARMUP,
        clock=children_seconds,
    )
    show_help = python("import sys; sys.argv = ['attngraft', '--help']; from attngraft.cli import main; main()")
    help_seconds = duration(show_help, samples=arguments.pairs, clock=children_seconds)
    result = setting.result(
        "Waiting for the package",
        settings={"pairs": arguments.pairs, "plan": SPEC},
        measurements=(
            measurement("import attngraft.models / import timm (CPU)", imports, bar=IMPORT_BAR),
            measurement("attngraft --help (CPU)", help_seconds, bar=HELP_BAR),
            measurement(f"plan {SPEC!r} on ViT-L", plan_duration(arguments.pairs), bar=PLAN_BAR),
            *(
                measurement(f"graft and ungraft {name}, meta device", graft_duration(name, 5), bar=GRAFT_BAR)
                for name in LARGEST
            ),
        ),
    )
    return finish(result, out=arguments.out, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
