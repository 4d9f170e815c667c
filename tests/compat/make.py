"""Folders and files of an earlier release, made anew with its code.

    git worktree add ../before 2dd6b2e
    PYTHONPATH=../before/src OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 python -m tests.compat.make [NAME...]

Everything comes from `python -m attngraft` as a user types it, and from the names in `attngraft.__all__`, so that this
script works with any release. What it makes is in `tests/compat/data`; without a NAME it makes all of it:

run            a finished run (run.tar.xz), its answers (run.json) on images/*.png, and the folder exported of it
interrupted    a run stopped in the middle of its second epoch, and what the same command makes undisturbed
study          a finished study with costs, suites and analyses, and one stopped in the middle of its last run
halving        a study of which halving stopped some runs
grafts         graft files, and a folder of transformers, with the outputs of the models (grafts.json)

Folders are in archives, so that no editor or search-and-replace changes what an old release wrote. What can be drawn
again (reports, plots) and second copies (previous.pt) are left out.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"

#: a ViT of two blocks on the four patches of a digit
HOST = ["--host", "vit_tiny_patch16_224"]
HOST += [f"--host-arg={each}" for each in ("img_size=8", "patch_size=4", "in_chans=1", "embed_dim=8", "depth=2")]
HOST += ["--host-arg=num_heads=2", "--host-arg=mlp_ratio=2"]
#: a Swin of two stages, one block each
SWIN = ["--host", "swin_tiny_patch4_window7_224"]
SWIN += [f"--host-arg={each}" for each in ("img_size=8", "patch_size=2", "window_size=2", "in_chans=1", "embed_dim=8")]
SWIN += ["--host-arg=depths=[1, 1]", "--host-arg=num_heads=[1, 2]", "--host-arg=mlp_ratio=1"]

DIGITS = ["--recipe", "digits", "--data", "digits", "--set", "task.data.val_fraction=0.05", "--set", "train.threads=1"]
DIGITS += ["--set", "optimizer.lr=1e-2", "--set", "train.batch_size=16", "--epochs", "2"]

#: commands of which only `--out FOLDER` is missing
GRAFT = ["--graft", "cb_s + horizontal@last:1"]
RUN = ["train", *HOST, *DIGITS, *GRAFT, "--set", "train.ema=0.9", "--seed", "3"]
#: of a run that starts from the weights of one and learns from another; both are missing, too
START = ["train", *HOST, *DIGITS, *GRAFT, "--epochs", "1"]
INTERRUPTED = ["train", *SWIN, *DIGITS, "--graft", "elsa(kernel=3)@layers.0 + cb_s"]
INTERRUPTED += ["--set", "train.ema=0.9", "--set", "train.accumulate=2", "--set", "train.drop_path=0.1"]
INTERRUPTED += ["--set", "task.augment.mixup=0.2", "--set", "task.augment.erasing=0.2"]
STUDY = ["compare", *HOST, *DIGITS, "--graft", "cb_s", "--graft", "horizontal(identity=true)", "--seeds", "2"]
STUDY += ["--suite", "occlusion,calibration", "--title", "Digits, long ago"]
UNFINISHED = ["compare", *HOST, *DIGITS, "--graft", "cb_s", "--seeds", "1"]
HALVING = ["compare", *HOST, *DIGITS, "--graft", "vertical", "--graft", "cb", "--graft", "cb_s"]
HALVING += ["--seeds", "1", "--halving", "2,1"]

PREDICT = ["predict", "--format", "json", "--top", "10"]
ANALYSES = ["entropy", "scaling", "curves"]


def make_run(place: Path) -> None:
    """A finished run, images with its answers to them, and the exported model."""
    attngraft(*RUN, "--out", "run", cwd=place)
    pictures()
    told = attngraft(*PREDICT, "run", DATA / "images", cwd=place)
    best = attngraft(*PREDICT, "run", DATA / "images", "--checkpoint", "best-ema", cwd=place)
    evaluated = {
        kind: json.loads(attngraft("eval", "run", "--weights", kind, "--json", cwd=place))["metrics"]
        for kind in ("last", "best", "ema", "best-ema")
    }
    attngraft("export", "run", "--out", "exported", "--to", "pt2", "--to", "onnx", "--to", "hf", cwd=place)
    attngraft(*START, "--weights", "run", "--set", "distill.teacher.weights=exported", "--out", "next", cwd=place)
    found = {
        "made": made_with(place / "run"),
        "evaluated": evaluated,
        "predicted": answers(told),
        "predicted by best-ema": answers(best),
        "start": read_json(place / "next" / "start.json"),
        "teacher": read_json(place / "next" / "teacher.json"),
    }
    write("run.json", found)
    pack(place / "run")
    pack(place / "exported")


def make_interrupted(place: Path) -> None:
    """A run stopped in the middle of its second epoch, and the same undisturbed."""
    attngraft(*INTERRUPTED, "--out", "whole", cwd=place)
    interrupt(*INTERRUPTED, "--out", "stopped", cwd=place, run=place / "stopped")
    folder = place / "interrupted"
    folder.mkdir()
    for name in ("whole", "stopped"):
        (place / name).rename(folder / name)
    shutil.rmtree(folder / "whole" / "checkpoints")
    pack(folder)


def make_study(place: Path) -> None:
    """A finished study with suites, costs and analyses, and another one stopped in the middle of its last run."""
    attngraft(*STUDY, "--out", "study", cwd=place)
    attngraft("analyze", *ANALYSES, "--study", "study", "--limit", "40", cwd=place)
    interrupt(*UNFINISHED, "--out", "unfinished", cwd=place, run=place / "unfinished" / "runs" / "cb_s" / "seed0")
    pack(place / "study")
    pack(place / "unfinished")


def make_halving(place: Path) -> None:
    """A study of which halving stopped some runs."""
    attngraft(*HALVING, "--out", "halving", cwd=place)
    pack(place / "halving")


def make_grafts(place: Path) -> None:
    """Graft files for hosts whose values are a formula's, and what the grafted models put out."""
    import attngraft

    outputs = {}
    for name, (make, spec, options) in GRAFTS.items():
        model = filled(make())
        attngraft.graft(model, spec)
        filled(model)
        attngraft.save_grafts(model, DATA / f"{name}.safetensors", **options)
        outputs[name] = logits(model)
    model = filled(transformers_vit())
    attngraft.graft(model, TRANSFORMERS_SPEC)
    filled(model)
    attngraft.save_pretrained(model, place / "transformers")
    (place / "transformers" / "model.safetensors").chmod(0o644)
    outputs["transformers"] = logits(model)
    pack(place / "transformers")
    write("grafts.json", outputs)


