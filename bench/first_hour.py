"""Time of a user's first commands: a study and a run relative to timm's training script, and the demo on a busy machine.

    python bench/first_hour.py --data flowers5 --peer timm_train.py --out benchmarks/first_hour.json

Whole processes are timed, from start to exit, with the number of threads that they choose themselves. The parts:

    study   a study of four variants on a folder of images, relative to four runs of timm's script; upper limit 0.7
    train   one `attngraft train`, relative to one run of timm's script; upper limit 1.0
    demo    examples/digits.yaml while another process keeps one core busy, relative to a quiet machine; upper limit 1.5

The runs of `study` and `train` have the same small ViT, images, epochs and batch size. `--peer` is train.py of timm's
repository; without it, only the demo is timed. With up to five pairs, the interval of a median is the range of the ratios.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from attngraft.bench.command import finish, options
from attngraft.bench.result import Measurement, current_setting, measurement
from attngraft.errors import AttngraftError
from attngraft.study import load_result
from attngraft.timing import paired_ratio

BARS = {"study": 0.7, "train": 1.0, "demo": 1.5}
WHAT = {
    "study": "a study of four variants / four runs of timm's script",
    "train": "attngraft train / timm's script",
    "demo": "the demo with one core busy / on a quiet machine",
}
GRAFTS = ("cb", "cb_s", "horizontal")
HOST = "vit_tiny_patch16_224"
ARGUMENTS = {"img_size": 64, "patch_size": 8, "depth": 4, "num_heads": 3}
BATCH, WORKERS = 32, 2
DEMO = Path(__file__).resolve().parents[1] / "examples" / "digits.yaml"

Work = Callable[[], object]


def run(*command: str | Path) -> None:
    """Run a command in a new process that chooses its own number of threads.

    Raises:
        AttngraftError: the command failed; the message contains the end of its output.
    """
    chosen = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    words = list(map(str, command))
    done = subprocess.run(words, env=chosen, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise AttngraftError(f"{shlex.join(words)} failed with exit code {done.returncode}:\n{done.stdout[-2000:]}")


def ours(verb: str, data: Path, out: Path, *, epochs: int) -> list[str]:
    """Return the command of `attngraft train`, or of `attngraft compare` with three grafts."""
    host = [word for name, value in ARGUMENTS.items() for word in ("--host-arg", f"{name}={value}")]
    command = [sys.executable, "-m", "attngraft", verb, "--recipe", "cpu-small", "--host", HOST, *host]
    command += ["--data", str(data), "--epochs", str(epochs), "--out", str(out)]
    command += ["--set", f"train.workers={WORKERS}", "--set", f"train.batch_size={BATCH}"]
    if verb == "compare":
        command += [word for graft in GRAFTS for word in ("--graft", graft)] + ["--seeds", "1"]
    return command


def theirs(peer: Path, data: Path, out: Path, *, epochs: int) -> list[str]:
    """Return the command of timm's script for the same host, optimizer, images and epochs."""
    size = str(ARGUMENTS["img_size"])
    classes = sum(path.is_dir() for path in (data / "train").iterdir())
    command = [sys.executable, str(peer), "--data-dir", str(data), "--train-split", "train", "--val-split", "val"]
    command += ["--model", HOST, "--input-size", "3", size, size, "--num-classes", str(classes), "--model-kwargs"]
    command += [f"{name}={value}" for name, value in ARGUMENTS.items()]
    command += shlex.split(
        "--opt adamw --lr 1e-3 --weight-decay 0.05 --warmup-epochs 0 --sched cosine --cooldown-epochs 0"
    )
    command += shlex.split("--device cpu --mixup 0 --smoothing 0.1 --color-jitter 0 --seed 0 --log-interval 1000")
    command += ["-b", str(BATCH), "-j", str(WORKERS), "--epochs", str(epochs)]
    return [*command, "--output", str(out), "--experiment", "peer"]


@contextmanager
def busy_core() -> Iterator[None]:
    """Keep one core busy in the block."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def against_peer(verb: str, data: Path, peer: Path, folders: Iterator[Path], *, epochs: int) -> tuple[Work, Work]:
    """Return functions that run timm's script, once for each variant, and our command; each call uses new folders."""
    variants = 1 if verb == "train" else 1 + len(GRAFTS)

    def baseline() -> None:
        for _ in range(variants):
            run(*theirs(peer, data, next(folders), epochs=epochs))

    def candidate() -> None:
        out = next(folders)
        run(*ours(verb, data, out, epochs=epochs))
        if verb == "compare":
            check(out, variants=variants)

    return baseline, candidate


def demo(folders: Iterator[Path], more: Sequence[str]) -> tuple[Work, Work]:
    """Return functions that run the demo with further arguments, on a quiet machine and with one core busy."""

    def quiet() -> None:
        out = next(folders)
        run(sys.executable, "-m", "attngraft", "compare", "--study", DEMO, *more, "--out", out)
        check(out, variants=5)

    def busy() -> None:
        with busy_core():
            quiet()

    return quiet, busy


def check(out: Path, *, variants: int) -> None:
    """Check that a study has trained all of its variants.

    Raises:
        AttngraftError: it has not.
    """
    trained = [variant.name for variant in load_result(out).variants if variant.runs]
    if len(trained) != variants:
        raise AttngraftError(f"the study in {out} trained {len(trained)} of {variants} variants: {', '.join(trained)}")


def main() -> int:
    parser = options("A user's first commands, as whole processes.", pairs=3)
    parser.add_argument("--data", type=Path, help="folder of images with train/ and val/, for study and train")
    parser.add_argument("--peer", type=Path, help="timm's train.py, for study and train")
    parser.add_argument("--parts", nargs="+", choices=list(BARS), default=list(BARS), help="parts to measure")
    parser.add_argument("--epochs", type=int, default=4, help="epochs of a run of study and train")
    parser.add_argument("--demo-args", default="", help="further arguments of the demo: '--epochs 1 --seeds 1'")
    arguments = parser.parse_args()
    data, peer = arguments.data, arguments.peer
    for path in filter(None, (data, peer)):
        if not path.exists():
            parser.error(f"{path} does not exist")
    skipped = [part for part in arguments.parts if part != "demo" and None in (data, peer)]
    if skipped:
        print(f"skipped: {', '.join(skipped)}, which need --data FOLDER and --peer FILE", file=sys.stderr)
    setting = current_setting()
    measured: list[Measurement] = []
    with tempfile.TemporaryDirectory() as place:
        folders = (Path(place) / str(number) for number in count())
        for part in arguments.parts:
            if part in skipped:
                continue
            if part == "demo":
                pair = demo(folders, shlex.split(arguments.demo_args))
            else:
                verb = "compare" if part == "study" else "train"
                pair = against_peer(verb, data, peer, folders, epochs=arguments.epochs)
            ratio = paired_ratio(*pair, pairs=arguments.pairs, warmup=0)
            measured.append(measurement(WHAT[part], ratio, bar=BARS[part]))
    result = setting.result(
        "The first commands of a user",
        settings={
            "pairs": arguments.pairs,
            "epochs": arguments.epochs,
            "host": HOST,
            **ARGUMENTS,
            "batch_size": BATCH,
            "grafts": list(GRAFTS),
            "demo_args": arguments.demo_args,
            "skipped": skipped,
        },
        measurements=measured,
    )
    return finish(result, out=arguments.out, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
