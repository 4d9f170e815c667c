"""Quality of a small Mask R-CNN on nuclei: this project's training against a plain loop around torchvision's class.

    python bench/nuclei.py --data nuclei --threads 1 --out benchmarks/nuclei.json

Both train resnet10t with a pyramid of width 96 from scratch: AdamW, crops of 224 pixels, flips and rotations by 90 degrees,
batches of 4, the same number of epochs.
Ours is the recipe `small-detection`; theirs is torchvision's `MaskRCNN` with its own
losses, matching and pooling on the same backbone and heads, with torchvision's transforms. Both are judged by the same test
images, and the interval of the difference resamples seeds and images as a study does. With `--long`, runs of ours of three
times the length are compared with Otsu's threshold, which needs no training.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import timm
import torch
from torch import Tensor, nn
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FastRCNNPredictor, TwoMLPHead
from torchvision.models.detection.mask_rcnn import MaskRCNNHeads, MaskRCNNPredictor
from torchvision.ops import FeaturePyramidNetwork, masks_to_boxes
from torchvision.ops.feature_pyramid_network import LastLevelMaxPool

from attngraft.bench.command import finish, options
from attngraft.bench.result import Measurement, current_setting
from attngraft.models.dense.levels import Levels, host_levels
from attngraft.models.dense.rle import mask_api
from attngraft.results.measured import Statistic
from attngraft.results.records import RecordTable, open_records
from attngraft.results.statistics import crossed_bootstraps_of
from attngraft.tasks.detection.config import ObjectDataConfig
from attngraft.tasks.detection.metrics import FLOOR, image_statistics, measure
from attngraft.tasks.detection.source import AnnotatedImages, open_objects
from attngraft.tasks.images.inputs import image_to_tensor
from attngraft.training.loop import train
from attngraft.training.recipe import load_recipe

CROP, BATCH, WIDTH, SIDES, MOST = 224, 4, 96, (8, 16, 32, 64, 128), 200
LOST = 2.0  #: points of mask AP that ours may be lower
PAIR = tuple[Tensor, dict[str, Tensor]]


def ours(data: Path, *, seed: int, epochs: int) -> tuple[dict[str, Statistic], dict[str, float]]:
    """Train by this project; return the test metrics, and those without training."""
    settings = [
        "host.name=resnet10t",
        "host.args={}",
        f"task.data.source={data}",
        f"schedule.epochs={epochs}",
        f"schedule.warmup_epochs={min(1, epochs - 1)}",
        f"seed={seed}",
        "train.outputs=false",
        f"train.eval_every={epochs}",
    ]
    with tempfile.TemporaryDirectory() as folder:
        train(load_recipe("small-detection", settings), Path(folder, "run"))
        with open_records(Path(folder, "run", "predictions.npz")) as table:
            floor = measure(table, classes=1, prefix=FLOOR).values
            return dict(measure(table, classes=1).statistics), dict(floor)


class Backbone(nn.Module):
    """The host, its levels and the pyramid, as torchvision's detectors take them."""

    out_channels = WIDTH

    def __init__(self) -> None:
        super().__init__()
        self.host = timm.create_model("resnet10t", num_classes=0)
        self.levels = Levels(host_levels(self.host))
        self.fpn = FeaturePyramidNetwork(self.levels.channels, WIDTH, LastLevelMaxPool())

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        maps = self.levels(self.host, images)
        found: dict[str, Tensor] = self.fpn(OrderedDict((str(level), each) for level, each in enumerate(maps)))
        return found


def examples(images: AnnotatedImages) -> list[PAIR]:
    """Return images (3, H, W) uint8, and masks (G, H, W) with labels."""
    found = []
    for index in range(len(images)):
        masks = mask_api().decode([*(images.objects(index).masks or ())]).transpose(2, 0, 1)
        target = {"masks": torch.from_numpy(masks.copy()), "labels": torch.ones(len(masks), dtype=torch.int64)}
        found.append((image_to_tensor(images.image(index)), target))
    return found


def augmented(image: Tensor, target: dict[str, Tensor]) -> PAIR:
    """Flip, rotate and crop; images are larger than the crop."""
    masks = target["masks"]
    for axis in (-1, -2):
        if torch.rand(()) < 0.5:
            image, masks = image.flip(axis), masks.flip(axis)
    turns = int(torch.randint(4, ()))
    image, masks = (torch.rot90(each, turns, (-2, -1)) for each in (image, masks))
    top, left = (int(torch.randint(side - CROP + 1, ())) for side in image.shape[-2:])
    image, masks = (each[:, top : top + CROP, left : left + CROP] for each in (image, masks))
    boxes = torch.zeros(len(masks), 4)
    visible = masks.flatten(1).sum(1) > 0
    if visible.any():
        boxes[visible] = masks_to_boxes(masks[visible])
        boxes[:, 2:] += 1
    kept = visible & ((boxes[:, 2:] - boxes[:, :2]) >= 1).all(1)
    labels = target["labels"][kept]
    return image.float() / 255, {"boxes": boxes[kept], "labels": labels, "masks": masks[kept].contiguous()}