def vit() -> Any:
    """A ViT of four blocks."""
    import timm

    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 8, "depth": 4, "num_heads": 2, "num_classes": 4}
    return timm.create_model("vit_tiny_patch16_224", **sizes).eval()


def swin() -> Any:
    """A Swin of two stages with two blocks in the first."""
    import timm

    sizes = {"img_size": 16, "patch_size": 2, "window_size": 4, "depths": (2, 1), "embed_dim": 8, "num_heads": (2, 2)}
    return timm.create_model("swin_tiny_patch4_window7_224", **sizes, num_classes=4).eval()


def transformers_vit() -> Any:
    """A ViT of transformers with two layers."""
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    return ViTForImageClassification(ViTConfig(image_size=16, patch_size=8, num_labels=4, **sizes)).eval()


TRANSFORMERS_SPEC = "cb_s(at=both) + bisa@layers.0 + horizontal@layers.1"
#: by name of the file: host, specification, and what `save_grafts` is given besides
GRAFTS: dict[str, tuple[Callable[[], Any], str, dict[str, Any]]] = {
    "vit": (
        vit,
        "cb_gate@blocks.0 + cb_hybrid@blocks.1 + uniform_heads@blocks.0 + vertical(identity=true, reduction=2)@blocks.1"
        " + ghost@blocks.2 + identity@blocks.3 + cb(position=front)@blocks.3 + cb_s(at=both)@blocks.2-3"
        " + horizontal(identity=true)@blocks.0 + se(reduction=2)@blocks.2",
        {"include": ["head", "norms"], "fingerprint": True},
    ),
    "swin": (
        swin,
        "elsa(kernel=3)@layers.0.blocks.0 + involution(kernel=3)@layers.0.blocks.1 + outlooker@layers.1.blocks.0"
        " + cb_s@layers.0",
        {},
    ),
    "swin_counterparts": (
        swin,
        "ddf(kernel=3)@layers.0.blocks.0 + lsa(size=3, area=neighborhood)@layers.0.blocks.1"
        " + dynamic_dwconv(kernel=3)@layers.1.blocks.0",
        {},
    ),
}


def hashed(name: str, shape: Sequence[int]) -> Any:
    """Numbers between -1 and 1 from integers alone: the same in every release of torch."""
    import torch

    found = torch.arange(math.prod(shape)) + zlib.crc32(name.encode())
    for factor in (2654435761, 2246822519, 3266489917):
        found = (found * factor) & 0xFFFFFFFF
        found = found ^ (found >> 15)
    return (found.double() / 2**31 - 1).reshape(tuple(shape))


