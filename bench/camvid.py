"""Quality of a small network on CamVid: this project's training against a plain loop around segmentation_models_pytorch.

    python bench/camvid.py --data camvid --threads 1 --out benchmarks/camvid.json

Both train resnet10t with a semantic FPN of width 128 from scratch: AdamW, crops of 160 x 192, random scale and flip,
cross-entropy with square-root class weights, the same number of steps. Ours is the recipe `small-segmentation`; theirs is
`FPN` of segmentation_models_pytorch in a loop with torchvision's transforms. Both are judged by the same test images, and
the interval of the difference resamples seeds and images as a study does.
"""

from __future__ import annotations

import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from attngraft.bench.command import finish, options
from attngraft.bench.result import Measurement, current_setting
from attngraft.results.measured import Statistic
from attngraft.results.records import RecordTable, open_records
from attngraft.results.statistics import crossed_bootstraps_of
from attngraft.tasks.segmentation.metrics import mask_statistics, measure
from attngraft.training.loop import train
from attngraft.training.recipe import load_recipe

CROP, BATCH, VOID = [160, 192], 8, 11
LOST = 2.0  #: points of mIoU that ours may be lower
MEAN, DEVIATION = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
PAIR = tuple[Tensor, Tensor]


def ours(data: Path, *, seed: int, epochs: int) -> Statistic:
    """Train by this project and return the test mIoU."""
    settings = [
        "host.name=resnet10t",
        "host.args={}",
        "task.norm=group",
        f"task.data.source={data}",
        f"schedule.epochs={epochs}",
        f"schedule.warmup_epochs={min(2, epochs - 1)}",
        f"seed={seed}",
        "train.outputs=false",
    ]
    with tempfile.TemporaryDirectory() as folder:
        train(load_recipe("small-segmentation", settings), Path(folder, "run"))
        with open_records(Path(folder, "run", "predictions.npz")) as table:
            return measure(table).statistics["miou"]


def pairs(data: Path, part: str) -> list[PAIR]:
    """Return images (3, H, W) and label maps (H, W), uint8, in the order of their names."""
    found = []
    for image in sorted((data / "images" / part).iterdir()):
        label = np.asarray(Image.open(data / "masks" / part / f"{image.stem}.png"))
        pixels = np.asarray(Image.open(image).convert("RGB"))
        found.append((torch.from_numpy(pixels.copy()).permute(2, 0, 1), torch.from_numpy(label.copy())))
    return found


def normalized(image: Tensor) -> Tensor:
    return (image.float() / 255 - MEAN[:, None, None]) / DEVIATION[:, None, None]


def augmented(image: Tensor, label: Tensor) -> PAIR:
    """Scale by 0.75 to 1.75, crop, and flip."""
    factor = float(torch.empty(()).uniform_(np.log(0.75), np.log(1.75)).exp())
    size = [round(side * factor) for side in label.shape]
    image = v2.functional.resize(image, size, antialias=True)
    label = v2.functional.resize(label[None], size, interpolation=v2.InterpolationMode.NEAREST)
    space = [max(0, crop - side) for crop, side in zip(CROP, size, strict=True)]
    border = [0, 0, space[1], space[0]]
    both = v2.functional.pad(image, border), v2.functional.pad(label, border, fill=VOID)
    corner = [int(torch.randint(side - crop + 1, ())) for side, crop in zip(both[1].shape[1:], CROP, strict=True)]
    image, label = (v2.functional.crop(each, *corner, *CROP) for each in both)
    if torch.rand(()) < 0.5:
        image, label = image.flip(2), label.flip(2)
    return normalized(image), label[0].long()


def theirs(data: Path, *, seed: int, epochs: int) -> Statistic:
    """Train segmentation_models_pytorch's network and return the test mIoU."""
    import segmentation_models_pytorch as smp

    torch.manual_seed(seed)
    examples, test = pairs(data, "train"), pairs(data, "test")
    counts = sum(torch.bincount(label.flatten().long(), minlength=VOID + 1)[:VOID] for _, label in examples).double()
    weights = (counts.sum() / counts).sqrt()
    weights = (weights * counts.sum() / (weights * counts).sum()).float()
    model = smp.FPN(
        "tu-resnet10t",
        encoder_weights=None,
        decoder_pyramid_channels=128,
        decoder_segmentation_channels=64,
        classes=VOID,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    steps, warmup = epochs * (len(examples) // BATCH), 50

    def rate(step: int) -> float:
        return min(1.0, (step + 1) / warmup) * (1 - step / steps) ** 0.9

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    model.train()
    for _ in range(epochs):
        order = torch.randperm(len(examples)).tolist()
        for start in range(0, len(order) - BATCH + 1, BATCH):
            batch = [augmented(*examples[index]) for index in order[start : start + BATCH]]
            images, labels = (torch.stack(each) for each in zip(*batch, strict=True))
            loss = F.cross_entropy(model(images), labels, weight=weights, ignore_index=VOID)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5)
            optimizer.step()
            schedule.step()
    model.eval()
    rows = []
    for image, label in test:
        height, width = label.shape
        with torch.no_grad():
            logits = model(F.pad(normalized(image)[None], (0, -width % 32, 0, -height % 32)))
        predicted = logits[0, :, :height, :width].argmax(0)
        rows.append(mask_statistics(predicted, torch.where(label == VOID, 255, label), VOID, boundaries=False))
    columns = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
    return measure(RecordTable(names=np.arange(len(rows)).astype(str), columns=columns)).statistics["miou"]


def line(name: str, unit: Literal["points", "seconds"], value: float, low: float, high: float) -> Measurement:
    return Measurement(name=name, unit=unit, value=value, low=low, high=high, bar=None, passed=True, samples=1)


def main() -> int:
    parser = options("Quality of a small network on CamVid; a pair is a seed.", pairs=3)
    parser.add_argument("--data", type=Path, required=True, help="folder of CamVid, with images/SPLIT and masks/SPLIT")
    parser.add_argument("--epochs", type=int, default=36, help="epochs of 25 steps")
    parser.add_argument("--threads", type=int, default=None, help="CPU threads of torch; torch's default if not given")
    arguments = parser.parse_args()
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    setting, lines, seeds = current_setting("cpu"), list[Measurement](), range(arguments.pairs)
    found: dict[str, list[Statistic]] = {"segmentation_models_pytorch": [], "attngraft": []}
    seconds = dict.fromkeys(found, 0.0)
    for seed in seeds:
        for name, trainer in zip(found, (theirs, ours), strict=True):
            before = time.process_time()
            found[name].append(trainer(arguments.data, seed=seed, epochs=arguments.epochs))
            seconds[name] += (time.process_time() - before) / len(seeds)
    for name, statistics in found.items():
        scores = [100 * statistic.point for statistic in statistics]
        lines.append(line(f"{name}: mean test mIoU", "points", float(np.mean(scores)), min(scores), max(scores)))
        lines.append(line(f"{name}: CPU time of a run", "seconds", *[seconds[name]] * 3))
    ((gain, _),) = crossed_bootstraps_of(found["segmentation_models_pytorch"], [found["attngraft"]])
    lost, low, high = (-100 * value for value in (gain.point, gain.high, gain.low))
    difference = line("mIoU of segmentation_models_pytorch minus ours", "points", lost, low, high)
    lines.append(replace(difference, bar=LOST, passed=lost <= LOST and low <= 0))
    result = setting.result(
        "CamVid",
        settings={"epochs": arguments.epochs, "seeds": len(seeds), "threads": torch.get_num_threads()},
        measurements=lines,
    )
    return finish(result, out=arguments.out, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
