"""How long a user waits before anything happens: imports, `--help`, and the dry run of a graft, a graft.

    python bench/import_time.py --out benchmarks/import_time.json

Imports and `--help` run in fresh processes and are timed in CPU seconds, which other processes disturb little.
Bars: `import attngraft.models` 1.1x `import timm`; `attngraft --help` 0.5 s of CPU; `plan` on ViT-L 0.3 s beyond building
it; `graft` on the largest ViT and Swin that timm has, on the meta device, 1 s.
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
from attngraft.bench.result import BenchResult, current_setting, measurement
from attngraft.timing import Duration, duration, paired_ratio

IMPORT_BAR, HELP_BAR, PLAN_BAR, GRAFT_BAR = 1.1, 0.5, 0.3, 1.0
#: those with the most parameters, and the largest Swin of the first version
LARGEST = (
    "vit_7b_patch16_dinov3",
    "aimv2_3b_patch14_448",
    "swinv2_cr_giant_384",
    "swin_large_patch4_window12_384",
)
SPEC = "cb_s + horizontal + vertical"


def children_seconds() -> float:
    """CPU seconds of all processes that this one has started and waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def python(code: str) -> Callable[[], object]:
    """Work: a fresh interpreter that runs `code`."""
    return lambda: subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def plan_duration(samples: int) -> Duration:
    """Seconds of the dry run on a ViT-L that is there already."""
    model = timm.create_model("vit_large_patch16_224")
    return duration(lambda: attngraft.plan(model, SPEC), samples=samples, clock=time.perf_counter)


def graft_duration(name: str, samples: int) -> Duration:
    """Seconds of the grafting of a model on the meta device, the undoing included."""
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
        warmup=1,
        clock=children_seconds,
    )
    show_help = python("import sys; sys.argv = ['attngraft', '--help']; from attngraft.cli import main; main()")
    help_seconds = duration(show_help, samples=arguments.pairs, clock=children_seconds)
    result = BenchResult(
        title="Waiting for the package",
        command=setting.command,
        environment=setting.environment,
        load=setting.load,
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