def filled(model: Any) -> Any:
    """Values by the names of the parameters: matrices that keep a variance, the rest around 1."""
    for name, parameter in model.named_parameters():
        value = hashed(name, parameter.shape)
        value = value * (3 / parameter[0].numel()) ** 0.5 if parameter.dim() > 1 else 1 + 0.5 * value
        parameter.data = value.to(parameter.dtype)
    return model


def logits(model: Any) -> list[list[float]]:
    """Outputs of a model for two images of a formula."""
    import torch

    with torch.no_grad():
        found = model.eval()(hashed("images", (2, 3, 16, 16)).float())
    return getattr(found, "logits", found).tolist()


def pictures() -> None:
    """Eight digits as PNG."""
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    (DATA / "images").mkdir(parents=True, exist_ok=True)
    for number, pixels in enumerate(load_digits().images[:8]):
        Image.fromarray(np.uint8(pixels * 255 / 16)).save(DATA / "images" / f"{number}.png")


def attngraft(*arguments: object, cwd: Path) -> str:
    """Run a command in `cwd`; its standard output is returned."""
    done = subprocess.run(command(*arguments), cwd=cwd, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def interrupt(*arguments: object, cwd: Path, run: Path) -> None:
    """Press Ctrl-C in the middle of the second epoch of `run`; as often as it takes to meet it."""
    for attempt in range(20):
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(run)
        process = subprocess.Popen(command(*arguments), cwd=cwd, stdout=subprocess.DEVNULL)
        while not lines(run / "metrics.jsonl") and process.poll() is None:
            time.sleep(0.002)
        time.sleep(0.1 + 0.02 * attempt)
        process.send_signal(signal.SIGINT)
        code = process.wait()
        if code == 130 and in_the_middle(run):
            return
    raise SystemExit(f"{run}: never met in the middle of an epoch")


def in_the_middle(run: Path) -> bool:
    """Whether the checkpoint of a run is of neither the beginning nor the end of its second epoch."""
    import torch

    counters = torch.load(run / "checkpoints" / "last.pt", weights_only=True)["counters"]
    print(f"{run.name} stopped in epoch {counters['epoch'] + 1} after step {counters['step']}")
    return counters["epoch"] == 1 and 5 < counters["step"] < 100


def lines(path: Path) -> int:
    """How many lines a file has; none where there is no file."""
    return len(path.read_text(encoding="utf-8").splitlines()) if path.is_file() else 0


def command(*arguments: object) -> list[str]:
    """What to start as a process of its own."""
    return [sys.executable, "-m", "attngraft", *map(str, arguments)]


def answers(told: str) -> dict[str, Any]:
    """What `predict` told as JSON, by the names of the images."""
    return {Path(image["image"]).name: image["top"] for image in json.loads(told)["images"]}


def made_with(run: Path) -> dict[str, Any]:
    """On what the numbers depend to the last digit."""
    environment = read_json(run / "environment.json")
    return {name: environment[name] for name in ("attngraft", "commit", "packages")} | {"processor": processor()}


def processor() -> list[str]:
    """What a CPU says of itself that decides how sums are taken; nothing where it does not say."""
    path = Path("/proc/cpuinfo")
    told = path.read_text(encoding="utf-8").partition("\n\n")[0].splitlines() if path.is_file() else []
    wanted = ("vendor_id", "cpu family", "model", "stepping", "cache size", "flags")
    return sorted(line.replace("\t", "") for line in told if line.partition("\t")[0] in wanted)


def read_json(path: Path) -> Any:
    """What a JSON file holds."""
    return json.loads(path.read_text(encoding="utf-8"))


def write(name: str, value: Any) -> None:
    """`value` as JSON in the folder of data."""
    DATA.mkdir(parents=True, exist_ok=True)
    (DATA / name).write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def pack(folder: Path) -> None:
    """Keep a folder as an archive, without what can be drawn again and second copies."""
    for pattern in ("**/previous.pt", "**/*.html", "**/*.png", "**/*.svg"):
        for path in folder.glob(pattern):
            path.unlink()
    shutil.rmtree(folder / "plots", ignore_errors=True)
    with tarfile.open(DATA / f"{folder.name}.tar.xz", "w:xz", preset=9) as archive:
        archive.add(folder, arcname=folder.name, filter=_of_nobody)
    print(f"{folder.name}.tar.xz: {os.path.getsize(DATA / f'{folder.name}.tar.xz')} bytes")


def _of_nobody(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


MAKERS = {
    "run": make_run,
    "interrupted": make_interrupted,
    "study": make_study,
    "halving": make_halving,
    "grafts": make_grafts,
}


def main() -> None:
    """Make what is named on the command line, or everything."""
    for name in sys.argv[1:] or MAKERS:
        with tempfile.TemporaryDirectory() as place:
            MAKERS[name](Path(place))


if __name__ == "__main__":
    main()