def theirs(data: Path, *, seed: int, epochs: int) -> dict[str, Statistic]:
    """Train torchvision's class and return the test metrics."""
    torch.manual_seed(seed)
    source = open_objects(ObjectDataConfig(source=str(data)))
    assert source.test is not None
    given = examples(source.train)
    model: Any = MaskRCNN(
        Backbone(),
        rpn_anchor_generator=AnchorGenerator([(side,) for side in SIDES], [(0.5, 1.0, 2.0)] * len(SIDES)),
        box_head=TwoMLPHead(WIDTH * 7**2, 256),
        box_predictor=FastRCNNPredictor(256, 2),
        mask_head=MaskRCNNHeads(WIDTH, [WIDTH] * 2, 1),
        mask_predictor=MaskRCNNPredictor(WIDTH, WIDTH, 2),
        box_detections_per_img=MOST,
        _skip_resize=True,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    per_epoch = len(given) // BATCH
    steps, warmup = epochs * per_epoch, per_epoch

    def rate(step: int) -> float:
        return min(1.0, (step + 1) / warmup) * (0.5 + 0.5 * np.cos(np.pi * step / steps))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    model.train()
    for _ in range(epochs):
        order = torch.randperm(len(given)).tolist()
        for start in range(0, len(order) - BATCH + 1, BATCH):
            batch = [augmented(*given[index]) for index in order[start : start + BATCH]]
            losses = model([image for image, _ in batch], [target for _, target in batch])
            optimizer.zero_grad(set_to_none=True)
            sum(losses.values()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5)
            optimizer.step()
            schedule.step()
    model.eval()
    rows = []
    for index in range(len(source.test)):
        with torch.no_grad():
            found = model([image_to_tensor(source.test.image(index)).float() / 255])[0]
        masks = [
            mask_api().encode(np.asfortranarray((mask > 0.5).numpy(), dtype=np.uint8)) for mask in found["masks"][:, 0]
        ]
        labels, boxes = found["labels"].numpy() - 1, found["boxes"].double().numpy()
        objects = source.test.objects(index)
        rows.append(image_statistics(found["scores"].numpy(), labels, boxes, masks, objects, boundaries=False))
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return dict(measure(RecordTable(names=np.arange(len(rows)).astype(str), columns=columns), classes=1).statistics)


def line(name: str, unit: Literal["points", "seconds"], value: float, low: float, high: float) -> Measurement:
    return Measurement(name=name, unit=unit, value=value, low=low, high=high, bar=None, passed=True, samples=1)


def main() -> int:
    parser = options("Quality of a small Mask R-CNN on nuclei; a pair is a seed.", pairs=3)
    parser.add_argument("--data", type=Path, required=True, help="folder with images, masks and annotations")
    parser.add_argument("--epochs", type=int, default=17, help="epochs of 22 steps")
    parser.add_argument("--long", type=int, default=0, help="number of runs of ours of three times the epochs")
    parser.add_argument("--threads", type=int, default=None, help="CPU threads of torch; torch's default if not given")
    arguments = parser.parse_args()
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    setting, lines, seeds = current_setting("cpu"), list[Measurement](), range(arguments.pairs)
    data, epochs = arguments.data, arguments.epochs
    found: dict[str, list[dict[str, Statistic]]] = {"torchvision": [], "attngraft": []}
    seconds, floor = dict.fromkeys(found, 0.0), dict[str, float]()
    for seed in seeds:
        for name in found:
            before = time.process_time()
            if name == "torchvision":
                found[name].append(theirs(data, seed=seed, epochs=epochs))
            else:
                statistics, floor = ours(data, seed=seed, epochs=epochs)
                found[name].append(statistics)
            seconds[name] += (time.process_time() - before) / len(seeds)
    for name, each in found.items():
        for metric, label in {"mask_ap": "mask AP", "mask_ap75": "mask AP75", "box_ap": "box AP"}.items():
            scores = [100 * one[metric].point for one in each]
            lines.append(line(f"{name}: mean test {label}", "points", float(np.mean(scores)), min(scores), max(scores)))
        lines.append(line(f"{name}: CPU time of a run", "seconds", *[seconds[name]] * 3))
    before, after = ([each["mask_ap"] for each in found[name]] for name in found)
    ((gain, _),) = crossed_bootstraps_of(before, [after])
    lost, low, high = (-100 * value for value in (gain.point, gain.high, gain.low))
    difference = line("mask AP of torchvision minus ours", "points", lost, low, high)
    lines.append(replace(difference, bar=LOST, passed=lost <= LOST and low <= 0))
    for metric in ("mask_ap", "mask_ap75"):
        label = {"mask_ap": "mask AP", "mask_ap75": "mask AP75"}[metric]
        lines.append(line(f"Otsu's threshold: test {label}", "points", *[100 * floor[metric]] * 3))
    if arguments.long:
        runs = [ours(data, seed=seed, epochs=3 * epochs)[0] for seed in range(arguments.long)]
        for metric, label in {"mask_ap": "mask AP", "mask_ap75": "mask AP75"}.items():
            scores = [100 * one[metric].point for one in runs]
            mean = line(
                f"attngraft, three times as long: mean test {label}",
                "points",
                float(np.mean(scores)),
                min(scores),
                max(scores),
            )
            lines.append(mean)
        missing = 100 * floor["mask_ap75"] - lines[-1].value
        worst = line("mask AP75 of Otsu's threshold minus that of the long runs", "points", *[missing] * 3)
        lines.append(replace(worst, bar=0.0, passed=missing < 0))
    result = setting.result(
        "Nuclei",
        settings={
            "epochs": epochs,
            "seeds": len(seeds),
            "long runs": arguments.long,
            "threads": torch.get_num_threads(),
        },
        measurements=lines,
    )
    return finish(result, out=arguments.out, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
