"""Splits built from the recipe's `data` and `augment` sections, for any kind of labels."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from attngraft.cache import DecodedCache
from attngraft.errors import ConfigError
from attngraft.files import printable
from attngraft.tasks.images.checks import class_counts, classes_without_images, refuse_other_labels
from attngraft.tasks.images.config import AugmentConfig, DataConfig
from attngraft.tasks.images.decoded import decoded_bytes, keep_decoded
from attngraft.tasks.images.inputs import HostInput
from attngraft.tasks.images.opening import OpenedImages, Parts, open_images
from attngraft.tasks.images.sampling import Sampling
from attngraft.tasks.images.sources import Images, decoded
from attngraft.tasks.images.splits import EpochSampling, ImageSplit, LabelledSplit, PixelSplit
from attngraft.tasks.images.transforms import TransformPlan, eval_transform, only_shifts_and_flips, train_transform

CACHE_LIMIT = 2**29  #: largest size in bytes of a split's resized images to cache in memory by default


@dataclass(frozen=True, kw_only=True)
class LoadedImages:
    """The splits for the engine, and facts about the data."""

    classes: tuple[str, ...]
    train: LabelledSplit
    val: LabelledSplit
    test: LabelledSplit | None
    counts: np.ndarray  #: (classes,) number of training images of each class; empty for numbers
    facts: dict[str, Any]  #: JSON-ready, for the run folder and the report
    random_split: Parts | None  #: None: no random split, or it cannot be saved to a file
    decoded_bytes: int | None  #: see `TaskData`
    refusal: str  #: see `TaskData`

    @property
    def splits(self) -> dict[str, LabelledSplit]:
        """Return all splits by name."""
        return {"train": self.train, "val": self.val} | ({} if self.test is None else {"test": self.test})


def load_images(
    data: DataConfig,
    augment: AugmentConfig,
    *,
    host: HostInput,
    seed: int,
    task: str,
    multilabel: bool,
    sampling: Sampling | None = None,
    saved_split: Path | None = None,
    eval_crop_pct: float | None = None,
    cache: DecodedCache | None = None,
) -> LoadedImages:
    """Open the source, split and check the images, and choose the transforms.

    Args:
        data, augment: sections of the recipe.
        host: the host's input.
        seed: seed of the augmentation.
        task: name of the task, for messages and facts.
        multilabel: whether images have several labels.
        sampling: class frequencies in training; None: as in the data.
        saved_split: file of an earlier random split to use instead of a new one.
        eval_crop_pct: crop percentage of evaluation; None: chosen by the size of the images.
        cache: folder for decoded images; None: they are not kept.

    Raises:
        ConfigError: the settings do not apply to the source.
        DataError: the data cannot be used, or their labels are not of the task's kind.
    """
    opened = open_images(data, saved_split=saved_split)
    source, val = opened.source, opened.val
    if not source.numeric:
        refuse_other_labels(source, task=task, multilabel=multilabel)
    first = source.train.open(0)
    plan = TransformPlan.decide(augment, host, image_size=first.size, mirrored=source.mirrored)
    if eval_crop_pct is not None:
        plan = replace(plan, eval_crop_pct=eval_crop_pct)
    facts = {"task": task, "source": data.source, **_facts(opened, plan, host)}
    facts["image"] = {"first_size": list(first.size), "first_mode": first.mode}
    shuffle_buffer = None
    if data.order == "shards":
        if source.train.shard_index is None:
            raise ConfigError(
                "task.data.order=shards is only for tars and Hugging Face files, but these images are individual files; use "
                "--set task.data.order=random"
            )
        if augment.repeats > 1 or sampling is not None:
            field = "task.sampling" if sampling is not None else "task.augment.repeats"
            raise ConfigError(
                f"{field}: cannot be combined with task.data.order=shards; use --set task.data.order=random"
            )
        shuffle_buffer = data.shuffle_buffer
    epoch_sampling = EpochSampling(repeats=augment.repeats, sampling=sampling, shuffle_buffer=shuffle_buffer)
    parts = {"train": source.train, "val": val} | ({} if source.test is None else {"test": source.test})
    in_pixels = {name: _is_cached(images, data, host) for name, images in parts.items()}
    in_pixels["train"] &= only_shifts_and_flips(augment, plan) or bool(data.cache)
    decoding = {name: images for name, images in parts.items() if not images.in_memory}
    if cache is not None and not cache.shared:  # a run decodes the images of a `PixelSplit` only once
        decoding = {name: images for name, images in decoding.items() if not in_pixels[name]}
    sizes = np.concatenate([np.ones((0, 2), dtype=np.int64), *(opened.sizes[name] for name in decoding)])
    total = decoded_bytes(sizes, host.mode)
    if cache is not None and cache.room(total):
        parts |= keep_decoded(decoding, opened.sizes, mode=host.mode, cache=cache, origin=f"{data.source} {data.root}")
    images = parts["train"]
    if data.cache and not images.in_memory:
        images = decoded(images, host.mode)
    train: LabelledSplit
    if only_shifts_and_flips(augment, plan) and in_pixels["train"]:
        fixed = eval_transform(host, crop_pct=1.0, interpolation=augment.interpolation)
        train = PixelSplit(images, fixed, plan, host=host, seed=seed, epoch_sampling=epoch_sampling)
    else:
        transform = train_transform(augment, plan, host)
        train = ImageSplit(images, transform, host=host, seed=seed, epoch_sampling=epoch_sampling)
    transform = eval_transform(host, crop_pct=plan.eval_crop_pct)

    def evaluated(name: str) -> LabelledSplit:
        if in_pixels[name]:
            return PixelSplit(parts[name], transform, None, host=host, seed=seed)
        return ImageSplit(parts[name], transform, host=host, seed=seed)

    return LoadedImages(
        classes=source.classes,
        train=train,
        val=evaluated("val"),
        test=evaluated("test") if "test" in parts else None,
        counts=np.zeros(0) if source.numeric else class_counts(source.train, len(source.classes)),
        facts=printable(facts),
        random_split=opened.random_split,
        decoded_bytes=total,
        refusal=opened.leak,
    )


def _is_cached(images: Images, data: DataConfig, host: HostInput) -> bool:
    """Return whether to cache resized images in memory: as configured, by default up to `CACHE_LIMIT`."""
    if data.cache is None:
        return len(images) * host.channels * host.height * host.width <= CACHE_LIMIT
    return data.cache


def _facts(opened: OpenedImages, plan: TransformPlan, host: HostInput) -> dict[str, Any]:
    """Return facts and decisions for the run folder and the report."""
    source, val = opened.source, opened.val
    parts = {"train": source.train, "val": val} | ({} if source.test is None else {"test": source.test})

    def counts(images: Images) -> dict[str, int]:
        return dict(zip(source.classes, class_counts(images, len(source.classes)).tolist(), strict=True))

    facts: dict[str, Any] = {
        "kind": source.kind,
        "where": source.where,
        "split": source.origin,
        "targets" if source.numeric else "classes": list(source.classes),
        "sizes": {name: len(images) for name, images in parts.items()},
        **({} if source.numeric else {"counts": {name: counts(images) for name, images in parts.items()}}),
        "input": {**host.facts(), "eval_crop_pct": plan.eval_crop_pct},
        "augment": {"crop": plan.crop, "padding": plan.padding, "hflip": plan.hflip, "vflip": plan.vflip},
    }
    notes = [*opened.facts.get("notes", ()), *classes_without_images(source, val)]
    return facts | opened.facts | {"notes": notes}
