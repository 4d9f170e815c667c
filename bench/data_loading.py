"""Loading of a folder of JPEG images, relative to timm's loader with the same views.

    python bench/data_loading.py --images /path/to/folder --out benchmarks/data_loading.json

A sample is one or more epochs of training batches, from the start of the loading processes to the last batch; nothing is
trained.
Both loaders read the same files in the same number of processes, take the same kind of views (random resized crop to 224,
flip), and return normalized float32 batches on the CPU; ours reseeds for every image, so that its random numbers are a
function of (seed, epoch, image). timm's loader is measured twice: with its prefetcher (its default), where loading processes
send bytes and the training process normalizes them, as ours do; and without it, where they send normalized floats. Without
`--images`, images are generated. Before timing, views of both must be equal for equal random numbers. Upper limit of the
ratio of times: 1 / 0.95, which is 0.95 times timm's images per second.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFilter
from timm.data import ImageDataset, create_loader, create_transform

from attngraft.bench.command import finish, options
from attngraft.bench.result import WrongOutputsError, check_outputs, current_setting, measurement
from attngraft.tasks.images.config import AugmentConfig, DataConfig
from attngraft.tasks.images.inputs import HostInput, ImageBatches
from attngraft.tasks.images.loading import load_images
from attngraft.tasks.images.splits import LabelledSplit
from attngraft.tasks.seeding import seeded
from attngraft.timing import paired_ratio
from attngraft.training.loading import TrainOrder, train_batches

BAR = 1 / 0.95
SIZE = 224
HOST = HostInput.from_model({"input_size": (3, SIZE, SIZE), "interpolation": "bicubic"})
AUGMENT = AugmentConfig(crop="resized")
VIEWS = {
    "is_training": True,
    "scale": AUGMENT.scale,
    "ratio": AUGMENT.ratio,
    "hflip": 0.5,
    "color_jitter": None,
    "interpolation": HOST.interpolation,
    "mean": HOST.mean,
    "std": HOST.std,
}
READY = ImageBatches(HOST)
PREFETCHER = {"timm's loader": True, "timm's loader without its prefetcher": False}


def invent(folder: Path, *, images: int, size: int = 256) -> Path:
    """Generate two classes of blurred noise, which compresses about like photos."""
    generator = np.random.default_rng(0)
    for place in range(images):
        coarse = Image.fromarray(generator.integers(0, 256, (size // 8, size // 8, 3), dtype=np.uint8))
        image = coarse.resize((size, size), Image.Resampling.BICUBIC).filter(ImageFilter.GaussianBlur(1))
        grain = generator.normal(0, 6, (size, size, 3))
        path = folder / f"class{place % 2}" / f"{place:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((np.asarray(image) + grain).clip(0, 255).astype(np.uint8)).save(path, quality=90)
    return folder


@contextmanager
def photos(given: Path | None, *, invented: int) -> Iterator[Path]:
    """Return the folder to load: one with a folder per class, or the `train` folder in it."""
    if given is not None:
        yield given / "train" if (given / "train").is_dir() else given
        return
    with tempfile.TemporaryDirectory() as folder:
        yield invent(Path(folder), images=invented)


def our_split(folder: Path) -> LabelledSplit:
    """Return all images of the folder except the few that a validation split requires."""
    data = DataConfig(source=str(folder), val_fraction=0.01)
    return load_images(data, AUGMENT, host=HOST, seed=0, task="classification", multilabel=False).train


def check(folder: Path, split: LabelledSplit) -> None:
    """Check that equal random numbers give equal views."""
    view = create_transform((3, SIZE, SIZE), **VIEWS)
    for place in range(min(5, len(split))):
        with Image.open(folder / split.name(place)) as image, seeded("augment", 0, 0, place):
            expected = view(image.convert("RGB"))
        check_outputs(HOST.normalize(split[0, place][0]), expected, what=f"view of {split.name(place)}", rtol=0, atol=0)


class Ours:
    """Iterate over epochs of batches as `attngraft train` does."""

    def __init__(self, split: LabelledSplit, *, batch: int, epochs: int, workers: int) -> None:
        self.order, self.epochs, self.workers = TrainOrder(split=split, seed=0, batch_size=batch), epochs, workers

    def __call__(self) -> int:
        batches = train_batches(self.order, epoch=0, step=0, epochs=self.epochs, workers=self.workers, pin=False)
        return sum(len(READY.to_model(batch)[0][0]) for batch in batches)


class Timms:
    """Do the same with timm's loader, whose processes also start with the sample and persist over its epochs."""

    def __init__(
        self, folder: Path, split: LabelledSplit, *, batch: int, epochs: int, workers: int, prefetcher: bool
    ) -> None:
        self.images = ImageDataset(str(folder))
        names = set(split.names)
        self.images.reader.samples = [
            (path, label)
            for path, label in self.images.reader.samples
            if Path(path).relative_to(folder).as_posix() in names
        ]
        self.batch, self.epochs, self.workers, self.prefetcher = batch, epochs, workers, prefetcher

    def __call__(self) -> int:
        loader = create_loader(
            self.images,
            (3, SIZE, SIZE),
            self.batch,
            num_workers=self.workers,
            persistent_workers=self.workers > 0,
            use_prefetcher=self.prefetcher,
            device=torch.device("cpu"),
            **VIEWS,
        )
        return sum(len(images) for _ in range(self.epochs) for images, _ in loader)


def main() -> int:
    parser = options("Time of attngraft's data loading, relative to timm's.", pairs=30)
    parser.add_argument("--images", type=Path, default=None, help="folder of JPEG images; generated ones by default")
    parser.add_argument("--invented", type=int, default=512, help="number of generated images")
    parser.add_argument("--batch", type=int, default=32, help="images in a batch")
    parser.add_argument("--epochs", type=int, default=4, help="epochs in a sample")
    parser.add_argument("--workers", type=int, default=2, help="loading processes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    setting = current_setting()
    with photos(arguments.images, invented=arguments.invented) as folder:
        split = our_split(folder)
        check(folder, split)
        common = {"batch": arguments.batch, "epochs": arguments.epochs, "workers": arguments.workers}
        ours = Ours(split, **common)
        timms = {name: Timms(folder, split, prefetcher=each, **common) for name, each in PREFETCHER.items()}
        first = list(split.images.open(0).size)
        counts = {ours(), *(loader() for loader in timms.values())}
        if len(counts) > 1:
            raise WrongOutputsError(f"the loaders gave different numbers of images: {sorted(counts)}")
        lines = [
            measurement(
                f"time per image over {name}'s", paired_ratio(loader, ours, pairs=arguments.pairs, warmup=0), bar=BAR
            )
            for name, loader in timms.items()
        ]
    result = setting.result(
        "Loading a folder of JPEG images, attngraft over timm",
        settings=common | {"pairs": arguments.pairs, "images in a sample": counts.pop(), "first image": first},
        measurements=lines,
    )
    return finish(result, out=arguments.out, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
